"""Results as MessagePack: Arrow batches to rows of plain values, or as a stream of Arrow, as many as fit."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

_INT_RANGE = range(-(1 << 63), 1 << 64)
_ENCODE = msgspec.msgpack.Encoder().encode
_STREAM_MARGIN_BYTES = 64  # the end of the stream, and what is around it


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
    answer = _ENCODE({"columns": head, "rows": rows, "truncated": truncated})
    assert not rows or len(answer) <= max_bytes, "rows are taken as long as the answer fits"
    return answer


def pack_stream(schema: Any, batches: Iterable[Any], limit: int, max_bytes: int) -> bytes:
    """``{stream, truncated}``: an IPC stream of Arrow with the batches, or the parts of them, that fit into
    ``limit`` and ``max_bytes``."""
    schema = pa.schema([pa.field(field.name, _plain_type(field.type), field.nullable) for field in schema])
    left, truncated, sink = limit, False, io.BytesIO()
    max_bytes -= _STREAM_MARGIN_BYTES
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            plain = pa.record_batch([_decoded(column) for column in batch.columns], schema=schema)
            part = _fitting(plain.slice(0, left), max_bytes - sink.tell())
            if len(part):
                writer.write_batch(part)
            left -= len(part)
            if len(part) < len(plain):
                truncated = True
                break
    if sink.tell() > max_bytes + _STREAM_MARGIN_BYTES:
        raise NotRepresentable("The columns alone do not fit into an answer: ask for fewer.")
    return _ENCODE({"stream": sink.getvalue(), "truncated": truncated})


def _plain_type(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _decoded(column: Any) -> Any:
    """Each batch stands for itself: a dictionary would go before them, however few of its values are left."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _fitting(batch: Any, room_bytes: int) -> Any:
    """The rows of a batch that fit, or about half of those."""
    while len(batch) and pa.ipc.get_record_batch_size(batch) > room_bytes:
        batch = batch.slice(0, len(batch) // 2)
    return batch


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
