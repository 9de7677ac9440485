"""The inbox: what a message does in the user's database counts once, however often the message is delivered.

The mark that a message was processed is a row, and it is committed together with the effect. The message is acked only
after that. A later delivery finds the mark.

>>> async with inbox.process(message, connection) as first:
...     if first:
...         connection.execute(accounts.update().values(balance=accounts.c.balance - 30))
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError

from tickwheel import sync
from tickwheel.client.checks import encoded, shown
from tickwheel.client.columns import check_name
from tickwheel.client.consumer.message import Message
from tickwheel.client.times import duration_ms
from tickwheel.outbox.creation import make_table
from tickwheel.outbox.database import (
    KINDS,
    Database,
    commits_each_statement,
    is_busy,
    is_missing_table,
    now_ns,
    open_database,
)
from tickwheel.outbox.errors import AlreadyInTransaction, NotInTransaction, TableMissing
from tickwheel.outbox.threads import clean_up, finish_in_thread
from tickwheel.protocol.bodies.admin import Drop, DropOk
from tickwheel.protocol.errors import BadArgument

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection  # needs greenlet

    from tickwheel.client.consumer.acks import AckQueue

__all__ = ["Inbox", "mark", "mark_sync", "process", "process_sync"]

T = TypeVar("T")
Identity: TypeAlias = Literal["id", "key"]
TABLE_NAME: Final = "tickwheel_inbox"
_PURGED_AT_ONCE: Final = 1_000
_OLDEST_NS: Final = 200 * 365 * 86_400 * 10**9
_DUPLICATE_MARIADB: Final = 1062
_PAUSES_S: Final = (0.005, 0.02, 0.05, 0.1, 0.2)


class Inbox:
    """The marks of processed messages, in a table of the user's database.

    ``where``: the database; needed for ``create`` and ``purge`` only. ``by``: what tells messages apart. ``id``: the
    broker's number, which stays the same at each delivery. ``key``: the key, for producers who send a message again
    under the same key after the broker has forgotten it; messages without a key go by their id.
    """

    def __init__(
        self,
        where: str | URL | Engine | Database | None = None,
        table_name: str = TABLE_NAME,
        *,
        by: Identity = "id",
    ) -> None:
        if not isinstance(by, str) or by not in ("id", "key"):
            raise BadArgument(f"by is {shown(by)}.", advice="Use 'id' or 'key'.")
        if not isinstance(table_name, str) or not table_name or table_name.endswith("."):
            raise BadArgument(
                f"{shown(table_name)} cannot name a table.", advice="Inbox(database, 'tickwheel_inbox')"
            )
        encoded(table_name, "The name of the table")
        self._where = where
        self._by = by
        schema, _, name = table_name.rpartition(".")
        self.table = sa.Table(
            name,
            sa.MetaData(),
            # A hash of the columns behind it, because databases differ in which texts they take for equal.
            sa.Column("mark", sa.String(64), primary_key=True),
            sa.Column("topic", sa.String(128), nullable=False),
            sa.Column("consumer_group", sa.String(128), nullable=False),
            sa.Column("message", sa.Text, nullable=False),
            sa.Column("processed_ns", sa.BigInteger, nullable=False),
            sa.Index(f"{name}_processed", "processed_ns"),
            schema=schema or None,
        )

    # -- the table --

    def create(self) -> Inbox:
        """Creates the table, unless it is there."""
        make_table(self._database(), self.table)
        return self

    def purge(self, older_than: timedelta) -> int:
        """Forgets what was processed longer ago, and returns how much. A message that is delivered again after that
        counts again: keep marks longer than a consumer may ever be down."""
        if not isinstance(older_than, timedelta):
            raise BadArgument("older_than is no timedelta.", advice="inbox.purge(timedelta(days=30))")
        age_ns = duration_ms(older_than, "older_than") * 1_000_000
        if age_ns > _OLDEST_NS:
            return 0  # marks are not that old
        database, removed = self._database(), 0
        before = now_ns(database.kind) - age_ns
        while True:
            found = database.run(partial(self._purge_some, before))
            removed += found
            if found < _PURGED_AT_ONCE:
                return removed

    def _purge_some(self, before: sa.ColumnElement[int], connection: Connection) -> int:
        columns = self.table.c
        chosen = sa.select(columns.mark).where(columns.processed_ns < before).limit(_PURGED_AT_ONCE)
        marks = connection.execute(chosen).scalars().all()
        if marks:
            connection.execute(self.table.delete().where(columns.mark.in_(marks)))
        return len(marks)

    def _database(self) -> Database:
        if self._where is None:
            raise BadArgument("This inbox was made without a database.", advice="Inbox('postgresql://…')")
        database = open_database(self._where)
        self._where = database
        return database

    # -- processing --

    @asynccontextmanager
    async def process(
        self, message: Message, connection: Connection | AsyncConnection, *, group: str | None = None
    ) -> AsyncIterator[bool]:
        """Begins a transaction, marks the message in it, runs the block, commits, and then acks the message.

        The block is told whether the message is there for the first time. When it is not, its effect was committed
        before, and only the ack is missing. An exception in the block rolls everything back; the message is not acked
        and will be delivered again. ``group``: each counts for itself; by default the one that the message came to.

        Raises AlreadyInTransaction: then use ``mark``, commit, and ack the message yourself. Raises NotInTransaction
        if the connection commits each statement by itself.
        """
        _check_arguments(message, Message, connection)
        _check_idle(connection.in_transaction())
        origin = await _origin(message.acks)
        run = _runner(connection)
        begun: list[sa.RootTransaction] = []  # also when the caller is cancelled, and is not told

        def begin(connection: Connection) -> bool:
            transaction, first = self._begin(connection, message, group, origin)
            begun.append(transaction)
            return first

        try:
            yield await run(begin)
            await run(lambda _: begun[0].commit())
        except BaseException:
            await clean_up(run, _roll_back, begun)
            raise
        await message.ack()

    @contextmanager
    def process_sync(
        self, message: sync.Message, connection: Connection, *, group: str | None = None
    ) -> Iterator[bool]:
        """``process`` for messages of ``tickwheel.sync``."""
        _check_arguments(message, sync.Message, connection)
        _check_idle(connection.in_transaction())
        origin = _origin_sync(message)
        transaction, first = self._begin(connection, message, group, origin)
        try:
            yield first
            if transaction.is_active:
                transaction.commit()
        except BaseException:
            _roll_back(connection, [transaction])
            raise
        message.ack()

    async def mark(
        self, message: Message, connection: Connection | AsyncConnection, *, group: str | None = None
    ) -> bool:
        """Marks a message as processed in the transaction that is open; whether that is the first time. Commit, and
        then ack the message. Raises NotInTransaction."""
        _check_arguments(message, Message, connection)
        _check_begun(connection.in_transaction())
        origin = await _origin(message.acks)
        return bool(await _runner(connection)(self._insert, message, group, origin))

    def mark_sync(self, message: sync.Message, connection: Connection, *, group: str | None = None) -> bool:
        """``mark`` for messages of ``tickwheel.sync``."""
        _check_arguments(message, sync.Message, connection)
        _check_begun(connection.in_transaction())
        return self._insert(connection, message, group, _origin_sync(message))

    def _begin(
        self, connection: Connection, message: Message | sync.Message, group: str | None, origin: _Origin
    ) -> tuple[sa.RootTransaction, bool]:
        """A transaction that begins with the mark, and whether that was not there. Nothing else is in it yet, so it can
        begin again when others were in its way: of several that wait for one mark, MariaDB may let one deadlock."""
        for pause_s in (*_PAUSES_S, None):
            transaction = connection.begin()
            try:
                return transaction, self._insert(connection, message, group, origin)
            except DBAPIError as error:
                transaction.rollback()
                if pause_s is None or not is_busy(error):
                    raise
            except BaseException:
                transaction.rollback()
                raise
            time.sleep(pause_s)
        raise AssertionError("unreachable")

    def _insert(
        self, connection: Connection, message: Message | sync.Message, group: str | None, origin: _Origin
    ) -> bool:
        """Inserts the mark; waits for a transaction that does the same. Whether it was not there."""
        group = origin.group if group is None else group
        check_name(group, "group")
        if commits_each_statement(connection):  # the mark would stay when the effect is rolled back
            raise NotInTransaction("The connection commits each statement by itself.")
        kind = KINDS[connection.dialect.name]
        name = f"{origin.log_id}/{message.id}"
        if self._by == "key" and message.key is not None:
            name = f"key {message.key}"
        parts = [part.encode(errors="surrogateescape") for part in (message.topic, group, name)]
        row = {
            "mark": hashlib.sha256(b"\0".join(parts)).hexdigest(),
            "topic": message.topic,
            "consumer_group": group,
            "message": repr(name)[1:-1],
            "processed_ns": now_ns(kind),
        }
        try:
            if kind == "mariadb":  # whose IGNORE would also ignore other errors
                return _added(connection, self.table.insert().values(row))
            insert = postgresql.insert if kind == "postgresql" else sqlite.insert
            statement = insert(self.table).values(row).on_conflict_do_nothing(index_elements=["mark"])
            return connection.execute(statement.returning(self.table.c.mark)).first() is not None
        except DBAPIError as error:
            if not is_missing_table(error):
                raise
            raise TableMissing(
                f"There is no table {self.table.fullname}.", advice="Make it once: Inbox(database).create()"
            ) from error


def _roll_back(connection: Connection, begun: Sequence[sa.RootTransaction]) -> None:
    """Rolls back what has begun, unless it has ended."""
    if not begun or connection.get_transaction() is not begun[0]:
        return
    has_failed = not begun[
        0
    ].is_active  # SQLAlchemy takes a failed commit for an end; SQLite goes on with the transaction
    begun[0].rollback()
    if has_failed and not connection.invalidated:
        connection.connection.rollback()


def _added(connection: Connection, statement: sa.Insert) -> bool:
    try:
        connection.execute(statement)
    except IntegrityError as error:
        if error.orig is None or error.orig.args[:1] != (_DUPLICATE_MARIADB,):
            raise
        return False
    return True


_Run: TypeAlias = Callable[..., Any]


def _runner(connection: Connection | AsyncConnection) -> _Run:
    """How a function of a connection is called without stopping the event loop. A cancellation waits for its end: a
    rollback meanwhile would use the connection in two threads at once."""
    if not isinstance(connection, sa.Connection):
        return connection.run_sync

    async def run(work: Callable[..., T], *arguments: Any) -> T:
        return await finish_in_thread(work, connection, *arguments)

    return run


def _check_arguments(message: object, cls: type, connection: object) -> None:
    if not isinstance(message, cls):
        raise BadArgument(
            f"{shown(message)} is no tickwheel.{'sync.' if cls is sync.Message else ''}Message.",
            advice="Pass the message that a subscription gave; those of tickwheel.sync go to process_sync, mark_sync.",
        )
    if not isinstance(connection, sa.Connection) and not hasattr(connection, "run_sync"):
        raise BadArgument(
            f"The connection is a {type(connection).__name__}.",
            advice="Pass SQLAlchemy's Connection or AsyncConnection.",
        )


def _check_idle(is_in_transaction: bool) -> None:
    if is_in_transaction:
        raise AlreadyInTransaction


def _check_begun(is_in_transaction: bool) -> None:
    if not is_in_transaction:
        raise NotInTransaction


# -- which log a message is in --

_log_ids: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""By connection: what is behind it does not change while it stands."""


class _Origin(NamedTuple):
    """Where a message came from: numbers of messages mean something in one log only."""

    log_id: str
    group: str


async def _origin(acks: AckQueue) -> _Origin:
    link = acks.link
    known = None if link is None else _log_ids.get(link)
    if known is None:
        answer = await acks.request(Drop(runs=[]))  # which drops nothing, and says where it is
        assert isinstance(answer, DropOk)
        known = answer.log_id
        if link is not None and link is acks.link:
            _log_ids[link] = known
    return _Origin(known, acks.group_name)


def _origin_sync(message: sync.Message) -> _Origin:
    return message._batch.settling.call(_origin)


# -- the inbox of the usual name --

_usual: Final = Inbox()
process = _usual.process
process_sync = _usual.process_sync
mark = _usual.mark
mark_sync = _usual.mark_sync
