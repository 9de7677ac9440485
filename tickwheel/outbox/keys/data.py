"""The keys and values: what the user reads and changes on their own connection, and how a batch is executed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from tickwheel.outbox.database import in_parts
from tickwheel.outbox.errors import OutboxError
from tickwheel.outbox.keys.encoding import added, decode_integer, encode_integer
from tickwheel.outbox.keys.operations import Account, Delete, DeleteRange, Increment, Operation, Put
from tickwheel.outbox.keys.tables import Tables, within

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_CHUNK: Final = 500
"""Keys in one statement."""


def put(connection: Connection, tables: Tables, key: bytes, value: bytes) -> None:
    """Gives the key the value."""
    put_all(connection, tables, [(key, value)])


def put_all(connection: Connection, tables: Tables, items: Iterable[tuple[bytes, bytes]]) -> None:
    """Gives keys their values, in the order of keys: others that lock several at once do so in the same order."""
    rows = [{"key": key, "value": value} for key, value in sorted(items)]
    if rows:
        connection.execute(tables.upsert(tables.data, lambda new: {"value": new.value}), rows)


def get(connection: Connection, tables: Tables, key: bytes) -> bytes | None:
    """The key's value."""
    value = connection.scalar(sa.select(tables.data.c.value).where(tables.data.c.key == key))
    return None if value is None else bytes(value)


def increment(connection: Connection, tables: Tables, key: bytes, by: int) -> int:
    """Adds to the key's counter, and returns the sum. Raises NotAnInteger, CounterOverflow."""
    value = locked_counters(connection, tables, [key])[key]
    total = added(key, decode_integer(key, value), by)
    connection.execute(
        sa.update(tables.data).where(tables.data.c.key == key).values(value=encode_integer(total))
    )
    return total


