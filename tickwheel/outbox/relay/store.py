"""What a relay does in the database: a transaction that stays open while the broker is asked, and its statements."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa

from tickwheel.outbox.database import Database, in_parts, now_ns
from tickwheel.outbox.relay.rows import RowReader
from tickwheel.outbox.threads import clean_up

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

T = TypeVar("T")
_HIDDEN_MAX: Final = 1_000
"""As many ids a statement passes over; what is more is passed over here."""


class HeldTransaction:
    """A transaction of ``Database.begin`` that is open between calls in worker threads, which use it one at a time.

    Left with an error it is rolled back; also when the error is a cancellation.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._manager: AbstractContextManager[Connection] | None = None
        self._connection: Connection | None = None

    async def __aenter__(self) -> HeldTransaction:
        try:
            await self._database.call(self._begin)
        except BaseException:
            if self._connection is not None:  # it began, and only its caller was cancelled
                await self.__aexit__(*sys.exc_info())
            raise
        return self

    def _begin(self) -> None:
        self._manager = self._database.begin()
        self._connection = self._manager.__enter__()

    async def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """``work(connection, *arguments)`` in a worker thread."""
        with self._database.translated():
            return await self._database.call(work, self._connection, *arguments)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await clean_up(self._database.call, self._end, error is None)

    def _end(self, commit: bool) -> None:
        assert self._manager is not None
        if commit:
            self._manager.__exit__(None, None, None)
            return
        # Not the error itself: it belongs to the event loop, and has a traceback that must not grow here.
        give_up = _GivenUp()
        try:
            self._manager.__exit__(_GivenUp, give_up, None)
        except _GivenUp:
            pass
        except (
            Exception
        ):  # the connection is gone: there is nothing to roll back, and what was first raised counts
            return


class _GivenUp(Exception):
    """Rolls a transaction back."""


class RelayStore:
    """The statements of a relay on its message table."""

    def __init__(self, database: Database, reader: RowReader) -> None:
        self.database = database
        self.reader = reader
        self._columns = reader.table.c

    def unsent(self, connection: Connection, limit: int, hidden: Collection[Any]) -> list[sa.Row[Any]]:
        """Up to ``limit`` rows that are to be sent, locked: those that are due first in front, and of one time those
        that were written first; none of ``hidden``. What others have locked is passed over: it comes when they are
        done."""
        columns, sequence = self._columns, self.reader.sequence
        statement = self._locking(self.reader.select(), skip=True)
        statement = statement.where(columns.time_acked.is_(None), columns.time_next.is_not(None))
        if hidden:
            statement = statement.where(columns.id.not_in(list(hidden)[:_HIDDEN_MAX]))
        statement = statement.order_by(columns.time_next, sequence).limit(limit)
        kept: list[sa.Row[Any]] = []
        last: sa.Row[Any] | None = None
        while True:
            page = statement if last is None else statement.where(_behind(columns, sequence, last))
            rows = connection.execute(page).all()
            kept += [row for row in rows if row[0] not in hidden] if len(hidden) > _HIDDEN_MAX else rows
            if len(kept) >= limit or len(rows) < limit:
                return kept[:limit]
            last = rows[-1]

    def by_id(self, connection: Connection, ids: Sequence[Any]) -> dict[Any, sa.Row[Any]]:
        """These rows, locked, whatever their state; waits for those that others have locked."""
        found: dict[Any, sa.Row[Any]] = {}
        for chunk in in_parts(ids):
            statement = self._locking(self.reader.select(), skip=False).where(self._columns.id.in_(chunk))
            found.update((row[0], row) for row in connection.execute(statement))
        return found

    def mark_sent(self, connection: Connection, ids: Sequence[Any]) -> None:
        """Acks rows as a message table has it."""
        for chunk in in_parts(ids):
            connection.execute(
                self.reader.table.update()
                .where(self._columns.id.in_(chunk))
                .values(time_acked=now_ns(self.database.kind), time_next=None)
            )

    def _locking(self, statement: sa.Select[Any], *, skip: bool) -> sa.Select[Any]:
        if not self.database.skip_locked:
            return statement  # SQLite: the transaction has the whole database
        return statement.with_for_update(skip_locked=skip)


def _behind(columns: Any, sequence: sa.ColumnElement[Any], row: Any) -> sa.ColumnElement[bool]:
    """Rows behind this one in the order of ``unsent``."""
    return sa.or_(
        columns.time_next > row[1], sa.and_(columns.time_next == row[1], sequence > row.tickwheel_place)
    )
