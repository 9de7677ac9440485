"""Inboxes and outboxes as the user sees them: send, execute, reap, what failed, and the accounting of a range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from tickwheel.outbox.database import in_parts
from tickwheel.outbox.keys.errors import BadOperation
from tickwheel.outbox.keys.operations import Operation, operation_of
from tickwheel.outbox.keys.tables import Tables, within

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Row

_CHUNK: Final = 500
"""Rows that one statement names."""
_OPERATION_COLUMNS: Final = ("operation", "key", "end_key", "value", "amount", "amount_bytes")


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """A message that was reaped. ``timestamp_ns``: when it was sent, by the database's clock."""

    key: bytes
    value: bytes
    sender: bytes
    timestamp_ns: int
    sequence: int


@dataclass(frozen=True, slots=True)
class FailedOperation:
    """An operation that could not be executed, and why. ``operation`` is None if its row holds none."""

    sequence: int
    operation: Operation | None
    sender: bytes
    timestamp_ns: int
    failed_ns: int
    error_code: str
    error: str


@dataclass(frozen=True, slots=True)
class Accounting:
    """What a range of keys holds. Bytes of messages are those of their values.

    Messages in an outbox are counted by their sender's key, those in an inbox by their own.
    """

    key_count: int
    key_bytes: int
    value_bytes: int
    inbox_count: int
    inbox_bytes: int
    deliverable_count: int
    deliverable_bytes: int
    executable_count: int
    executable_bytes: int


@dataclass(frozen=True, slots=True)
class Accounted:
    """The stored accounting of a prefix: the sum of all ``Account`` operations that were executed."""

    prefix: bytes
    count: int
    size_bytes: int


# -- sending --


def send(connection: Connection, tables: Tables, key: bytes, value: bytes, sender: bytes) -> None:
    """Puts a deliverable message into the sender's outbox.

    The timestamp is the database's own, so that what depends on a message comes after it, whichever process sent it.
    """
    connection.execute(
        sa.insert(tables.deliverable).values(timestamp_ns=tables.now()),
        {"sender": sender, "recipient": key, "value": value},
    )


def execute(connection: Connection, tables: Tables, columns: dict[str, Any], sender: bytes) -> None:
    """Puts an executable message into the sender's outbox."""
    connection.execute(
        sa.insert(tables.executable).values(timestamp_ns=tables.now()), {"sender": sender, **columns}
    )


# -- reaping --


def reap(connection: Connection, tables: Tables, key: bytes, limit: int) -> list[InboxMessage]:
    """Takes the first messages out of an inbox.

    A transaction that reaps an inbox from which another has reaped waits for that one's end. Passing over its
    messages (SKIP LOCKED) would be faster and wrong: if it rolls back, they come back, and are then processed after
    messages that were sent later. Different inboxes do not wait for each other.
    """
    if tables.kind == "sqlite":
        rows = _reap_at_once(connection, tables, key, limit)
    elif tables.kind == "postgresql":
        rows = _lock_and_delete(connection, tables, key, limit)
    else:
        rows = _delete_one_by_one(connection, tables, key, limit)
    ordered = sorted(rows, key=lambda row: (row.timestamp_ns, row.sequence, bytes(row.sender)))
    return [
        InboxMessage(key, bytes(row.value), bytes(row.sender), row.timestamp_ns, row.sequence)
        for row in ordered
    ]


def _reap_at_once(connection: Connection, tables: Tables, key: bytes, limit: int) -> Sequence[Row[Any]]:
    """One statement: between a SELECT and a DELETE, another could write (the driver begins at the first change)."""
    inbox = tables.inbox
    head = sa.select(inbox.c.timestamp_ns, inbox.c.sequence, inbox.c.sender).where(inbox.c.key == key)
    head = head.order_by(inbox.c.timestamp_ns, inbox.c.sequence, inbox.c.sender).limit(limit)
    place = sa.tuple_(inbox.c.timestamp_ns, inbox.c.sequence, inbox.c.sender)
    deletion = sa.delete(inbox).where(inbox.c.key == key, place.in_(head)).returning(inbox)
    return connection.execute(deletion).all()


