"""What an executable message does when its turn has come, and how it lies in a row of the outbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tickwheel.client.checks import shown
from tickwheel.outbox.keys.encoding import (
    Key,
    bound_bytes,
    end_bytes,
    int64,
    key_bytes,
    value_bytes,
)
from tickwheel.outbox.keys.errors import BadOperation


@dataclass(frozen=True, slots=True)
class Put:
    """Gives a key a value."""

    key: Key
    value: bytes


@dataclass(frozen=True, slots=True)
class Increment:
    """Adds to the counter of a key; a missing key counts as 0."""

    key: Key
    by: int = 1


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a key, if it is there."""

    key: Key


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Deletes the keys from ``start`` up to ``end``, which itself stays; None: to the last key."""

    start: Key
    end: Key | None


@dataclass(frozen=True, slots=True)
class Account:
    """Adds to the stored accounting of a prefix, which ``KeySpace.accounted`` reads."""

    prefix: Key
    count: int = 0
    size_bytes: int = 0


Operation: TypeAlias = Put | Increment | Delete | DeleteRange | Account

_NAMES: Final[dict[type[Operation], str]] = {
    Put: "put",
    Increment: "increment",
    Delete: "delete",
    DeleteRange: "delete_range",
    Account: "account",
}


def columns_of(operation: Operation) -> dict[str, Any]:
    """The columns of an operation's row. Raises BadKey, BadValue, BadOperation, NotAnInteger, CounterOverflow."""
    row: dict[str, Any] = {"end_key": None, "value": None, "amount": None, "amount_bytes": None}
    match operation:
        case Put(key, value):
            row |= {"key": key_bytes(key), "value": value_bytes(value)}
        case Increment(key, by):
            row |= {"key": key_bytes(key), "amount": int64(by)}
        case Delete(key):
            row |= {"key": key_bytes(key)}
        case DeleteRange(start, end):
            row |= {"key": bound_bytes(start), "end_key": end_bytes(end)}
        case Account(prefix, count, size_bytes):
            row |= {"key": bound_bytes(prefix), "amount": int64(count), "amount_bytes": int64(size_bytes)}
        case _:
            raise BadOperation(f"{shown(operation)} is no operation.")
    return row | {"operation": _NAMES[type(operation)]}


def operation_of(row: Mapping[Any, Any]) -> Operation:
    """The operation that a row holds. Raises BadOperation for a row that this module did not write."""
    key, value, amount = row["key"], row["value"], row["amount"]
    match row["operation"]:
        case "put" if value is not None:
            return Put(bytes(key), bytes(value))
        case "increment" if amount is not None:
            return Increment(bytes(key), int(amount))
        case "delete":
            return Delete(bytes(key))
        case "delete_range":
            return DeleteRange(bytes(key), None if row["end_key"] is None else bytes(row["end_key"]))
        case "account" if amount is not None and row["amount_bytes"] is not None:
            return Account(bytes(key), int(amount), int(row["amount_bytes"]))
    raise BadOperation(f"{row['operation']!r} is no operation, or lacks what it needs.")
