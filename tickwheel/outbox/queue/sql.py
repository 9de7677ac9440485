"""What a queue does in its table: functions of a connection, inside whatever transaction it has.

Two rules make it safe. A claim raises the message's epoch, and every later statement names id and epoch: what a
slow consumer does to a message that a successor holds touches nothing. And every statement finds its rows by the
primary key or by an index that is made for it: it waits for no other transaction and locks no rows but its own.
On MariaDB the optimizer would read small tables from end to end instead, and wait for what others hold in transactions
that are open; ``FORCE INDEX`` and ``ORDER BY id LIMIT`` are there to stop it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tickwheel.client.checks import encoded, listed
from tickwheel.outbox.database import Database, by_epoch, error_code, in_parts, now_ns
from tickwheel.outbox.queue.table import lease_index, missing, queue_table
from tickwheel.outbox.transactions import Transaction, require_transaction
from tickwheel.protocol.errors import BadArgument

Receipt: TypeAlias = tuple[int, int]
"""The id and the epoch of a message."""
Body: TypeAlias = bytes | bytearray | memoryview | str

MAX_ROWS: Final = 500
"""In one statement. From 1,000 values on, MariaDB makes a join of an IN, and may begin at its other end."""
MAX_BYTES: Final = 4 << 20
"""Of bodies in one INSERT: MariaDB's usual limit of a statement is 16 MiB."""
FREED_AT_ONCE: Final = 10_000
"""Leases that have ended and become free together. Beyond that, those first that ended first."""
_ZERO: Final[sa.ColumnClause[Any]] = sa.literal_column(
    "0"
)  # not a parameter: partial indexes must be seen to fit
_MISSING: Final = ("42P01", 1146)  # PostgreSQL, MariaDB


class Row(NamedTuple):
    """A message that was claimed."""

    id: int
    body: bytes
    epoch: int
    enqueued_ns: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What came of a claim."""

    rows: list[Row]
    now_ns: int
    """By the database's clock."""
    next_ns: int | None = None
    """When the next lease or delay ends; None: none is there. Known when ``rows`` is empty."""
    is_blocked: bool = False
    """Whether there are messages that could be had, but others have locked them just now. A rollback of theirs sends
    no notification."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many messages are in a queue."""

    ready: int
    """Could be claimed now."""
    leased: int
    """Are being worked on."""
    delayed: int
    """Were given back, and wait for their retry."""
    oldest_age_s: float | None
    """Since the first message of all of these was put; None: the queue is empty."""


def body_bytes(body: Body) -> bytes:
    """What is stored. Raises BadArgument."""
    if isinstance(body, str):
        return encoded(body, "A body")
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise BadArgument(
        f"A body is a {type(body).__name__}.", advice="Use bytes, or str, which is stored as UTF-8."
    )