def _lock_and_delete(connection: Connection, tables: Tables, key: bytes, limit: int) -> Sequence[Row[Any]]:
    """PostgreSQL locks before it counts to the limit, and leaves out what was deleted while it waited."""
    inbox = tables.inbox
    head = sa.select(inbox).where(inbox.c.key == key)
    head = head.order_by(inbox.c.timestamp_ns, inbox.c.sequence, inbox.c.sender).limit(limit)
    rows = connection.execute(head.with_for_update()).all()
    place = sa.tuple_(inbox.c.timestamp_ns, inbox.c.sequence, inbox.c.sender)
    for chunk in in_parts(rows, _CHUNK):
        chosen = [(row.timestamp_ns, row.sequence, row.sender) for row in chunk]
        connection.execute(sa.delete(inbox).where(inbox.c.key == key, place.in_(chosen)))
    return rows


def _delete_one_by_one(connection: Connection, tables: Tables, key: bytes, limit: int) -> Sequence[Row[Any]]:
    """Looks without locks, and then deletes row by row: the transaction that deletes a row has it: rows never change.

    Any other statement would, under InnoDB's default isolation (REPEATABLE READ), also lock the gaps in which new
    messages arrive: the dispatcher would wait for as long as the user's transaction takes.
    """
    inbox = tables.inbox
    place = (inbox.c.timestamp_ns, inbox.c.sequence, inbox.c.sender)
    deletion = sa.delete(inbox).where(
        inbox.c.key == key,
        *(column == sa.bindparam(f"the_{column.name}", type_=column.type) for column in place),
    )
    found: list[Row[Any]] = []
    passed: Row[Any] | None = None
    while len(found) < limit:
        wanted = limit - len(found)
        head = sa.select(inbox).where(inbox.c.key == key).order_by(*place).limit(wanted)
        if passed is not None:
            head = head.where(_after(tables, passed))
        candidates = connection.execute(head).all()
        for row in candidates:
            at = {
                "the_timestamp_ns": row.timestamp_ns,
                "the_sequence": row.sequence,
                "the_sender": row.sender,
            }
            if connection.execute(deletion, at).rowcount:
                found.append(row)
        if len(candidates) < wanted:
            break
        passed = candidates[-1]  # under REPEATABLE READ, what others have deleted would be found again
    return found


def _after(tables: Tables, row: Row[Any]) -> sa.ColumnElement[bool]:
    c = tables.inbox.c
    return sa.or_(
        c.timestamp_ns > row.timestamp_ns,
        sa.and_(
            c.timestamp_ns == row.timestamp_ns,
            sa.or_(
                c.sequence > row.sequence,
                sa.and_(c.sequence == row.sequence, c.sender > row.sender),
            ),
        ),
    )


def waiting_keys(
    connection: Connection, tables: Tables, start: bytes, end: bytes | None, limit: int
) -> list[bytes]:
    """The first keys of a range whose inboxes are not empty."""
    inbox = tables.inbox
    chosen = sa.select(inbox.c.key).where(within(inbox.c.key, start, end)).distinct()
    return [bytes(key) for key in connection.scalars(chosen.order_by(inbox.c.key).limit(limit))]


# -- what failed --


def failed(connection: Connection, tables: Tables, limit: int) -> list[FailedOperation]:
    """The operations that could not be executed, in the order in which they were sent."""
    table = tables.failed
    rows = connection.execute(sa.select(table).order_by(table.c.timestamp_ns, table.c.sequence).limit(limit))
    return [_failed_operation(row) for row in rows]


