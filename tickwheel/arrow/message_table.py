"""Reads messages from data directories as Arrow batches: what a task of ``format("tickwheel")`` does, and a ticket of
``tickwheel flight``.

A directory is described once, where the query is planned. A task gets that description, a range of ids and what to
filter; it maps the files and filters in three steps, so that nothing is made for rows that are not wanted: by the
message's row, by what its groups did with it, by what lies in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tickwheel.arrow.columns import ARROW_TYPES, MESSAGE_COLUMNS
from tickwheel.arrow.predicates import Mask, Predicate
from timerlog.layout import DELIVERY, MESSAGE_HEAD_BYTES, Array, Int64Array
from timerlog.query.columns import TABLE_COLUMNS, LogColumns, TableColumns, needs_deliveries
from timerlog.readers.describe import Offline
from timerlog.readers.snapshot import Chunk, Snapshot
from timerlog.tables.tables import parts, spans

LOG_COLUMNS: Final = ("key", "order_key", "headers", "body", "body_bytes", "dead_reason")
#: So much of a batch that it stays in a processor's cache from here to Spark.
CHUNK_ROWS: Final = 32_768
#: Spark takes a tenth of a second for a task, in which a million rows are read; one that fails is done again.
_LEAST_ROWS: Final = 1_000_000
_MOST_ROWS: Final = 5_000_000
#: What is read from the log for one batch at most, so that a batch of large bodies fits into memory.
BATCH_BYTES: Final = 32 * 1024 * 1024
#: A scan says at least so often that nothing passed the filters.
_STEP_CHUNKS: Final = 8


@dataclass(frozen=True, slots=True)
class MessagesPart:
    """What one task reads: ids from ``first_id`` up to, but not, ``end_id`` of one of the directories."""

    directory: int
    first_id: int
    end_id: int


def split_messages(
    found: list[Offline], rows: int | None, predicates: list[Predicate], cores: int
) -> list[MessagesPart]:
    """The parts of some directories, of at most so many rows of the MessageTable each; an id that is asked for spares
    the others, and nothing is read where no message has an id, or none any more. Without ``rows`` there is work for
    each of the ``cores``."""
    if rows is None:
        rows = min(max(-(-count_rows(found, predicates) // cores), _LEAST_ROWS), _MOST_ROWS)
    return [
        MessagesPart(number, *part)
        for number, offline in enumerate(found)
        for part in parts(offline.description.gaps, *_id_range(predicates, offline), rows)
    ]


def count_rows(found: list[Offline], predicates: list[Predicate]) -> int:
    """How many rows of the MessageTable some directories have to be read for."""
    return sum(
        end - first
        for offline in found
        for first, end in spans(
            offline.description.gaps, *_id_range(predicates, offline), offline.description.next_id
        )
    )


def _id_range(predicates: list[Predicate], offline: Offline) -> tuple[int, int]:
    first, end = max(1, offline.description.first_id), offline.description.next_id
    for one in predicates:
        if one.column != "id" or one.negated:
            continue
        if one.function in ("equal", "greater_equal", "greater"):
            first = max(first, one.value + (one.function == "greater"))
        if one.function in ("equal", "less_equal", "less"):
            end = min(end, one.value + (one.function != "less"))
    return first, end


def read_messages(
    offline: Offline, part: MessagesPart, columns: list[str], predicates: list[Predicate]
) -> Iterator[Any]:
    """Record batches of the ``columns``, in their order. Raises ``StoreError``."""
    with closing(Snapshot(offline.description)) as snapshot:
        ids = range(part.first_id, part.end_id)
        for batch in scan_messages(snapshot, ids, columns, predicates):
            if batch is not None:
                yield batch


def scan_messages(
    snapshot: Snapshot,
    ids: range,
    columns: list[str],
    predicates: list[Predicate],
    *,
    chunk_rows: int = CHUNK_ROWS,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[Any]:
    """The same of a snapshot that is open already. A batch has ``chunk_rows`` rows at most, and ``batch_bytes`` read
    from the log, unless a single message has more. None where many rows were read and no row passed: who reads for
    several readers lets the next reader go on."""
    return _Scan(snapshot, columns, predicates, batch_bytes).batches(ids, chunk_rows)


class _Scan:
    def __init__(
        self, snapshot: Snapshot, columns: list[str], predicates: list[Predicate], batch_bytes: int
    ) -> None:
        self._snapshot, self._columns = snapshot, columns
        self._batch_bytes = batch_bytes
        self._directory = snapshot.description.directory
        self._table, self._log = TableColumns(snapshot), LogColumns(snapshot)
        self._by_row = [one for one in predicates if _is_of_row(one.column)]
        self._by_delivery = [
            one for one in predicates if one.column in TABLE_COLUMNS and not _is_of_row(one.column)
        ]
        self._by_log = [one for one in predicates if one.column in LOG_COLUMNS]
        self._by_directory = [one for one in predicates if one.column == "directory"]
        self._needed = [
            name
            for name in TABLE_COLUMNS
            if name in columns or name in {one.column for one in self._by_delivery}
        ]
        self._of_log = [name for name in LOG_COLUMNS if name in columns]

    def batches(self, ids: range, chunk_rows: int) -> Iterator[Any]:
        directory = pa.array([self._directory])
        if not all(one.passes(directory)[0] for one in self._by_directory):
            return
        description, step_rows = self._snapshot.description, _STEP_CHUNKS * chunk_rows
        first_id, end_id = max(ids.start, description.first_id), min(ids.stop, len(self._snapshot.messages))
        for step in spans(description.gaps, first_id, end_id, step_rows):
            chunks = self._snapshot.chunks(
                None,
                with_deliveries=needs_deliveries(self._needed),
                chunk_rows=chunk_rows,
                ids=range(*step),
                judge=self._judge if self._by_row else None,
            )
            is_empty = True
            for chunk in chunks:
                table = self._table.table(chunk, self._needed)
                passed = _all_pass(self._by_delivery, table.num_rows or len(chunk.ids), table.column)
                for batch in self._with_log(chunk, table, passed):
                    yield batch
                    is_empty = False
            if is_empty:
                yield None

    def _judge(self, ids: Int64Array, rows: Array) -> Mask:
        alone = Chunk(ids, rows, np.zeros(len(ids), np.uint32), np.empty(0, DELIVERY))
        table = self._table.table(alone, sorted({one.column for one in self._by_row}))
        return _all_pass(self._by_row, len(ids), lambda name: table.column(name))

    def _with_log(self, chunk: Chunk, table: Any, passed: Mask) -> Iterator[Any]:
        kept = np.flatnonzero(passed)
        if not len(kept):
            return
        table, ids = _taken(table, kept), chunk.ids[kept]
        if not self._by_log and not self._of_log:
            yield self._batch(len(ids), table, {})
            return
        sizes = np.cumsum(chunk.rows["record_bytes"][kept].astype(np.int64) - MESSAGE_HEAD_BYTES)
        start = 0
        for stop in [*(np.flatnonzero(np.diff(sizes // self._batch_bytes)) + 1).tolist(), len(ids)]:
            yield from self._log_batch(ids[start:stop], table.slice(start, stop - start))
            start = stop

    def _log_batch(self, ids: Int64Array, table: Any) -> Iterator[Any]:
        passed = _all_pass(self._by_log, len(ids), lambda name: getattr(self._log, name)(ids))
        kept = np.flatnonzero(passed)
        if not len(kept):
            return
        table, ids = _taken(table, kept), ids[kept]
        yield self._batch(len(ids), table, {name: getattr(self._log, name)(ids) for name in self._of_log})

    def _batch(self, rows: int, table: Any, of_log: dict[str, Any]) -> Any:
        arrays = []
        for name in self._columns:
            if name == "directory":
                arrays.append(pa.repeat(self._directory, rows))
            else:
                arrays.append(for_spark(of_log[name] if name in of_log else table.column(name)))
        return pa.RecordBatch.from_arrays(arrays, names=self._columns)


def _taken(table: Any, kept: Int64Array) -> Any:
    """Some rows of a table, which may have no columns at all."""
    return table if len(kept) == table.num_rows or not table.num_columns else table.take(pa.array(kept))


_OF_ROW: Final = frozenset({"id", "topic", "shard", "priority", "time_created", "deliver_at"})
assert set(MESSAGE_COLUMNS) == {*TABLE_COLUMNS, *LOG_COLUMNS, "directory"}


def _is_of_row(column: str) -> bool:
    """Whether the message's row alone says it, whatever its groups did."""
    return column in _OF_ROW


def _all_pass(predicates: list[Predicate], rows: int, column: Any) -> Mask:
    passed = np.ones(rows, bool)
    for one in predicates:
        passed &= one.passes(_whole(column(one.column)))
    return passed


def _whole(column: Any) -> Any:
    """One array of what may be a column in pieces."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def for_spark(column: Any) -> Any:
    """The same values in a type that Spark takes: names as texts, times in microseconds."""
    array = _whole(column)
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    return array.cast(ARROW_TYPES["timestamp"]) if pa.types.is_timestamp(array.type) else array
