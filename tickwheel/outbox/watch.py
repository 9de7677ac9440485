"""How a commit wakes those who wait for messages: a watch rings when a table may have changed.

- PostgreSQL: a trigger notifies at commit (LISTEN/NOTIFY), with the earliest due time among the rows. Nothing is asked
  meanwhile.
- SQLite: the times and sizes of the database's files, looked at every few milliseconds. No statement is executed.
- MariaDB and MySQL have nothing that can be waited for: ``tickwheel.outbox.statistics_watch``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import anyio
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tickwheel.client.waiting.backoff import Backoff
from tickwheel.outbox.creation import ONE_AT_A_TIME
from tickwheel.outbox.database import Database
from tickwheel.outbox.errors import DatabaseUnavailable
from tickwheel.outbox.statistics_watch import Echoes, Look, StatisticsWatch

Ring: TypeAlias = Callable[[int | None], None]
"""Called with the ns since 1970 at which something becomes due, or None: something may be there now."""

_FILE_INTERVAL_S: Final = 0.004
_POLL_INTERVAL_S: Final = 0.25
_NAME_BYTES: Final = 63


class Watch(Protocol):
    """Rings when a commit may have changed a table."""

    async def run(self, ring: Ring) -> None:
        """Rings until it is cancelled; also after a connection was lost and made again."""

    @asynccontextmanager
    async def look(self) -> AsyncIterator[Look]:
        """To be entered around statements that look for messages, so that they are not taken for a change. There is
        nothing to do where reading rings nothing."""
        yield Look()

    @asynccontextmanager
    async def aside(self, what: str) -> AsyncIterator[None]:
        """The same for other statements of ours that bring no message. ``what``: those of one name are alike."""
        yield


def watch_table(database: Database, table: str) -> Watch:
    """The watch for this kind of database. On PostgreSQL the table needs the triggers of ``notify_statements``."""
    if database.kind != "sqlite" and database.engine.driver not in ("psycopg", "pymysql"):
        return PollWatch()
    if database.kind == "postgresql":
        return NotifyWatch(database, channel_of(table))
    if database.kind == "sqlite":
        path = database.path
        assert path is not None
        return FileWatch(path)
    return StatisticsWatch(database)


class PollWatch(Watch):
    """For drivers that cannot wait for anything: rings a few times a second."""

    async def run(self, ring: Ring) -> None:
        """See Watch."""
        while True:
            ring(None)
            await anyio.sleep(_POLL_INTERVAL_S)


# -- PostgreSQL --


def channel_of(table: str) -> str:
    """The name under which changes of a table are notified."""
    channel = f"tickwheel_{table}"
    if len(channel.encode()) <= _NAME_BYTES:
        return channel
    return f"tickwheel_{hashlib.sha256(table.encode()).hexdigest()[:40]}"


_NOTIFY_FUNCTION: Final = """
create or replace function tickwheel_notify() returns trigger language plpgsql as $$
declare
    due bigint;
begin
    if current_setting('tickwheel.quiet', true) = 'on' then
        return null;
    end if;
    if TG_NARGS > 1 then
        execute format('select min(%I) from changed', TG_ARGV[1]) into due;
        if due is null then
            return null;
        end if;
    elsif not exists (select from changed) then
        return null;
    end if;
    perform pg_notify(TG_ARGV[0], coalesce(due::text, ''));
    return null;
