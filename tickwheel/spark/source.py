"""``format("tickwheel")``: the thin classes that Spark asks for, over the pure parts beside them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tickwheel.arrow.errors import SourceError
from tickwheel.arrow.event_table import (
    EventsPart,
    Offset,
    all_events,
    current_offset,
    read_event_batches,
    split_events,
    starting_offset,
    wanted_types,
)
from tickwheel.arrow.message_table import MessagesPart, read_messages, split_messages
from tickwheel.arrow.options import ReadOptions, read_options
from tickwheel.arrow.places import describe as describe_place
from tickwheel.spark.filters import take_filters
from timerlog.readers.describe import Offline

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class TickwheelSource(DataSource):
    """Reads messages and events from data directories, and sends rows to a broker. docs/how-to/spark.md has the options
    and columns."""

    @classmethod
    def name(cls) -> str:
        return "tickwheel"

    def schema(self) -> str:
        options = read_options(self.options)
        return ", ".join(f"`{name}` {kind}" for name, kind in options.columns.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        return PushedTableReader(options) if takes_filters(options) else TableReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return EventStreamReader(read_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tickwheel.spark.writing.sink import MessageWriter

        return MessageWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from tickwheel.spark.writing.sink import MessageStreamWriter

        return MessageStreamWriter(self.options, schema)


def describe(options: ReadOptions) -> list[Offline]:
    """The directories as they are now. Raises ``SourceError``."""
    now_ms = time.time_ns() // 1_000_000
    return [
        describe_place(directory, now_ms, committed=options.committed) for directory in options.directories
    ]


class _Partition(InputPartition):
    """A part, and, where the reader does not know it yet, the directory it is a part of."""

    def __init__(self, value: MessagesPart | EventsPart, offline: Offline | None = None) -> None:
        super().__init__(value)
        self.offline = offline


class TableReader(DataSourceReader):
    """A table, as it is where the query is planned: the directories are described once, so that all tasks see the
    same."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._found = describe(options)
        self._predicates = list(options.filters)

    def partitions(self) -> list[InputPartition]:
        return [_Partition(part) for part in self._parts()]

    def _parts(self) -> Sequence[MessagesPart | EventsPart]:
        """Without any part Spark would ask for one of its own making."""
        if self._options.table == "events":
            first = self._found[0].first_position
            return all_events(self._found) or [EventsPart(0, first, first)]
        # Of the machine that plans, which on local[*] is the one that reads.
        cores = len(os.sched_getaffinity(0))
        parts = split_messages(self._found, self._options.rows_per_partition, self._predicates, cores)
        return parts or [MessagesPart(0, 1, 1)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        part = partition.value
        offline, columns = self._found[part.directory], list(self._options.columns)
        if isinstance(part, EventsPart):
            wanted = wanted_types(self._options)
            return read_event_batches(offline, part, columns, self._predicates, wanted)
        return read_messages(offline, part, columns, self._predicates)


class PushedTableReader(TableReader):
    """A table of which Spark says what it will filter."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        taken, left = take_filters(filters, self._options.columns)
        self._predicates = [*self._options.filters, *taken]
        return left


def takes_filters(options: ReadOptions) -> bool:
    """Whether Spark's filters are taken.

    Spark 4.3.0 keeps what a scan has planned in the relation, which all uses of a DataFrame share: of
    ``df.where(a).union(df.where(b))`` both parts would be read with the filters of the last, and wrong rows would come
    out. The version that can push limits, too, keeps it in the scan.
    """
    if options.push_filters is None:
        return hasattr(DataSourceReader, "pushLimit")
    return options.push_filters


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Events as they happen."""

    def __init__(self, options: ReadOptions) -> None:
        if options.table != "events":
            raise SourceError(
                "Only events can be read as a stream.", advice='Add .option("table", "events").'
            )
        wanted_types(options)
        self._options = options
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:
        return starting_offset(self._options, describe(self._options))

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = current_offset(self._options, describe(self._options), {}, None, None)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return current_offset(self._options, describe(self._options), start, self._target, rows)

    def reportLatestOffset(self) -> Offset:
        return current_offset(self._options, describe(self._options), {}, None, None)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        found = describe(self._options)
        parts = split_events(found, start, end, self._options)
        return [_Partition(part, found[part.directory]) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _Partition)
        assert partition.offline is not None
        wanted = wanted_types(self._options)
        return read_event_batches(partition.offline, partition.value, list(self._options.columns), [], wanted)
