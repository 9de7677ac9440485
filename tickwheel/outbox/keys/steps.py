"""One batch of the dispatcher or the executor: one function, one transaction, exactly once.

A batch begins with ``fence``. Then the rows of the range's outbox belong to this transaction alone, and are moved or
executed and deleted together. There is no cursor: a transaction that commits late leaves a row with an early
timestamp, which the next batch finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from tickwheel.outbox.database import in_parts
from tickwheel.outbox.errors import OutboxError
from tickwheel.outbox.keys.data import Batch
from tickwheel.outbox.keys.errors import BadOperation
from tickwheel.outbox.keys.leases import Range, Worker, fence
from tickwheel.outbox.keys.operations import Operation, operation_of
from tickwheel.outbox.keys.tables import Tables, within

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Row

BATCH_BYTES: Final = 8 << 20
"""Values of about this size are moved or read at once."""
_ERROR_CHARS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Done:
    """What a batch did: rows taken out of the outbox, how many of them failed, and whether there may be more."""

    count: int
    failed: int = 0
    more: bool = False


def dispatch_batch(connection: Connection, tables: Tables, worker: Worker, held: Range, limit: int) -> Done:
    """Moves the first messages of a range's outbox into the inboxes of their recipients. Raises LeaseLost."""
    fence(connection, tables, worker, held)
    outbox, inbox = tables.deliverable, tables.inbox
    sequences, more = _head(connection, tables, outbox, held, limit)
    if not sequences:
        return Done(0)
    c = outbox.c
    source = sa.select(c.recipient, c.timestamp_ns, c.sequence, c.sender, c.value)
    into = ["key", "timestamp_ns", "sequence", "sender", "value"]
    for part in in_parts(sequences):
        connection.execute(sa.insert(inbox).from_select(into, source.where(c.sequence.in_(part))))
    _delete(connection, outbox, sequences)
    return Done(len(sequences), more=more)


def execute_batch(
    connection: Connection,
    tables: Tables,
    worker: Worker,
    held: Range,
    limit: int,
    attempted: list[int] | None = None,
) -> Done:
    """Executes the first operations of a range's outbox, and sets aside those that cannot be. Raises LeaseLost.

    ``attempted`` is given the sequence numbers, which the caller needs when the database refuses the batch.
    """
    fence(connection, tables, worker, held)
    outbox = tables.executable
    sequences, more = _head(connection, tables, outbox, held, limit)
    if not sequences:
        return Done(0)
    if attempted is not None:
        attempted[:] = sequences
    rows: list[Row[Any]] = []
    for part in in_parts(sequences):  # as they come in ``sequences``: by timestamp, and then by number
        chosen = sa.select(outbox).where(outbox.c.sequence.in_(part))
        rows += connection.execute(chosen.order_by(outbox.c.timestamp_ns, outbox.c.sequence)).all()
    batch = Batch(connection, tables)
    operations: list[tuple[int, Operation]] = []
    for row in rows:
        try:
            operations.append((row.sequence, operation_of(row._mapping)))
        except BadOperation as error:
            batch.failed[row.sequence] = error
    batch.execute(operations)
    _set_aside(
        connection,
        tables,
        [(row, batch.failed[row.sequence]) for row in rows if row.sequence in batch.failed],
    )
    _delete(connection, outbox, sequences)
    return Done(len(sequences), failed=len(batch.failed), more=more)


def set_aside(
    connection: Connection, tables: Tables, worker: Worker, held: Range, sequence: int, error: str
) -> Done:
    """Sets aside an operation that the database refused, so that others can go on. Raises LeaseLost."""
    fence(connection, tables, worker, held)
    outbox = tables.executable
    row = connection.execute(sa.select(outbox).where(outbox.c.sequence == sequence)).one_or_none()
    if row is None:
        return Done(0, more=True)
    _set_aside(connection, tables, [(row, OutboxError(error))])
    _delete(connection, outbox, [sequence])
    return Done(1, failed=1, more=True)


def _head(
    connection: Connection, tables: Tables, outbox: sa.Table, held: Range, limit: int
) -> tuple[list[int], bool]:
    """The first rows of a range, by timestamp and then by number, and whether there may be more behind them."""
    c = outbox.c
    chosen = sa.select(c.sequence, sa.func.coalesce(tables.size(c.value), 0)).where(
        within(c.sender, held.start, held.end)
    )
    rows = connection.execute(chosen.order_by(c.timestamp_ns, c.sequence).limit(limit)).all()
    sequences: list[int] = []
    total_bytes = 0
    for sequence, size_bytes in rows:
        total_bytes += size_bytes
        if sequences and total_bytes > BATCH_BYTES:
            return sequences, True
        sequences.append(sequence)
    return sequences, len(rows) == limit


def _set_aside(connection: Connection, tables: Tables, rows: Sequence[tuple[Row[Any], OutboxError]]) -> None:
    if not rows:
        return
    values = [
        {**row._mapping, "error_code": error.code, "error": str(error)[:_ERROR_CHARS]} for row, error in rows
    ]
    connection.execute(sa.insert(tables.failed).values(failed_ns=tables.now()), values)


def _delete(connection: Connection, outbox: sa.Table, sequences: Sequence[int]) -> None:
    deleted = sum(
        connection.execute(sa.delete(outbox).where(outbox.c.sequence.in_(part))).rowcount
        for part in in_parts(sequences)
    )
    if deleted != len(sequences):  # rows were deleted by hand; what was done with them is rolled back
        raise OutboxError(
            f"{len(sequences) - deleted} messages of {outbox.name} were gone before they were done."
        )