end $$
"""

QUIET: Final = "set_config('tickwheel.quiet', 'on', true)"
"""SQL of PostgreSQL: changes of this transaction send no notification."""


def notify_statements(table: sa.Table, due_column: str | None = None, *, updates: bool = True) -> list[str]:
    """What makes PostgreSQL notify ``channel_of(table.name)`` when rows were inserted (or updated).

    ``due_column``: epoch nanoseconds; the earliest is the notification's text, and rows without one send none.
    """
    quoted = ".".join(_quoted(one) for one in (table.schema, table.name) if one is not None)
    arguments = ", ".join(_literal(one) for one in (channel_of(table.name), due_column) if one is not None)
    statements = [f"select {ONE_AT_A_TIME}", _NOTIFY_FUNCTION]
    for what in ("insert", "update") if updates else ("insert",):
        statements += [
            f"drop trigger if exists tickwheel_{what} on {quoted}",
            f"create trigger tickwheel_{what} after {what} on {quoted} referencing new table as changed "
            f"for each statement execute function tickwheel_notify({arguments})",
        ]
    return statements


_TRIGGERS: Final = (
    "select count(*) from pg_trigger where tgrelid = to_regclass(:table)"
    " and tgname in ('tickwheel_insert', 'tickwheel_update') and tgenabled <> 'D'"
    # Else they were made under another name of the table, or by an earlier version.
    " and tgargs = convert_to(:channel, getdatabaseencoding()) || decode(:rest, 'hex')"
)


def add_triggers(
    connection: Connection, table: sa.Table, due_column: str | None = None, *, updates: bool = True
) -> None:
    """Executes ``notify_statements`` on PostgreSQL, unless the triggers are there: making them again would wait for all
    transactions that use the table."""
    if connection.dialect.name != "postgresql":
        return
    wanted = {
        "table": connection.dialect.identifier_preparer.format_table(table),
        "channel": channel_of(table.name),
        "rest": "00" if due_column is None else f"00{due_column.encode().hex()}00",
    }
    if connection.scalar(sa.text(_TRIGGERS), wanted) == 1 + updates:
        return
    for statement in notify_statements(table, due_column, updates=updates):
        connection.exec_driver_sql(statement.replace("%", "%%"))  # it is no format of the driver's


class Bell:
    """Wakes a task when a commit is noticed; what rings while it works wakes it at once."""

    def __init__(self) -> None:
        self._rung = anyio.Event()

    def ring(self, _due_ns: int | None = None) -> None:
        """See ``Ring``. When messages are due does not matter to these tasks."""
        self._rung.set()

    def clear(self) -> None:
        """Forgets what has rung."""
        self._rung = anyio.Event()

    async def wait(self, longest_s: float) -> None:
        """Until it rings."""
        with anyio.move_on_after(longest_s):
            await self._rung.wait()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class NotifyWatch(Watch):
    """Listens to a channel on a connection of its own, which is renewed when it breaks."""

    def __init__(self, database: Database, channel: str) -> None:
        self._database = database
        self._channel = channel

    async def run(self, ring: Ring) -> None:
        """See Watch."""
        backoff = Backoff(first_s=0.05, max_s=2.0)
        while True:
            try:
                connection = await self._database.call(self._listen, keep=lambda one: one.close())
            except DatabaseUnavailable:
                await anyio.sleep(backoff.next_s())
                continue
            try:
                backoff.reset()
                ring(None)  # for what was committed before this listened
                await self._pass_on(connection, ring)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._database.call(connection.close)

    def _listen(self) -> Any:
        from psycopg import Error

        connection = self._database.own_connection()
        try:
            connection.autocommit = True
            connection.execute(f"listen {_quoted(self._channel)}")
        except Error as error:  # the pool did not know yet that the server had ended it
            connection.close()
            raise DatabaseUnavailable(f"{self._database.name}: {error}") from error
        return connection

    async def _pass_on(self, connection: Any, ring: Ring) -> None:
        """Rings for each notification, until the connection breaks."""
        from psycopg import OperationalError

        while True:
            try:
                await anyio.wait_readable(connection.fileno())
                for one in connection.notifies(timeout=0):
                    # Any client may notify: a text that is no time is still a reason to look.
                    ring(int(one.payload) if one.payload.isdecimal() else None)
            except (OperationalError, OSError):
                return


# -- SQLite --


class FileWatch(Watch):
    """Looks at the files of an SQLite database: every commit writes to one of them."""

    def __init__(self, path: Path) -> None:
        self._paths = (str(path), f"{path}-wal")

    async def run(self, ring: Ring) -> None:
        """See Watch."""
        seen: object = None
        echoes = Echoes()
        while True:
            now = self._signature()
            if now != seen:
                seen = now
                echoes.start(anyio.current_time())
                ring(None)
            elif echoes.is_due(anyio.current_time()):
                ring(None)
            await anyio.sleep(_FILE_INTERVAL_S)

    def _signature(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_time_and_size(path) for path in self._paths)


def _time_and_size(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size
