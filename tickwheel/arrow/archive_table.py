"""What an archive takes from a data directory, and the rows that it makes of it; one row a message.

A message is taken when every group of its topic was done with it before a time. Its record in the log must match its
checksum: what is damaged, or has a key that is no UTF-8, stays with the broker and is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timerlog.commitlog.records import TopicRecord
from timerlog.layout import Array, DeliveryState, Int64Array, MessageState
from timerlog.query.columns import LogColumns, shard_names
from timerlog.readers.describe import Offline
from timerlog.readers.snapshot import Chunk, Snapshot
from timerlog.tables.tables import parts

_MS: Final = pa.timestamp("ms", "UTC")
GROUP: Final = pa.struct(
    [
        pa.field("name", pa.string()),
        pa.field("state", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("attempts", pa.int64()),
        pa.field("time", _MS),
    ]
)
#: The columns of an archive's files. The topic and the date stand in the names of the directories.
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("log_id", pa.string()),
        pa.field("shard", pa.string()),
        pa.field("key", pa.string()),
        pa.field("order_key", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("time_created", _MS),
        pa.field("deliver_at", _MS),
        pa.field("time_acked", _MS),
        pa.field("headers", pa.string()),
        pa.field("headers_packed", pa.binary()),
        pa.field("body", pa.binary()),
        pa.field("groups", pa.list_(GROUP)),
    ]
)
#: What a forecast is made of.
SIZES: Final = pa.schema(
    [pa.field("id", pa.int64()), pa.field("topic", pa.string()), pa.field("bytes", pa.int64())]
)
STATES: Final[dict[str, int]] = {"acked": DeliveryState.ACKED, "dead": DeliveryState.DEAD}
DAY_MS: Final = 86_400_000
_NO_TEXT: Final = "\ufffd"
_CHUNK_ROWS: Final = 65_536
_STEP_ROWS: Final = 16 * _CHUNK_ROWS
_BATCH_BYTES: Final = 32 * 1024 * 1024


#: By topic: messages, and bytes of their records.
Counts: TypeAlias = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages are taken. ``states``: how their groups may be done with them. ``topics``: with all shards; None:
    of all topics. ``without``: ids that are in the archive already, in order."""

    done_before_ms: int
    states: tuple[str, ...] = ("acked",)
    topics: tuple[str, ...] | None = None
    without: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(slots=True)
class Passed:
    """How many messages were meant, and of these those that were not taken: purged while they were read, or not
    readable."""

    meant: int = 0
    vanished: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of ``SCHEMA``, of one topic and one UTC day, which is numbered from 1970 on."""

    topic: str
    day: int
    batch: Any


def topic_names(topics: list[TopicRecord]) -> dict[int, str]:
    """The name under which each topic is archived: that of a shard is its topic's."""
    own = {topic.topic_id: topic.name for topic in topics}
    return {topic.topic_id: own.get(topic.parent, topic.name) for topic in topics}


def parts_of(offline: Offline, rows: int) -> list[tuple[int, int]]:
    """What one task looks at: ids from, to below which, of at most so many rows of the MessageTable. Where no message
    has an id, or none any more, there is none."""
    description = offline.description
    return list(parts(description.gaps, max(1, description.first_id), description.next_id, rows))


def count_messages(offline: Offline, ids: range, wanted: Wanted) -> Counts:
    """How many messages of each topic would be taken, and the bytes of their records."""
    counts: Counts = {}
    with closing(Snapshot(offline.description)) as snapshot:
        for batch in scan_sizes(snapshot, ids, wanted):
            if batch is not None:
                add_counts(counts, batch, wanted)
    return counts


def scan_sizes(snapshot: Snapshot, ids: range, wanted: Wanted) -> Iterator[Any]:
    """Record batches of ``SIZES``: what would be taken, out of a snapshot that is open already. None where many rows
    were read and none is taken."""
    names = topic_names(snapshot.description.topics)
    for chosen in _chosen(snapshot, ids, wanted):
        if chosen is None:
            yield None
            continue
        topics = [names[topic_id] for topic_id in chosen.rows["topic_id"].tolist()]
        sizes = chosen.rows["record_bytes"].astype(np.int64)
        yield pa.RecordBatch.from_arrays(
            [pa.array(chosen.ids), pa.array(topics, pa.string()), pa.array(sizes)], schema=SIZES
        )


