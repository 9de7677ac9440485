"""``format("tickwheel")``: the thin classes that Spark asks for, over the pure parts beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from tickwheel.arrow.event_table import Offset, wanted_types
from tickwheel.arrow.options import ReadOptions, read_options
from tickwheel.spark.filters import take_filters
from tickwheel.spark.tables import tables_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class TickwheelSource(DataSource):
    """Reads messages and events from data directories or from a broker, and sends rows to a broker.
    docs/how-to/spark.md has the options and columns."""

    @classmethod
    def name(cls) -> str:
        return "tickwheel"

    def schema(self) -> str:
        columns = tables_of(read_options(self.options)).columns()
        return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        names = [field.name for field in schema.fields]
        return PushedTableReader(options, names) if takes_filters(options) else TableReader(options, names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return EventStreamReader(read_options(self.options), [field.name for field in schema.fields])

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tickwheel.spark.writing.sink import MessageWriter

        return MessageWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from tickwheel.spark.writing.sink import MessageStreamWriter

        return MessageStreamWriter(self.options, schema)


class TableReader(DataSourceReader):
    """A table, as it is where the query is planned."""

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        """``names``: of the columns that Spark was told."""
        self._options = options.of_columns(names)
        self._tables = tables_of(self._options)
        self._tables.look()
        self._predicates = list(options.filters)

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in self._tables.parts(self._predicates)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._tables.batches(partition.value, self._predicates)


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

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        if options.table != "events":
            raise SourceError(
                "Only events can be read as a stream.", advice='Add .option("table", "events").'
            )
        wanted_types(options)
        self._options = options.of_columns(names)
        self._tables = tables_of(self._options)
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:
        return self._tables.first_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.reportLatestOffset()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._tables.last_offset(start, self._target, rows)

    def reportLatestOffset(self) -> Offset:
        return self._tables.last_offset({}, None, None)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [InputPartition(part) for part in self._tables.parts_between(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._tables.batches(partition.value, [])
