"""Rows of a DataFrame as dicts of plain values, to compare with what a store's tables say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plain(value: Any) -> Any:
    """Times as epoch milliseconds."""
    if isinstance(value, datetime):
        return round(value.astimezone(UTC).timestamp() * 1_000)
    return bytes(value) if isinstance(value, bytearray) else value


def rows_of(frame: DataFrame, *order: str) -> list[dict[str, Any]]:
    """In the order of some columns."""
    rows = [{name: plain(value) for name, value in row.asDict().items()} for row in frame.collect()]
    return sorted(rows, key=lambda row: tuple(str(row[name]) for name in order)) if order else rows
