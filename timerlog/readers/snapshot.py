"""Reads a data directory that a broker is using, from another process: read-only, without the lock, without asking.

The tables and the log are memory-mapped files, so this sees them as they are at each moment. The broker says what
cannot be seen from outside (``describe``): names, and where the tables end. Rows are copied in chunks before they are
judged. Files only ever grow while a broker runs, so nothing that is mapped can vanish: a purged segment is unlinked,
which keeps open mappings, and a hole reads as zeros, which is a message that is gone. What purging moves is looked for
again where its row says then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from timerlog.commitlog.log import CommitLog
from timerlog.commitlog.records import GroupRecord, TopicRecord
from timerlog.commitlog.view import LogView, Records
from timerlog.errors import StoreError
from timerlog.files.disk import LOG_FOLDER
from timerlog.files.items import Items
from timerlog.files.mapped_file import Mapping
from timerlog.layout import (
    ARRIVAL,
    ARRIVALS_MAGIC,
    DELIVERIES_MAGIC,
    DELIVERY,
    HEADER_BYTES,
    ROW,
    ROWS_MAGIC,
    Array,
    Int64Array,
    MessageState,
)
from timerlog.tables.tables import Tables, by_topic, spans

CHUNK_ROWS: Final = 100_000

_LOOKS: Final = 5
_IS_THERE: Final = np.array([state not in (MessageState.NONE, MessageState.DROPPED) for state in range(256)])
"""By state, which is a byte."""


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader has to know of a store: everything below ``next_id`` is in the files when it is made."""

    directory: str
    log_id: int
    segment_bytes: int
    now_ms: int
    next_id: int
    topics: list[TopicRecord]
    groups: list[GroupRecord]
    first_id: int = 0  #: no message below it is there
    first_seqs: dict[int, int] = {}  #: by topic: no message with a number below it is in the topic
    timeline: int = 0  #: of the log; 0: the first
    gaps: list[tuple[int, int]] = []  #: ids from, to below which no message has


