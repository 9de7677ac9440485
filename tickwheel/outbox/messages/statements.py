"""The SQL of a message table: looking, claiming, acking, giving back, purging.

All are functions of a connection, in the caller's transaction, with the time passed in. A claim is fenced: it takes a
row only if it is still due, un-acked and of the epoch that was looked up, and raises the epoch; an ack of a delivery
counts only while the row has the delivery's epoch. Rows that others have locked are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from tickwheel.outbox.database import Database, Kind, by_epoch, in_parts, savepoint
from tickwheel.outbox.messages.backoff import NS_A_MS, next_epoch, wait_bounds_ns
from tickwheel.outbox.messages.candidates import Candidate, choose
from tickwheel.outbox.messages.columns import range_of
from tickwheel.outbox.messages.schema import Schema
from tickwheel.outbox.watch import QUIET

PURGE_BATCH: Final = 2000
REPAIR_PRIORITY: Final = 50
_LANES_A_STATEMENT: Final = 8
_OLDEST_NS: Final = 1 << 62
"""No message was acked longer ago; a database can subtract it from the time."""

Receipt: TypeAlias = tuple[Hashable, int]
"""A delivery: a message's id and its epoch."""
Time: TypeAlias = "ColumnElement[int] | int"
"""ns since 1970: a number, or what the database's clock says when the statement begins."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is due, and when (ns) the next message will be; None if none waits. ``cut``: the priorities of which more
    than that may be due."""

    due: Sequence[Candidate]
    next_due_ns: int | None
    cut: frozenset[int]


@dataclass(frozen=True, slots=True)
class Claimed:
    """One delivery: ``epoch`` is its receipt. ``row``: the streamed columns."""

    id: Hashable
    epoch: int
    priority: int
    due_ns: int
    row: dict[str, Any]


class UnsoundRows(Exception):
    """Messages have values that no column of their type should hold: ``Statements.repair`` corrects them."""


