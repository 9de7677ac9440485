"""Results as MessagePack: Arrow batches to rows of plain values, as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

_INT_RANGE = range(-(1 << 63), 1 << 64)
_ENCODE = msgspec.msgpack.Encoder().encode


class NotRepresentable(Exception):
    """A result has a value that Python, and so the client, has no type for."""


def pack_result(columns: list[tuple[str, str]], batches: Iterable[Any], limit: int, max_bytes: int) -> bytes:
    """``{columns: [{name, type}], rows: [[…]], truncated}``; batches are read only as far as rows fit into ``limit``
    and ``max_bytes``."""
    head = [{"name": name, "type": kind} for name, kind in columns]
    rows: list[msgspec.Raw] = []
    left_bytes = max_bytes - len(_ENCODE(head)) - 64
    truncated = False
    for row in _rows(batches):
        packed = _ENCODE(row)
        left_bytes -= len(packed)
        if len(rows) >= limit or left_bytes < 0:
            truncated = True
            break
        rows.append(msgspec.Raw(packed))
    return _ENCODE({"columns": head, "rows": rows, "truncated": truncated})


def _rows(batches: Iterable[Any]) -> Iterable[list[Any]]:
    for batch in batches:
        columns = [
            _values(column, name) for column, name in zip(batch.columns, batch.schema.names, strict=True)
        ]
        yield from map(list, zip(*columns, strict=True))


def _values(column: Any, name: str) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise NotRepresentable(
            f"A value of column {name} is out of range ({error}): cast it to VARCHAR."
        ) from None
    convert = _converter(column.type)
    return values if convert is None else [convert(value) for value in values]


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    types = pa.types
    is_moment = types.is_timestamp(kind) and kind.tz is not None
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or is_moment:
        return None
    if types.is_string(kind) or types.is_binary(kind) or types.is_null(kind):
        return None
    return _plain


def _plain(value: Any) -> Any:
    """A value that MessagePack can say: nested ones stay nested, exact numbers and local times become text."""
    match value:
        case Decimal():
            whole = (
                int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else None
            )
            return whole if whole is not None and whole in _INT_RANGE else str(value)
        case datetime() if value.tzinfo is not None:
            return value
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return f"{value.total_seconds():g} s"
        case pa.MonthDayNano():
            return f"{value.months} months {value.days} days {value.nanoseconds / 1e9:g} s"
        case dict():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case None | bool() | int() | float() | str() | bytes():
            return value
    return str(value)