class QueueSql:
    """The statements of one queue."""

    def __init__(self, database: Database, name: str) -> None:
        self.table = queue_table(name, database.kind)
        self.kind = database.kind
        self.now: sa.ColumnElement[int] = now_ns(database.kind)
        """The time as SQL; a test may set its own clock."""
        columns = self.table.c
        self._id, self._lease, self._epoch, self._owner = (
            columns.id,
            columns.lease_until_ns,
            columns.epoch,
            columns.owner,
        )
        self._claimed = (columns.id, columns.body, columns.epoch, columns.enqueued_ns)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Raises TableMissing for what the driver says about a missing table."""
        try:
            yield
        except DBAPIError as error:
            code = error_code(error)
            if code in _MISSING or f"no such table: {self.table.name}" in str(code):
                raise missing(self.table.name) from error
            raise

    # -- putting --

    def put(self, connection: Transaction, bodies: Iterable[Body]) -> list[int]:
        """Adds messages, and returns their ids in the same order."""
        connection = require_transaction(connection)
        values = [body_bytes(body) for body in listed(bodies, "bodies", '["a", "b"]')]
        insert = sa.insert(self.table).values(enqueued_ns=self.now)
        returning = connection.dialect.insert_executemany_returning_sort_by_parameter_order
        ids: list[int] = []
        with self.naming():
            for chunk in _in_chunks(values):
                if returning and len(chunk) > 1:
                    several = insert.returning(self._id, sort_by_parameter_order=True)
                    ids += connection.execute(several, [{"body": body} for body in chunk]).scalars()
                else:
                    for body in chunk:
                        key = connection.execute(insert, {"body": body}).inserted_primary_key
                        assert key is not None
                        ids.append(int(key[0]))
        return ids

    # -- claiming --

    def claim(self, connection: Connection, limit: int, lease_ns: int, owner: str) -> Claim:
        """Leases up to ``limit`` messages, first put first; also those whose leases have ended."""
        with self.naming():
            now, ends = connection.execute(sa.select(self.now, self._next_end())).one()
            if ends is not None and ends <= now:
                self._free_ended(connection)
            rows = self._claim_free(connection, limit, lease_ns, owner)
            if rows:
                return Claim(sorted(rows), now)
            # As seen after the claim: what is free still, others have locked.
            free = sa.exists().where(self._lease == _ZERO)
            now, ends, is_free = connection.execute(sa.select(self.now, self._next_end(), free)).one()
            return Claim([], now, ends, bool(is_free) or (ends is not None and ends <= now))

    def _next_end(self) -> sa.ScalarSelect[Any]:
        return (
            sa.select(self._lease).where(self._lease > _ZERO).order_by(self._lease).limit(1).scalar_subquery()
        )

    def _free_ended(self, connection: Connection) -> None:
        """The owner stays: until another consumer claims the message, it may still finish."""
        ended = sa.and_(self._lease > _ZERO, self._lease <= self.now)
        chosen = self._select(self._id).where(ended).order_by(self._lease).limit(FREED_AT_ONCE)
        free = {"lease_until_ns": 0}
        if self.kind == "mariadb":
            ids = connection.execute(chosen.with_for_update(skip_locked=True)).scalars().all()
            for chunk in in_parts(ids, MAX_ROWS):
                self._update_by_id(connection, chunk, None)
            return
        connection.execute(sa.update(self.table).where(self._is_one_of(chosen)).values(free))

    def _claim_free(self, connection: Connection, limit: int, lease_ns: int, owner: str) -> list[Row]:
        def free(*columns: sa.Column[Any]) -> sa.Select[Any]:
            return self._select(*columns).where(self._lease == _ZERO).order_by(self._id).limit(limit)

        if self.kind != "mariadb":
            update = (
                sa.update(self.table)
                .where(self._is_one_of(free(self._id)))
                .values(epoch=self._epoch + 1, lease_until_ns=self.now + lease_ns, owner=owner)
                .returning(*self._claimed)
            )
            return [Row(*row) for row in connection.execute(update)]
        found = connection.execute(free(*self._claimed).with_for_update(skip_locked=True)).all()
        for chunk in in_parts([row.id for row in found], MAX_ROWS):
            self._update_by_id(connection, chunk, lease_ns, "epoch = epoch + 1, owner = :owner", owner=owner)
        return [Row(id_, body, epoch + 1, enqueued_ns) for id_, body, epoch, enqueued_ns in found]

    # -- what a holder does --

    def delete(self, connection: Connection, receipts: Sequence[Receipt]) -> set[int]:
        """Deletes what is held by these receipts; the ids that were."""
        gone: set[int] = set()
        with self.naming():
            for epoch, ids in by_epoch(sorted(receipts), MAX_ROWS):
                if self.kind == "mariadb":
                    held = self._lock(connection, epoch, ids, skip_locked=False)
                    self._by_id(connection, held, "delete from {table}", {})
                    gone.update(held)
                else:
                    delete = sa.delete(self.table).where(*self._held(epoch, ids)).returning(self._id)
                    gone.update(connection.execute(delete).scalars())
        return gone

    def present(self, connection: Connection, ids: Sequence[int]) -> set[int]:
        """Which of these ids are in the table, held or not."""
        there: set[int] = set()
        for chunk in in_parts(ids, MAX_ROWS):
            there.update(connection.execute(sa.select(self._id).where(self._id.in_(chunk))).scalars())
        return there

    def extend(self, connection: Connection, receipts: Sequence[Receipt], lease_ns: int) -> set[int]:
        """Leases again what is held, from now on; the ids that are not held any more."""
        kept = self._change(connection, receipts, lease_ns)
        left = [receipt for receipt in receipts if receipt[0] not in kept]
        # A transaction of the holder's own may have locked them, to delete them: then they are not lost.
        return {receipt[0] for receipt in left} - self._still_held(connection, left)

    def release(self, connection: Connection, receipts: Sequence[Receipt], delay_ns: int) -> set[int]:
        """Gives back what is held, to be claimed after the delay; the ids that were held."""
        return self._change(connection, receipts, delay_ns or None, give_back=True)

    def _change(
        self,
        connection: Connection,
        receipts: Sequence[Receipt],
        after_ns: int | None,
        *,
        give_back: bool = False,
    ) -> set[int]:
        """Sets the end of the leases of what is held and not locked by others; None: it is free."""
        changed: set[int] = set()
        values: dict[str, Any] = {"lease_until_ns": 0 if after_ns is None else self.now + after_ns}
        if give_back:
            values["owner"] = None
        with self.naming():
            for epoch, ids in by_epoch(sorted(receipts), MAX_ROWS):
                if self.kind == "mariadb":
                    held = self._lock(connection, epoch, ids, skip_locked=True)
                    self._update_by_id(connection, held, after_ns, *["owner = null"] * give_back)
                    changed.update(held)
                else:
                    held_ids = self._is_one_of(sa.select(self._id).where(*self._held(epoch, ids)))
                    update = sa.update(self.table).where(held_ids).values(values).returning(self._id)
                    changed.update(connection.execute(update).scalars())
        return changed

    def _still_held(self, connection: Connection, receipts: Sequence[Receipt]) -> set[int]:
        """As the database is now, whatever is locked."""
        held: set[int] = set()
        for epoch, ids in by_epoch(sorted(receipts), MAX_ROWS):
            held.update(connection.execute(self._select_by_id(epoch, ids)).scalars())
        return held

    # -- for people --

    def stats(self, connection: Connection) -> QueueStats:
        """Counts all messages."""
        ready, owned = self._lease <= self.now, self._owner.is_not(None)
        first = sa.select(self.table.c.enqueued_ns).order_by(self._id).limit(1).scalar_subquery()
        counts = sa.select(
            sa.func.count(sa.case((ready, 1))),
            sa.func.count(sa.case((sa.and_(sa.not_(ready), owned), 1))),
            sa.func.count(),
            self.now,
            first,
        ).select_from(self.table)
        with self.naming():
            is_ready, leased, total, now, oldest = connection.execute(counts).one()
        age_s = None if oldest is None else max(0.0, (now - oldest) / 1e9)
        return QueueStats(is_ready, leased, total - is_ready - leased, age_s)

    # -- finding rows --

    def _held(self, epoch: int, ids: Sequence[int]) -> tuple[sa.ColumnElement[bool], ...]:
        """Claimed with this epoch, and not given back. Also when the lease has ended, until the next claim."""
        if self.kind == "postgresql":  # one parameter, whatever their number
            among = self._id == sa.any_(sa.literal(list(ids), ARRAY(sa.BigInteger)))
        else:
            among = self._id.in_(ids)
        return among, self._epoch == epoch, self._owner.is_not(None)

    def _is_one_of(self, chosen: sa.Select[Any]) -> sa.ColumnElement[bool]:
        """The rows of a SELECT, which is executed once and passes over what others have locked."""
        if self.kind == "postgresql":
            # As an array: a subquery that is joined may be executed again, and lock more rows than its limit.
            locked = chosen.with_for_update(skip_locked=True)
            return self._id == sa.any_(sa.func.array(locked.scalar_subquery()))
        return self._id.in_(chosen)

    # -- MariaDB --

    def _select(self, *columns: sa.Column[Any]) -> sa.Select[Any]:
        """A SELECT by the index of leases."""
        hint = f"FORCE INDEX (`{lease_index(self.table.name)}`)"
        select = sa.select(*columns)
        return select.with_hint(self.table, hint) if self.kind == "mariadb" else select

    def _select_by_id(self, epoch: int, ids: Sequence[int]) -> sa.Select[Any]:
        select = sa.select(self._id).where(*self._held(epoch, ids))
        return select.with_hint(self.table, "FORCE INDEX (PRIMARY)") if self.kind == "mariadb" else select

    def _lock(
        self, connection: Connection, epoch: int, ids: Sequence[int], *, skip_locked: bool
    ) -> Sequence[int]:
        select = self._select_by_id(epoch, ids).with_for_update(skip_locked=skip_locked)
        return connection.execute(select).scalars().all()

    def _update_by_id(
        self, connection: Connection, ids: Sequence[int], after_ns: int | None, *changes: str, **values: Any
    ) -> None:
        until = "0" if after_ns is None else f"{self.now.compile(connection)} + {after_ns:d}"
        changed = ", ".join([*changes, f"lease_until_ns = {until}"])
        self._by_id(connection, ids, f"update {{table}} set {changed}", values)

    def _by_id(self, connection: Connection, ids: Sequence[int], start: str, values: dict[str, Any]) -> None:
        """Changes rows that are locked already."""
        if not ids:
            return
        table = connection.dialect.identifier_preparer.format_table(self.table)
        statement = sa.text(f"{start.format(table=table)} where id in :ids order by id limit {len(ids)}")
        expanded = statement.bindparams(sa.bindparam("ids", expanding=True))
        connection.execute(expanded, {**values, "ids": list(ids)})


def _in_chunks(values: list[bytes]) -> Iterator[list[bytes]]:
    """Pieces that fit a statement."""
    chunk: list[bytes] = []
    size = 0
    for value in values:
        if chunk and (size + len(value) > MAX_BYTES or len(chunk) == MAX_ROWS):
            yield chunk
            chunk, size = [], 0
        chunk.append(value)
        size += len(value)
    if chunk:
        yield chunk
