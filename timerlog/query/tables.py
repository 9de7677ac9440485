"""What DuckDB scans: one topic's messages, or all, as an Arrow dataset that streams batches of the columns in use.

DuckDB hands a dataset the names of the columns that it needs and a filter that it leaves to it, so a query that
counts states touches neither keys nor bodies, and memory is bounded however many messages there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from timerlog.query.columns import TABLE_COLUMNS, TableColumns, needs_deliveries
from timerlog.readers.snapshot import Snapshot

SCHEMA = pa.schema([pa.field(name, kind) for name, kind in TABLE_COLUMNS.items()])


class MessageTable(ds.Dataset):
    """The messages of topic ``topic_id``; of all topics when it is None."""

    def __init__(self, snapshot: Snapshot, columns: TableColumns, topic_id: int | None) -> None:
        self.snapshot, self.columns, self.topic_id = snapshot, columns, topic_id

    @property
    def schema(self) -> Any:
        return SCHEMA

    def scanner(self, columns: list[str] | None = None, filter: Any = None) -> Scan:
        """One scan; ``filter`` is an Arrow expression, which may use other columns than those asked for."""
        return Scan(self, SCHEMA.names if columns is None else columns, filter)


class Scan:
    """A scan that has not begun."""

    def __init__(self, table: MessageTable, names: list[str], expression: Any) -> None:
        self._table, self._names, self._filter = table, names, expression
        self._schema = pa.schema([SCHEMA.field(name) for name in names])

    def to_reader(self) -> Any:
        """The batches, made one at a time as they are read."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _batches(self) -> Iterator[Any]:
        # An expression does not list its columns, but its text names them; a word too many costs little.
        text = "" if self._filter is None else str(self._filter)
        needed = [name for name in SCHEMA.names if name in self._names or name in text] or ["id"]
        with_deliveries = needs_deliveries(needed)
        for chunk in self._table.snapshot.chunks(self._table.topic_id, with_deliveries=with_deliveries):
            found = self._table.columns.table(chunk, needed)
            if self._filter is not None:
                found = found.filter(self._filter)
            if found.num_rows:
                yield from found.select(self._names).to_batches()
