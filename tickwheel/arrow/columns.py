"""The columns of the tables ``messages`` and ``events``, in the order of ``select *``, and their types."""

from __future__ import annotations

from typing import Any, Final, Literal

import pyarrow as pa

TableName = Literal["messages", "events"]

#: Type of each column, as Spark's SQL spells it.
MESSAGE_COLUMNS: Final[dict[str, str]] = {
    "id": "bigint",
    "topic": "string",
    "shard": "string",
    "group": "string",
    "key": "string",
    "order_key": "string",
    "priority": "int",
    "state": "string",
    "epoch": "bigint",
    "attempts": "bigint",
    "time_next": "timestamp",
    "time_acked": "timestamp",
    "time_created": "timestamp",
    "deliver_at": "timestamp",
    "headers": "string",
    "body": "binary",
    "body_bytes": "bigint",
    "dead_reason": "string",
    "directory": "string",
}
EVENT_COLUMNS: Final[dict[str, str]] = {
    "position": "bigint",
    "place": "int",
    "event": "string",
    "time": "timestamp",
    "time_next": "timestamp",
    "topic": "string",
    "shard": "string",
    "group": "string",
    "id": "bigint",
    "epoch": "bigint",
    "error": "string",
    "key": "string",
    "priority": "int",
    "deliver_at": "timestamp",
    "directory": "string",
}
COLUMNS: Final[dict[TableName, dict[str, str]]] = {"messages": MESSAGE_COLUMNS, "events": EVENT_COLUMNS}

ARROW_TYPES: Final = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def arrow_schema(columns: dict[str, str]) -> Any:
    """The schema of record batches. ``columns``: names and Spark types."""
    return pa.schema([pa.field(name, ARROW_TYPES[kind]) for name, kind in columns.items()])