def locked_counters(connection: Connection, tables: Tables, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """The values of keys, locked until the transaction ends; a missing key is made, as 0.

    A missing row cannot be locked, and what another transaction puts there meanwhile would be overwritten; so it is
    made first. Writing first also takes SQLite's lock before anything is read, and keeps MariaDB from locking gaps.
    """
    found: dict[bytes, bytes] = {}
    if tables.kind == "postgresql":  # where a change of nothing leaves a dead row behind
        found = _read_locked(connection, tables, keys)
    missing = sorted(set(keys) - found.keys())
    if missing:
        rows = [{"key": key, "value": b"0"} for key in missing]
        connection.execute(tables.insert_or_lock(tables.data), rows)
        found |= _read_locked(connection, tables, missing)
    return found


def _read_locked(connection: Connection, tables: Tables, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    data, ordered = tables.data, sorted(set(keys))
    found: dict[bytes, bytes] = {}
    for chunk in in_parts(ordered, _CHUNK):
        chosen = sa.select(data.c.key, data.c.value).where(data.c.key.in_(chunk))
        rows = connection.execute(chosen.order_by(data.c.key).with_for_update())
        found.update((bytes(key), bytes(value)) for key, value in rows)
    return found


def delete(connection: Connection, tables: Tables, key: bytes) -> bool:
    """Deletes the key, and returns whether it was there."""
    return connection.execute(sa.delete(tables.data).where(tables.data.c.key == key)).rowcount > 0


def delete_range(connection: Connection, tables: Tables, start: bytes, end: bytes | None) -> int:
    """Deletes the keys of a range, and returns how many there were."""
    return connection.execute(sa.delete(tables.data).where(within(tables.data.c.key, start, end))).rowcount


def scan(
    connection: Connection, tables: Tables, start: bytes, end: bytes | None, limit: int
) -> list[tuple[bytes, bytes]]:
    """The first keys of a range, with their values."""
    data = tables.data
    chosen = sa.select(data.c.key, data.c.value).where(within(data.c.key, start, end))
    rows = connection.execute(chosen.order_by(data.c.key).limit(limit))
    return [(bytes(key), bytes(value)) for key, value in rows]


# -- executing a batch --


@dataclass(slots=True)
class Batch:
    """Executes operations as if one after the other, with few statements.

    Between two deletions of ranges, the end of all changes to a key is worked out here and written once: a counter
    that a thousand operations increment is read once and written once. Failed operations change nothing.
    """

    connection: Connection
    tables: Tables
    failed: dict[int, OutboxError] = field(default_factory=dict)
    """The errors of those that could not be executed, by sequence number."""

    def execute(self, operations: Sequence[tuple[int, Operation]]) -> None:
        """Executes them in order. Raises only what ends the transaction."""
        group: list[tuple[int, Put | Increment | Delete]] = []
        accounts: list[tuple[int, Account]] = []
        for sequence, operation in operations:
            match operation:
                case DeleteRange(start, end):
                    self._change(group)
                    group = []
                    assert isinstance(start, bytes)
                    assert not isinstance(end, str)
                    delete_range(self.connection, self.tables, start, end)
                case Account():
                    accounts.append((sequence, operation))
                case _:
                    group.append((sequence, operation))
        self._change(group)
        self._account(accounts)

    def _change(self, group: Sequence[tuple[int, Put | Increment | Delete]]) -> None:
        firsts: dict[bytes, Operation] = {}
        for _, operation in group:
            firsts.setdefault(_raw(operation.key), operation)
        counters = [key for key, first in firsts.items() if isinstance(first, Increment)]
        values: dict[bytes, bytes | None] = {}
        if counters:
            values.update(locked_counters(self.connection, self.tables, counters))
        changed: set[bytes] = set()
        for sequence, operation in group:
            key = _raw(operation.key)
            try:
                values[key] = _result(key, values.get(key), operation)
                changed.add(key)
            except OutboxError as error:
                self.failed[sequence] = error
        put_all(
            self.connection,
            self.tables,
            [(key, value) for key in changed if (value := values[key]) is not None],
        )
        gone = sorted(key for key in changed if values[key] is None)
        for chunk in in_parts(gone, _CHUNK):
            self.connection.execute(sa.delete(self.tables.data).where(self.tables.data.c.key.in_(chunk)))

    def _account(self, accounts: Sequence[tuple[int, Account]]) -> None:
        if not accounts:
            return
        table = self.tables.accounting
        prefixes = sorted({_raw(operation.prefix) for _, operation in accounts})
        empty = [{"prefix": prefix, "item_count": 0, "size_bytes": 0} for prefix in prefixes]
        self.connection.execute(self.tables.insert_or_lock(table), empty)
        sums: dict[bytes, tuple[int, int]] = {}
        for chunk in in_parts(prefixes, _CHUNK):
            chosen = table.c.prefix.in_(chunk)
            rows = self.connection.execute(sa.select(table).where(chosen).with_for_update())
            sums |= {bytes(prefix): (count, size) for prefix, count, size in rows}
        for sequence, operation in accounts:
            prefix = _raw(operation.prefix)
            count, size_bytes = sums[prefix]
            try:
                sums[prefix] = (
                    added(prefix, count, operation.count),
                    added(prefix, size_bytes, operation.size_bytes),
                )
            except OutboxError as error:
                self.failed[sequence] = error
        rows_now = [
            {"prefix": prefix, "item_count": sums[prefix][0], "size_bytes": sums[prefix][1]}
            for prefix in prefixes
        ]
        change = self.tables.upsert(
            table, lambda new: {"item_count": new.item_count, "size_bytes": new.size_bytes}
        )
        self.connection.execute(change, rows_now)


def _result(key: bytes, value: bytes | None, operation: Put | Increment | Delete) -> bytes | None:
    """The value of a key after an operation. Raises NotAnInteger, CounterOverflow."""
    match operation:
        case Put(_, new):
            return new
        case Delete():
            return None
        case Increment(_, by):
            number = 0 if value is None else decode_integer(key, value)
            return encode_integer(added(key, number, by))


def _raw(key: bytes | str) -> bytes:
    assert isinstance(key, bytes)  # as operation_of gives it
    return key