class Statements:
    """The statements for one state of a table."""

    def __init__(self, database: Database, schema: Schema) -> None:
        self._kind: Kind = database.kind
        self._schema = schema
        self._table = schema.table
        self._is_open = self._table.c.time_acked.is_(None)
        self._sequence = self._table.c.id if schema.sequence is None else schema.sequence
        self._last_epoch = range_of(self._kind, self._table.c.epoch)[1]
        self._lanes = self._make_lanes(sa.func.min)
        self._lane_cache: dict[int, Any] = {}

    # -- looking --

    def look(self, connection: Connection, now_ns: int, limit: int, passed: int = 0) -> Found:
        """About ``limit`` due messages, those that go first, and the time of the next that is not due yet.
        ``passed``: so many of them cannot be had now.

        One statement when nothing is due: it steps from priority to priority in the index, and reads one entry of each.
        Raises UnsoundRows.
        """
        lanes = connection.execute(self._lanes).all()
        self._check_numbers(lanes)
        due = {
            priority: earliest for priority, earliest in lanes if earliest is not None and earliest <= now_ns
        }
        later = [earliest for _, earliest in lanes if earliest is not None and earliest > now_ns]
        if not due:
            return Found((), min(later, default=None), frozenset())
        oldest = min(due, key=lambda one: (due[one], one))
        unread = [oldest, *(priority for priority in sorted(due) if priority != oldest)]
        found: dict[int, list[Candidate]] = {}
        while unread and sum(map(len, found.values())) < limit + len(found.get(oldest, ())):
            part, unread = unread[:_LANES_A_STATEMENT], unread[_LANES_A_STATEMENT:]
            values: dict[str, int] = {"now": now_ns, "limit": limit}
            values.update({f"p{index}": priority for index, priority in enumerate(part)})
            found.update((priority, []) for priority in part)
            rows = connection.execute(self._due_of(len(part)), values).all()
            self._check_numbers([row[2:] for row in rows])
            for row in rows:
                if row[0] is None:
                    raise UnsoundRows
                found[row[1]].append(Candidate(*row))
        chosen, cut = choose(dict(sorted(found.items())), oldest, limit, passed)
        return Found(chosen, min(later, default=None), cut)

    def _check_numbers(self, rows: Sequence[Sequence[Any]]) -> None:
        """SQLite keeps a text in a column of numbers, if that is what it is given."""
        if self._kind == "sqlite" and any(
            not isinstance(value, int) for row in rows for value in row if value is not None
        ):
            raise UnsoundRows

    def check_times(self, connection: Connection) -> None:
        """SQLite: raises UnsoundRows if a message has a time or a priority that is no number, which ``look`` does not
        see: texts come after all numbers."""
        if self._kind == "sqlite":
            self._check_numbers(connection.execute(self._make_lanes(sa.func.max)).all())

    def _make_lanes(self, end: Callable[[Any], Any]) -> Any:
        """The priorities that open messages have, each with its earliest (or, for max, latest) time."""
        t = self._table
        if self._kind == "mariadb":
            # Grouped by all of the index's first columns it skips from group to group. It does so in no subquery, and
            # not when time_acked, which is NULL in all of them, is left out.
            groups = sa.select(t.c.priority, end(t.c.time_next)).where(self._is_open)
            return groups.group_by(t.c.time_acked, t.c.priority).having(t.c.priority.is_not(None))
        first = sa.select(sa.func.min(t.c.priority).label("priority")).where(self._is_open)
        lanes = first.cte("lanes", recursive=True)
        inner = t.alias("following")
        following = (
            sa.select(sa.func.min(inner.c.priority))
            .where(inner.c.time_acked.is_(None), inner.c.priority > lanes.c.priority)
            .scalar_subquery()
        )
        lanes = lanes.union_all(sa.select(following).where(lanes.c.priority.is_not(None)))
        own = t.alias("own")
        earliest = (
            sa.select(end(own.c.time_next))
            .where(own.c.time_acked.is_(None), own.c.priority == lanes.c.priority)
            .scalar_subquery()
        )
        return sa.select(lanes.c.priority, earliest).where(lanes.c.priority.is_not(None))

    def _due_of(self, count: int) -> Any:
        """The due messages of ``count`` priorities, each read from the index in order."""
        if count not in self._lane_cache:
            t = self._table
            parts = [
                sa.select(
                    sa.select(t.c.id, t.c.priority, t.c.time_next, sa.func.coalesce(t.c.epoch, 0))
                    .where(
                        self._is_open,
                        t.c.priority == sa.bindparam(f"p{index}", type_=sa.BigInteger),
                        t.c.time_next <= sa.bindparam("now", type_=sa.BigInteger),
                    )
                    .order_by(t.c.time_next, self._sequence)
                    .limit(sa.bindparam("limit", type_=sa.Integer))
                    .subquery(f"lane{index}")
                )
                for index in range(count)
            ]
            self._lane_cache[count] = parts[0] if count == 1 else sa.union_all(*parts)
        return self._lane_cache[count]

    def repair(self, connection: Connection, now_ns: int) -> int:
        """Makes messages deliverable that lack a time or a priority: Vitess would never look at them again. And in
        SQLite those with a text, or a number with a fraction, in place of a whole number."""
        t = self._table
        columns = {t.c.time_next: now_ns, t.c.priority: REPAIR_PRIORITY}
        if self._kind == "sqlite":
            columns[t.c.epoch] = 0
            wrong = [sa.func.typeof(one) != "integer" for one in columns]
            values = {one.name: _whole(one, default) for one, default in columns.items()}
        else:
            wrong = [one.is_(None) for one in columns]
            values = {one.name: sa.func.coalesce(one, default) for one, default in columns.items()}
        return connection.execute(sa.update(t).where(self._is_open, sa.or_(*wrong)).values(values)).rowcount

    def put_off_nameless(self, connection: Connection, due_ns: int) -> int:
        """Messages without an id can be neither claimed nor acked: they are looked at again at ``due_ns``."""
        t = self._table
        nameless = sa.and_(t.c.id.is_(None), self._is_open, t.c.time_next < due_ns)
        return connection.execute(sa.update(t).where(nameless).values(time_next=due_ns)).rowcount

    # -- claiming --

    def claim(self, connection: Connection, chosen: Sequence[Candidate], now_ns: Time) -> list[Claimed]:
        """Takes those of the candidates that are still there to be taken, in their order."""
        taken: dict[Hashable, sa.Row[Any]] = {}
        for epoch, ids in by_epoch((one.id, one.epoch) for one in chosen):
            rows = self._claim_epoch(connection, ids, epoch, now_ns)
            taken.update((row[0], row) for row in rows)  # the first column is the id
        return [self._claimed(one, taken[one.id]) for one in chosen if one.id in taken]

    def skip(self, connection: Connection, one: Candidate, now_ns: Time) -> None:
        """Counts a delivery of a message that cannot be read, so that it is tried again later and later."""
        t = self._table
        still = sa.and_(t.c.id == one.id, self._is_open, _epoch_is(t, one.epoch))
        values = {"epoch": self._next(one.epoch), "time_next": self._redelivery(one.epoch, now_ns)}
        connection.execute(sa.update(t).where(still).values(values))

    def _next(self, epoch: int) -> int:
        return next_epoch(epoch, self._last_epoch)

    def _claimed(self, one: Candidate, row: sa.Row[Any]) -> Claimed:
        columns = dict(zip(self._schema.columns, row, strict=True))
        return Claimed(one.id, self._next(one.epoch), one.priority, one.time_next, columns)

    def _claim_epoch(
        self, connection: Connection, ids: Sequence[Hashable], epoch: int, now_ns: Time
    ) -> Sequence[sa.Row[Any]]:
        t = self._table
        columns = [t.c[name] for name in self._schema.columns]
        still_due = sa.and_(self._is_one_of(ids), self._is_open, _epoch_is(t, epoch), t.c.time_next <= now_ns)
        change = sa.update(t).values(epoch=self._next(epoch), time_next=self._redelivery(epoch, now_ns))
        if self._kind == "sqlite":
            return connection.execute(change.where(still_due).returning(*columns)).all()
        if self._kind == "postgresql":
            free = sa.select(t.c.id).where(still_due).with_for_update(skip_locked=True).subquery("free")
            quiet = sa.select(sa.literal_column(QUIET)).scalar_subquery()
            change = change.where(t.c.id == free.c.id, quiet == "on").returning(*columns)
            return connection.execute(change).all()
        locked = sa.select(*columns).where(still_due).with_for_update(skip_locked=True)
        rows = connection.execute(locked).all()
        if rows:
            connection.execute(change.where(self._is_one_of([row[0] for row in rows])))
        return rows

    def _redelivery(self, epoch: int, now_ns: Time) -> Time:
        """When the message comes again if it is not acked: for each row another time within the bounds."""
        shortest, longest = wait_bounds_ns(self._schema.settings, self._next(epoch))
        if shortest == longest:
            return now_ns + shortest
        until = now_ns + shortest
        earliest = sa.literal(until, sa.BigInteger) if isinstance(until, int) else until
        return earliest + _random_below(self._kind, longest - shortest + 1)

    # -- afterwards --

    def ack(self, connection: Connection, ids: Iterable[Hashable], now_ns: Time) -> int:
        """Vitess's ack: it counts whichever consumer has the message. Returns how many were not acked before."""
        change = sa.update(self._table).values(time_acked=now_ns, time_next=None)
        return self._change_open(connection, change, ids)

    def reschedule(self, connection: Connection, ids: Iterable[Hashable], values: dict[str, Any]) -> int:
        """Changes messages that are not acked. Returns how many."""
        return self._change_open(connection, sa.update(self._table).values(values), ids)

    def cancel(self, connection: Connection, ids: Iterable[Hashable]) -> int:
        """Deletes messages that are not acked. Returns how many."""
        return self._change_open(connection, sa.delete(self._table), ids)

    def _change_open(
        self, connection: Connection, change: sa.Update | sa.Delete, ids: Iterable[Hashable]
    ) -> int:
        """In parts that a statement can take; all of them or none, also if the caller goes on after an error."""
        parts = list(in_parts(list(ids)))
        with savepoint(connection) if len(parts) > 1 else nullcontext():
            return sum(
                connection.execute(change.where(self._is_one_of(part), self._is_open)).rowcount
                for part in parts
            )

    def ack_deliveries(
        self, connection: Connection, receipts: Iterable[Receipt], now_ns: Time
    ) -> list[Receipt]:
        """Acks deliveries that were not taken over. Returns those that did not count, also because they are acked
        already: an effect in the same transaction must not happen twice."""
        return self._fenced(connection, receipts, {"time_acked": now_ns, "time_next": None})

    def were_acked(self, connection: Connection, receipts: Iterable[Receipt]) -> set[Receipt]:
        """Which of these deliveries were acked: for a caller that asks again because the answer was lost."""
        t, wanted = self._table, set(receipts)
        found: set[Receipt] = set()
        for ids in in_parts([one for one, _ in wanted]):
            rows = connection.execute(
                sa.select(t.c.id, t.c.epoch).where(t.c.id.in_(ids), t.c.time_acked.is_not(None))
            )
            found.update((row.id, row.epoch) for row in rows)
        return found & wanted

    def postpone(self, connection: Connection, receipts: Iterable[Receipt], due_ns: Time) -> list[Receipt]:
        """Gives deliveries another time (back at once: now). Returns those that did not count."""
        return self._fenced(connection, receipts, {"time_next": due_ns})

    def give_back(self, connection: Connection, receipts: Iterable[Receipt], now_ns: Time) -> None:
        """Undoes deliveries that the program has not seen: they do not count as attempts."""
        self._fenced(connection, receipts, {"time_next": now_ns, "epoch": self._table.c.epoch - 1})

    def _fenced(
        self, connection: Connection, receipts: Iterable[Receipt], values: dict[str, Any]
    ) -> list[Receipt]:
        lost: list[Receipt] = []
        for epoch, ids in by_epoch(receipts):
            lost += [(one, epoch) for one in self._change_held(connection, ids, epoch, values)]
        return lost

    def _change_held(
        self, connection: Connection, ids: Sequence[Hashable], epoch: int, values: dict[str, Any]
    ) -> Sequence[Hashable]:
        t = self._table
        held = sa.and_(self._is_one_of(ids), t.c.epoch == epoch, self._is_open)
        change = sa.update(t).where(held).values(values)
        if self._kind != "mariadb":
            changed = set(connection.execute(change.returning(t.c.id)).scalars())
            return [one for one in ids if one not in changed]
        # Nearly always all of them count, and then it need not be found out which.
        attempt = connection.begin_nested()
        if connection.execute(change).rowcount == len(ids):
            attempt.commit()
            return []
        attempt.rollback()
        locked = set(connection.execute(sa.select(t.c.id).where(held).with_for_update()).scalars())
        if locked:
            connection.execute(change)
        return [one for one in ids if one not in locked]

    def _is_one_of(self, ids: Sequence[Hashable]) -> ColumnElement[bool]:
        """On PostgreSQL an array: the statement is then the same for any number of ids, and stays prepared."""
        column = self._table.c.id
        if self._kind != "postgresql":
            return column.in_(ids)
        # Not VARCHAR(10): a cast to that would cut off the end of a longer id, and find another message by the rest.
        kind = sa.VARCHAR() if type(column.type) is sa.VARCHAR else column.type
        return column == sa.any_(sa.literal(list(ids), postgresql.ARRAY(kind)))

    def purge(
        self,
        connection: Connection,
        now_ns: Time,
        left_out: Sequence[Hashable] = (),
        limit: int = PURGE_BATCH,
    ) -> int:
        """Deletes up to ``limit`` messages that were acked ``purge_after`` ago. Returns how many."""
        t, ids = self._table, self._old(now_ns, left_out, limit)
        if self._kind != "mariadb":
            chosen = ids.with_for_update(skip_locked=True) if self._kind == "postgresql" else ids
            return connection.execute(sa.delete(t).where(t.c.id.in_(chosen))).rowcount
        locked = connection.execute(ids.with_for_update(skip_locked=True)).scalars().all()
        return sum(
            connection.execute(sa.delete(t).where(t.c.id.in_(part))).rowcount for part in in_parts(locked)
        )

    def purgeable(
        self, connection: Connection, now_ns: Time, left_out: Sequence[Hashable]
    ) -> Sequence[Hashable]:
        """The ids of those that ``purge`` would delete."""
        return connection.execute(self._old(now_ns, left_out, PURGE_BATCH)).scalars().all()

    def _old(self, now_ns: Time, left_out: Sequence[Hashable], limit: int) -> sa.Select[Any]:
        t = self._table
        age_ns = min(self._schema.settings.purge_after_ms * NS_A_MS, _OLDEST_NS)
        old = t.c.time_acked < now_ns - age_ns
        ids = sa.select(t.c.id).where(old).order_by(t.c.time_acked).limit(limit)
        return ids.where(t.c.id.not_in(left_out)) if left_out else ids

    def delete_acked(self, connection: Connection, ids: Sequence[Hashable]) -> int:
        """Deletes those of these messages that are acked. Returns how many."""
        t = self._table
        return sum(
            connection.execute(
                sa.delete(t).where(self._is_one_of(part), t.c.time_acked.is_not(None))
            ).rowcount
            for part in in_parts(ids)
        )


def _epoch_is(table: sa.Table, epoch: int) -> ColumnElement[bool]:
    """Vitess takes an epoch of NULL for 0."""
    return sa.or_(table.c.epoch == 0, table.c.epoch.is_(None)) if epoch == 0 else table.c.epoch == epoch


def _whole(column: sa.Column[Any], default: int) -> ColumnElement[int]:
    """SQLite: what is a whole number, or can be cut to one; else the default."""
    kind, cut = sa.func.typeof(column), sa.cast(column, sa.BigInteger)
    return sa.case((kind == "integer", column), (kind == "real", cut), else_=default)


def _random_below(kind: Kind, limit: int) -> ColumnElement[int]:
    """SQL: a whole number from 0 up to, but not including, ``limit``, for each row anew."""
    number = sa.literal(limit, sa.BigInteger)
    if kind == "sqlite":
        return sa.literal_column("abs(random() / 2)", sa.BigInteger) % number
    source = sa.literal_column("rand()" if kind == "mariadb" else "random()", sa.Float)
    return sa.cast(sa.func.floor(source * number), sa.BigInteger)