def _failed_operation(row: Row[Any]) -> FailedOperation:
    try:
        operation = operation_of(row._mapping)
    except BadOperation:
        operation = None
    return FailedOperation(
        sequence=row.sequence,
        operation=operation,
        sender=bytes(row.sender),
        timestamp_ns=row.timestamp_ns,
        failed_ns=row.failed_ns,
        error_code=row.error_code,
        error=row.error,
    )


def retry_failed(connection: Connection, tables: Tables, sequences: Sequence[int] | None) -> int:
    """Puts failed operations at the end of their senders' outboxes: what came after them has long been executed."""
    table = tables.failed
    rows: list[Row[Any]] = []
    # They are deleted first, so that one of two transactions retries them.
    for chosen in _chosen(tables, sequences):
        if tables.kind == "sqlite":
            rows += connection.execute(sa.delete(table).where(chosen).returning(table)).all()
        else:
            rows += connection.execute(sa.select(table).where(chosen).with_for_update()).all()
    if tables.kind != "sqlite":
        drop_failed(connection, tables, [row.sequence for row in rows])
    for row in sorted(rows, key=lambda row: (row.timestamp_ns, row.sequence)):
        columns = {name: row._mapping[name] for name in _OPERATION_COLUMNS}
        execute(connection, tables, columns, bytes(row.sender))
    return len(rows)


def drop_failed(connection: Connection, tables: Tables, sequences: Sequence[int] | None) -> int:
    """Forgets failed operations."""
    table = tables.failed
    return sum(
        connection.execute(sa.delete(table).where(chosen)).rowcount for chosen in _chosen(tables, sequences)
    )


def _chosen(tables: Tables, sequences: Sequence[int] | None) -> Iterator[sa.ColumnElement[bool]]:
    """All, or those that are named: as many at a time as a statement can take."""
    if sequences is None:
        yield sa.true()
        return
    for part in in_parts(list(dict.fromkeys(sequences))):
        yield tables.failed.c.sequence.in_(part)


# -- accounting --


def accounting(connection: Connection, tables: Tables, start: bytes, end: bytes | None) -> Accounting:
    """Counts what is in a range, now, in this transaction.

    Nothing is kept that could be wrong. A stored sum that is always right would be one row that every transaction
    in the range locks until it commits; for sums that may be a moment late there is ``Account``, whose row only the
    executor changes.
    """
    data, inbox = tables.data.c, tables.inbox.c
    deliverable, executable = tables.deliverable.c, tables.executable.c
    zero = sa.literal(0)
    sums = [
        _sums(connection, within(data.key, start, end), tables.size(data.key), tables.size(data.value)),
        _sums(connection, within(inbox.key, start, end), tables.size(inbox.value), zero),
        _sums(connection, within(deliverable.sender, start, end), tables.size(deliverable.value), zero),
        _sums(connection, within(executable.sender, start, end), tables.size(executable.value), zero),
    ]
    (keys, key_bytes, value_bytes), *queues = sums
    flat = [number for count, size, _ in queues for number in (count, size)]
    return Accounting(keys, key_bytes, value_bytes, *flat)


def _sums(
    connection: Connection,
    where: sa.ColumnElement[bool],
    first: sa.ColumnElement[int],
    second: sa.ColumnElement[int],
) -> tuple[int, int, int]:
    columns = (
        sa.func.count(),
        sa.func.coalesce(sa.func.sum(first), 0),
        sa.func.coalesce(sa.func.sum(second), 0),
    )
    count, one, two = connection.execute(sa.select(*columns).where(where)).one()
    return int(count), int(one), int(two)


def accounted(connection: Connection, tables: Tables, prefix: bytes) -> Accounted:
    """The stored accounting of a prefix."""
    table = tables.accounting
    row = connection.execute(sa.select(table).where(table.c.prefix == prefix)).one_or_none()
    return Accounted(prefix, row.item_count, row.size_bytes) if row is not None else Accounted(prefix, 0, 0)