def add_counts(counts: Counts, batch: Any, wanted: Wanted) -> None:
    """Counts a batch of ``SIZES``, without what is in the archive already."""
    table = pa.Table.from_batches([batch])
    if len(wanted.without):
        table = table.filter(pa.array(~np.isin(batch.column("id").to_numpy(), wanted.without)))
    sums = table.group_by("topic").aggregate([("id", "count"), ("bytes", "sum")]).to_pylist()
    for row in sums:
        messages, size_bytes = counts.get(row["topic"], (0, 0))
        counts[row["topic"]] = messages + row["id_count"], size_bytes + row["bytes_sum"]


def read_pieces(offline: Offline, ids: range, wanted: Wanted, passed: Passed) -> Iterator[Piece]:
    """The rows to be archived. Raises ``StoreError``."""
    with closing(Snapshot(offline.description)) as snapshot:
        yield from (piece for piece in scan_pieces(snapshot, ids, wanted, passed) if piece is not None)


def scan_pieces(snapshot: Snapshot, ids: range, wanted: Wanted, passed: Passed) -> Iterator[Piece | None]:
    """The same of a snapshot that is open already. None where many rows were read and none is taken."""
    making = _Rows(snapshot)
    for chosen in _chosen(snapshot, ids, wanted):
        if chosen is None:
            yield None
            continue
        ends = np.cumsum(chosen.rows["record_bytes"].astype(np.int64))
        cuts = (np.flatnonzero(np.diff(ends // _BATCH_BYTES)) + 1).tolist()
        for start, stop in zip([0, *cuts], [*cuts, len(chosen.ids)], strict=True):
            yield from making.pieces(chosen.part(start, stop), passed)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Messages in order of their ids, and what their groups did: those of message i are ``groups[at[i]:at[i + 1]]``."""

    ids: Int64Array
    rows: Array
    done_ms: Int64Array
    at: Int64Array
    groups: npt.NDArray[np.uint32]
    deliveries: Array

    def part(self, start: int, stop: int) -> _Chosen:
        first, last = int(self.at[start]), int(self.at[stop])
        return _Chosen(
            self.ids[start:stop],
            self.rows[start:stop],
            self.done_ms[start:stop],
            self.at[start : stop + 1] - first,
            self.groups[first:last],
            self.deliveries[first:last],
        )

    def only(self, kept: Int64Array) -> _Chosen:
        """Some of the messages."""
        if len(kept) == len(self.ids):
            return self
        sizes = np.diff(self.at)
        inside = np.isin(np.repeat(np.arange(len(self.ids)), sizes), kept)
        at = np.concatenate([[0], np.cumsum(sizes[kept])])
        return _Chosen(
            self.ids[kept],
            self.rows[kept],
            self.done_ms[kept],
            at,
            self.groups[inside],
            self.deliveries[inside],
        )


def _chosen(snapshot: Snapshot, ids: range, wanted: Wanted) -> Iterator[_Chosen | None]:
    names = topic_names(snapshot.description.topics)
    is_wanted = (
        names if wanted.topics is None else {number for number in names if names[number] in wanted.topics}
    )
    topics = np.array(sorted(snapshot.groups_of.keys() & names.keys() & set(is_wanted)), np.int64)
    states = [STATES[name] for name in wanted.states]

    def judge(numbers: Int64Array, rows: Array) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (rows["state"] == MessageState.READY) & np.isin(
            rows["topic_id"], topics
        )
        if len(wanted.without):
            found &= ~np.isin(numbers, wanted.without)
        return found

    for step in parts(snapshot.description.gaps, ids.start, ids.stop, _STEP_ROWS):
        is_empty = True
        for chunk in snapshot.chunks(None, chunk_rows=_CHUNK_ROWS, ids=range(*step), judge=judge):
            chosen = _done(chunk, states, wanted.done_before_ms)
            if len(chosen.ids):
                yield chosen
                is_empty = False
        if is_empty:
            yield None


def _done(chunk: Chunk, states: list[int], done_before_ms: int) -> _Chosen:
    """The messages of a chunk that all groups were done with in time."""
    order = np.lexsort((chunk.groups, chunk.ids))
    ids, deliveries, groups = chunk.ids[order], chunk.deliveries[order], chunk.groups[order]
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    at = np.append(starts, len(ids))
    is_done = (groups > 0) & np.isin(deliveries["state"], states)
    all_done = np.logical_and.reduceat(is_done, starts) if len(ids) else np.zeros(0, bool)
    last_ms = np.maximum.reduceat(deliveries["time_ms"], starts) if len(ids) else np.zeros(0, np.int64)
    everything = _Chosen(ids[starts], chunk.rows[order[starts]], last_ms, at, groups, deliveries)
    return everything.only(np.flatnonzero(all_done & (last_ms < done_before_ms)))


class _Rows:
    """Makes rows of chosen messages."""

    def __init__(self, snapshot: Snapshot) -> None:
        description = snapshot.description
        self._snapshot, self._log = snapshot, LogColumns(snapshot)
        self._log_id = f"{description.log_id:016x}"
        self._names = topic_names(description.topics)
        self._shards = dict(
            zip((t.topic_id for t in description.topics), shard_names(description.topics), strict=True)
        )
        self._groups = {group.group_id: group.name for group in description.groups}

    def pieces(self, chosen: _Chosen, passed: Passed) -> Iterator[Piece]:
        batch, chosen = self._readable(chosen, passed)
        if not len(chosen.ids):
            return
        days = chosen.rows["deliver_at_ms"] // DAY_MS
        names = [self._names[topic_id] for topic_id in chosen.rows["topic_id"].tolist()]
        topics, numbers = np.unique(np.array(names, object), return_inverse=True)
        order = np.lexsort((days, numbers))
        cuts = np.flatnonzero(np.diff(days[order]) | np.diff(numbers[order])) + 1
        for part in np.split(order, cuts):
            taken = batch if len(part) == len(order) else batch.take(pa.array(np.sort(part)))
            yield Piece(str(topics[numbers[part[0]]]), int(days[part[0]]), taken)

    def _readable(self, chosen: _Chosen, passed: Passed) -> tuple[Any, _Chosen]:
        passed.meant += len(chosen.ids)
        # All of the batch is read from the same places of the log: a purge cannot come between two columns.
        batch = self._batch(chosen)
        is_right = self._log.are_right(chosen.ids)
        is_there = self._snapshot.messages.take(chosen.ids, "state") != MessageState.NONE
        passed.vanished += int((~is_right & ~is_there).sum())
        for name in ("key", "order_key"):
            odd = pc.match_substring(batch.column(name), _NO_TEXT).fill_null(False)
            is_right &= ~odd.to_numpy(zero_copy_only=False)
        passed.unreadable += int((~is_right & is_there).sum())
        kept = np.flatnonzero(is_right)
        return (batch if len(kept) == len(batch) else batch.take(pa.array(kept))), chosen.only(kept)

    def _batch(self, chosen: _Chosen) -> Any:
        ids, rows = chosen.ids, chosen.rows
        shards = [self._shards[topic_id] for topic_id in rows["topic_id"].tolist()]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(ids),
                pa.repeat(self._log_id, len(ids)),
                pa.array(shards, pa.string()),
                self._log.key(ids),
                self._log.order_key(ids),
                pa.array(rows["priority"].astype(np.int32)),
                _times(rows["created_ms"]),
                _times(rows["deliver_at_ms"]),
                _times(chosen.done_ms),
                self._log.headers(ids),
                self._log.packed_headers(ids),
                self._log.body(ids),
                self._group_lists(chosen),
            ],
            schema=SCHEMA,
        )

    def _group_lists(self, chosen: _Chosen) -> Any:
        deliveries = chosen.deliveries
        names = {number: name for name, number in STATES.items()}
        epochs = deliveries["epoch"].astype(np.int64)
        items = pa.StructArray.from_arrays(
            [
                pa.array([self._groups[number] for number in chosen.groups.tolist()], pa.string()),
                pa.array([names[state] for state in deliveries["state"].tolist()], pa.string()),
                pa.array(self._snapshot.times_delivered(chosen.groups, deliveries)),
                pa.array(epochs - deliveries["base_epoch"]),
                _times(deliveries["time_ms"]),
            ],
            fields=list(GROUP),
        )
        return pa.ListArray.from_arrays(pa.array(chosen.at.astype(np.int32)), items, type=pa.list_(GROUP))


def _times(values_ms: npt.NDArray[Any]) -> Any:
    return pa.array(np.ascontiguousarray(values_ms), pa.int64()).view(_MS)