def describe(log: CommitLog, tables: Tables, now_ms: int) -> Description:
    """Hands what is staged to the operating system and describes the store. Raises ``LogFailed``."""
    if tables.directory is None:
        raise StoreError("a store in memory cannot be read by another process")
    log.flush()
    first_id, next_id = int(tables.native.first_id), tables.next_id
    assert 0 < first_id <= next_id <= tables.messages.capacity, "each id below the next one has a row"
    assert not tables.left_out or tables.left_out[-1][1] <= next_id, "what is left out has been given out"
    return Description(
        directory=str(tables.directory.resolve()),
        log_id=tables.log_id,
        segment_bytes=log.segment_bytes,
        now_ms=now_ms,
        next_id=tables.next_id,
        first_id=int(tables.native.first_id),
        first_seqs=tables.first_seqs(),
        topics=[topic.record for topic in tables.topics.values()],
        groups=[group.record for group in tables.groups.values()],
        timeline=tables.timeline,
        gaps=tables.left_out,
    )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages as their groups see them, by column: message ``ids[i]`` with its row, and what group ``groups[i]``
    (0: none) knows of it."""

    ids: Int64Array
    rows: Array
    groups: npt.NDArray[np.uint32]
    deliveries: Array


class Snapshot:
    """The tables of one directory. Close it only when nothing refers to its arrays any more."""

    def __init__(self, description: Description) -> None:
        self.description = description
        self.groups_of: dict[int, list[GroupRecord]] = {topic.topic_id: [] for topic in description.topics}
        self._fences = np.zeros(
            max((group.group_id for group in description.groups), default=0) + 1, np.int64
        )
        for group in description.groups:
            self.groups_of.setdefault(group.topic_id, []).append(group)
            self._fences[group.group_id] = group.fence or 0
        # The last place is that of all numbers above.
        self._is_topic = np.zeros(max(self.groups_of, default=0) + 2, bool)
        self._is_topic[[*self.groups_of]] = True
        self._directory = Path(description.directory)
        self._mappings: list[Mapping] = []
        self._tables: dict[str, Items] = {}
        self.log = LogView(self._directory / LOG_FOLDER, description.segment_bytes)
        rows = self._table("messages.table", ROW, ROWS_MAGIC, description.first_id)
        #: Those below ``next_id``, by id.
        self.messages = Items(rows.array[: description.next_id], rows.start)

    def chunks(
        self,
        topic_id: int | None,
        *,
        with_deliveries: bool = True,
        chunk_rows: int = CHUNK_ROWS,
        ids: range | None = None,
        judge: Callable[[Int64Array, Array], npt.NDArray[np.bool_]] | None = None,
    ) -> Iterator[Chunk]:
        """All messages of a topic, or of all topics, in order of ids: each once for every group of its topic, and
        once without a group when no group is ever given it. ``ids``: only these; ``judge`` says of ids and their rows
        which are wanted."""
        assert ids is None or ids.step == 1, "a range of ids has no holes"
        wanted_topics = self.groups_of if topic_id is None else (topic_id,)
        copies = max((len(self.groups_of.get(number, ())) for number in wanted_topics), default=1)
        step = max(chunk_rows // max(copies, 1), 1)  # bounds the memory of what a chunk expands to
        end_id = len(self.messages)
        first_id, end_id = (1, end_id) if ids is None else (ids.start, min(ids.stop, end_id))
        first_id = max(first_id, self.description.first_id, 1)
        for start, stop in spans(self.description.gaps, first_id, end_id, step):
            rows = _copied(self.messages.between(start, stop))  # one moment for all columns
            wanted = _IS_THERE.take(rows["state"], mode="clip")
            wanted &= (
                self._have_topics(rows["topic_id"]) if topic_id is None else rows["topic_id"] == topic_id
            )
            kept = np.flatnonzero(wanted)
            rows = rows if len(kept) == len(rows) else _taken(rows, kept)
            if judge is not None and len(kept):
                passed = np.flatnonzero(judge(kept + start, rows))
                kept, rows = kept[passed], _taken(rows, passed)
            if len(kept):
                yield self._without_purged(self._expand(kept + start, rows, with_deliveries))

    def _have_topics(self, topic_ids: Array) -> npt.NDArray[np.bool_]:
        """Whether the topic of each row is there: rows stay for a while when it was deleted."""
        found: npt.NDArray[np.bool_] = self._is_topic.take(
            topic_ids, mode="clip"
        )  # the last place is of none
        return found

    def records(self, ids: Int64Array) -> Records:
        """Where in the log messages are; what does not exist is not whole. Purging may move a message between a look at
        its row and a look at its record, behind what is mapped even: then both are looked at again."""
        known = (ids >= self.messages.start) & (ids < len(self.messages))
        places = np.where(known, ids, 0)
        for _ in range(_LOOKS):
            rows = self.rows_of(places)
            found = self.log.records(ids, rows)
            states = self.messages.take(places, "state")
            lost = np.flatnonzero(~found.is_whole & (states != MessageState.NONE))
            positions = self.messages.take(places[lost], "position")
            has_moved = bool((positions != rows["position"][lost]).any())
            if not self.log.map_more(positions.astype(np.int64)) and not has_moved:
                break
        return found

    def rows_of(self, ids: Int64Array) -> Array:
        """The rows of messages below ``next_id``; zeros of those that are not there any more."""
        start = self.messages.start
        if not start or not len(ids) or int(ids.min()) >= start:
            return _taken(self.messages.array, ids)
        return self.messages.take(ids)

    def ids_of(self, topic_id: int, seqs: Int64Array) -> Int64Array:
        """The message that has each number in a topic; 0 where that is not known any more."""
        arrivals = self._arrivals(topic_id)
        inside = (seqs >= 0) & (seqs < len(arrivals))
        found = np.zeros(len(seqs), np.int64)
        found[inside] = arrivals.take(seqs[inside], "id")
        return found

    def close(self) -> None:
        for mapping in self._mappings:
            mapping.close()
        self.log.close()

    def _table(self, name: str, dtype: np.dtype[Any], magic: bytes, first: int) -> Items:
        """``first``: no item below it is looked at."""
        if name not in self._tables:
            mapping = Mapping(self._directory / name, HEADER_BYTES + first * dtype.itemsize if first else 0)
            self._mappings.append(mapping)
            self._tables[name] = mapping.items(dtype, magic, self.description.log_id)
        assert self._tables[name].start <= first, "all that is asked for has addresses, if it is there"
        return self._tables[name]

    def _arrivals(self, topic_id: int) -> Items:
        first = self.description.first_seqs.get(topic_id, 0)
        return self._table(f"topics/{topic_id}.arrivals", ARRIVAL, ARRIVALS_MAGIC, first)

    def _expand(self, ids: Int64Array, rows: Array, with_deliveries: bool) -> Chunk:
        if self._have_no_groups(rows["topic_id"]):
            return Chunk(ids, rows, np.zeros(len(ids), np.uint32), np.zeros(len(ids), DELIVERY))
        parts: list[tuple[Int64Array, int, Array]] = []
        for topic_id, part in by_topic(rows["topic_id"]):
            if topic_id in self.groups_of:  # else it was deleted
                parts += self._of_topic(topic_id, part, ids, rows, with_deliveries)
        if not parts:
            return Chunk(ids[:0], rows[:0], np.empty(0, np.uint32), np.empty(0, DELIVERY))
        if len(parts) == 1 and len(parts[0][0]) == len(ids):
            return Chunk(ids, rows, np.full(len(ids), parts[0][1], np.uint32), parts[0][2])
        index = np.concatenate([part for part, _, _ in parts])
        groups = np.repeat(
            np.array([group_id for _, group_id, _ in parts], np.uint32), [len(part) for part, _, _ in parts]
        )
        deliveries = np.concatenate([delivery for _, _, delivery in parts])
        return Chunk(ids[index], _taken(rows, index), groups, deliveries)

    def _have_no_groups(self, topic_ids: npt.NDArray[np.uint16]) -> bool:
        """Whether all of these topics are there, and none has a group."""
        return all(
            self.groups_of.get(number) == [] for number in np.flatnonzero(np.bincount(topic_ids)).tolist()
        )

    def _without_purged(self, chunk: Chunk) -> Chunk:
        """What was purged since the rows were copied is left out: its deliveries may have been gone already, and an
        acked message must not look like a new one. Purging removes the row first."""
        rows, deliveries = len(chunk.rows), len(chunk.deliveries)
        assert len(chunk.ids) == rows == deliveries == len(chunk.groups), "its columns are equally long"
        is_there = self.messages.take(chunk.ids, "state") != MessageState.NONE
        if is_there.all():
            return chunk
        kept = np.flatnonzero(is_there)
        return Chunk(
            chunk.ids[kept], _taken(chunk.rows, kept), chunk.groups[kept], _taken(chunk.deliveries, kept)
        )

    def _of_topic(
        self, topic_id: int, part: Int64Array, ids: Int64Array, rows: Array, with_deliveries: bool
    ) -> list[tuple[Int64Array, int, Array]]:
        """(indexes of messages, group or 0, deliveries) of one topic's messages."""
        groups = self.groups_of[topic_id]
        if not groups:
            return [(part, 0, np.zeros(len(part), DELIVERY))]
        if not with_deliveries and not any(group.start_seq for group in groups):
            return [(part, group.group_id, np.zeros(len(part), DELIVERY)) for group in groups]
        seqs = self._seqs(topic_id, ids[part], rows[part])
        is_alone = np.ones(len(part), bool)
        found = []
        for group in groups:
            belongs = (seqs < 0) | (seqs >= group.start_seq)
            is_alone &= ~belongs
            found.append((part[belongs], group.group_id, self.deliveries(group, seqs[belongs])))
        if is_alone.any():
            found.append((part[is_alone], 0, np.zeros(int(is_alone.sum()), DELIVERY)))
        return found

    def _seqs(self, topic_id: int, ids: Int64Array, rows: Array) -> Int64Array:
        """The topic_seq of each message, -1 before it is in its topic. The arrivals have the last word: a row that is
        being put right now may have its new state and not yet its number."""
        arrivals = self._arrivals(topic_id)
        seqs = rows["topic_seq"].astype(np.int64)
        if not len(arrivals):
            return np.full(len(seqs), -1, np.int64)
        inside = (seqs >= 0) & (seqs < len(arrivals))
        is_there = arrivals.take(np.where(inside, seqs, 0), "id").astype(np.int64) == ids
        return np.where(inside & is_there, seqs, -1)

    def times_delivered(self, groups: npt.NDArray[Any], deliveries: Array) -> Int64Array:
        """How often messages were given to groups, by what these know of them."""
        epochs: Int64Array = deliveries["epoch"].astype(np.int64)
        times: Int64Array = np.maximum(epochs - self._fences[groups], 0)
        return times

    def deliveries(self, group: GroupRecord, seqs: Int64Array) -> Array:
        """What a group knows of messages, by their numbers in its topic; nothing of those that it was never given."""
        name, first = f"topics/{group.topic_id}-{group.group_id}.deliveries", self.description.first_seqs
        known = self._table(name, DELIVERY, DELIVERIES_MAGIC, first.get(group.topic_id, 0))
        deliveries = np.zeros(len(seqs), DELIVERY)
        touched = (seqs >= known.start) & (seqs < len(known))
        if touched.any():
            _words(deliveries)[touched] = _words(_taken(known.array, seqs[touched]))
        return deliveries


def _words(items: Array) -> Array:
    """Rows as plain words: numpy copies and takes those ten times as fast as records with fields."""
    return items.view("<u8").reshape(len(items), -1)


def _copied(items: Array) -> Array:
    return _words(items).copy().view(items.dtype)[:, 0]


def _taken(items: Array, index: Int64Array) -> Array:
    return _words(items).take(index, axis=0).view(items.dtype)[:, 0]
