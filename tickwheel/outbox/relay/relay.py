"""The relay: committed messages of a message table go to the broker, each exactly once.

Producers need the database only. The relay hands future messages over at once, and the broker's wheel does the
waiting.

Exactly once, because the broker stores a batch together with a marker that has the batch's number, in one record, and
the database marks the rows as sent together with that number, in one commit. The number is the same on both sides, or
the broker's is one ahead: then its marker says what was sent. No time limit is part of this: markers are not purged,
so it does not matter how long the broker remembers the keys of messages, nor how long a relay was down.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tickwheel.client.checks import listed, seconds, seconds_or_none, text, whole
from tickwheel.client.client import Client
from tickwheel.client.columns import check_name
from tickwheel.client.url import Urls
from tickwheel.client.waiting.backoff import Backoff
from tickwheel.outbox.database import Database, open_database
from tickwheel.outbox.errors import BadTable, OutboxError, TableMissing
from tickwheel.outbox.messages.schema import load, reflected
from tickwheel.outbox.messages.table import MessageTable
from tickwheel.outbox.relay.batch import BatchMover, Outcome, RelayStats
from tickwheel.outbox.relay.ledger import Ledger
from tickwheel.outbox.relay.log import log
from tickwheel.outbox.relay.rows import OWN_TOPICS, RowReader
from tickwheel.outbox.relay.store import RelayStore
from tickwheel.outbox.sequence import sequence_of
from tickwheel.outbox.threads import finish_in_thread
from tickwheel.outbox.watch import Bell, Watch, watch_table
from tickwheel.protocol.errors import BadArgument, TickwheelError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Engine

_BATCH_MAX: Final = 10_000
_SEND_TIMEOUT_S: Final = 30.0
_SEND_TIMEOUT_SQLITE_S: Final = 2.0
"""On SQLite no other transaction can write while the broker is asked."""


def _names(names: object, option: str) -> list[str] | None:
    """Raises BadArgument for what are no names of columns."""
    if names is None:
        return None
    return [
        text(one, f"{option}[{index}]")
        for index, one in enumerate(listed(names, option, '["id", "message"]'))
    ]


class Relay:
    """Moves committed messages from a message table to a topic of the broker::

        relay = outbox.Relay("postgresql://app@db/app", "outbox", "tickwheel://127.0.0.1:7411", "orders")
        await relay.run()

    ``where``: the database. ``table``: a message table or its name, or any table with its columns, by name or as a
    reflected Table. ``broker``: a URL (or several, see Client), or an open Client; None: ``TICKWHEEL_URL``,
    else this machine.

    ``columns``: those of the message, by default the streamed ones of a message table, else all that are not
    bookkeeping. ``body``: the column that
    becomes the body; by default ``message`` or ``body``, else the body is a JSON object of all columns. ``headers``:
    the columns that become headers; by default all others. ``order_key``: the column with the ordering key.
    ``key``: the column with the key, by default it is ``<table>:<id>``. ``topic_column``: the column with the topic,
    for rows of several; what has none there goes to ``topic``.
    ``batch``: the most rows at a time. ``poll_s``: how often the table is looked at although no commit was noticed.
    ``send_timeout_s``: how long rows may stay locked while the broker is asked (2 s on SQLite, else 30 s).

    Of several relays of one table, one works and the others stand by.
    """

    _mover_class: type[BatchMover] = BatchMover

    def __init__(
        self,
        where: str | URL | Engine | Database,
        table: str | sa.Table | MessageTable,
        broker: Urls | Client | None,
        topic: str,
        *,
        columns: Sequence[str] | None = None,
        body: str | None = None,
        headers: Sequence[str] | None = None,
        order_key: str | None = None,
        key: str | None = None,
        topic_column: str | None = None,
        batch: int = 1_000,
        poll_s: float = 5.0,
        send_timeout_s: float | None = None,
    ) -> None:
        check_name(topic)
        if topic.startswith(OWN_TOPICS):
            raise BadArgument(f"{topic} is a topic of Tickwheel's own.", advice="Choose another name.")
        if isinstance(table, MessageTable):
            table = table.name
        if not isinstance(table, str | sa.Table) or not isinstance(
            broker, str | list | tuple | Client | None
        ):
            raise BadArgument(
                f"The relay of a {type(table).__name__} to a {type(broker).__name__} is not possible.",
                advice="table: a name, a MessageTable or a sqlalchemy.Table; broker: a URL or a tickwheel.Client.",
            )
        batch = whole(batch, "batch", 1, _BATCH_MAX)
        poll_s, send_timeout_s = seconds(poll_s, "poll_s"), seconds_or_none(send_timeout_s, "send_timeout_s")
        if poll_s == 0 or send_timeout_s == 0:
            raise BadArgument("poll_s and send_timeout_s must be above 0.", advice="Use seconds: 5.0")
        named = (("body", body), ("order_key", order_key), ("key", key), ("topic_column", topic_column))
        for option, name in named:
            if name is not None:
                text(name, option, "Use the name of a column.")
        columns, headers = _names(columns, "columns"), _names(headers, "headers")
        self._where = where
        self._table: str | sa.Table = table
        self._broker = broker
        self._topic = topic
        self._columns: dict[str, Any] = {
            "columns": columns,
            "body": body,
            "headers": headers,
            "order_key": order_key,
            "key": key,
            "topic": topic_column,
        }
        self._batch = batch
        self._poll_s = poll_s
        self._send_timeout_s = send_timeout_s
        self._database: Database | None = None
        self._mover: BatchMover | None = None
        self._stats = RelayStats()

    @property
    def stats(self) -> RelayStats:
        """What it did so far."""
        return self._stats

    # -- running --

    async def run_once(self) -> int:
        """Moves what is there, and returns how many messages; 0 also when another relay has the table. Raises what
        goes wrong; calling it again is safe."""
        async with self._open_client() as client:
            mover = await self._prepare(client)
            return await _drain(mover)

    async def run(self) -> None:
        """Moves what is committed, as it is committed, until it is cancelled.

        Waits while the database or the broker is away. Raises TableMissing, BadTable and other errors that a
        retry does not help against.
        """
        backoff = Backoff(first_s=0.1, max_s=10.0)
        while True:
            try:
                async with self._open_client() as client:
                    mover = await self._prepare(client)
                    await self._serve(mover, backoff)
            except Exception as error:
                await _wait_out(error, backoff)

    async def _serve(self, mover: BatchMover, backoff: Backoff) -> None:
        """Moves and waits in turn. Raises what ends it."""
        assert self._database is not None
        watch = watch_table(self._database, _name(self._table))
        bell = Bell()
        ended: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(watch.run, bell.ring)
            group.start_soon(self._purge)
            try:
                while True:
                    bell.clear()
                    is_standby = await _look(watch, mover)
                    backoff.reset()
                    await bell.wait(self._pause_s(mover, is_standby))
            except Exception as error:
                ended = error  # raised outside of the group, which would wrap it
            group.cancel_scope.cancel()
        if ended is not None:
            raise ended

    async def _purge(self) -> None:
        """Deletes what a message table has kept for its ``purge_after``; other tables are the user's to clear."""
        assert self._database is not None
        table = MessageTable(self._database, _name(self._table))
        try:
            await self._database.call(table.reload)
        except OutboxError:
            return
        while True:
            await anyio.sleep(table.settings.poller_interval_ms / 1000)
            try:
                await self._database.call(table.purge)
            except (OutboxError, DBAPIError) as error:
                log.warning("Nothing is purged.", table=table.name, error=str(error))

    def _pause_s(self, mover: BatchMover, is_standby: bool) -> float:
        """How long to wait for a commit. A relay that stands by looks more often whether it is needed."""
        again_at = mover.aside.next_at()
        pause_s = min(self._poll_s, 1.0) if is_standby else self._poll_s
        return pause_s if again_at is None else max(0.0, min(pause_s, again_at - anyio.current_time()))

    # -- opening --

    @asynccontextmanager
    async def _open_client(self) -> AsyncIterator[Client]:
        if isinstance(self._broker, Client):
            yield self._broker
            return
        async with Client(self._broker, name="relay") as client:
            yield client

    async def _prepare(self, client: Client) -> BatchMover:
        """Opens the database and reads the table's columns. Raises TableMissing, BadTable, DatabaseUnavailable."""
        store, ledger = await finish_in_thread(self._open_table)
        default_s = _SEND_TIMEOUT_SQLITE_S if store.database.kind == "sqlite" else _SEND_TIMEOUT_S
        timeout_s = default_s if self._send_timeout_s is None else self._send_timeout_s
        mover = self._mover_class(
            client=client,
            store=store,
            ledger=ledger,
            topic=self._topic,
            batch=self._batch,
            timeout_s=timeout_s,
        )
        if self._mover is not None:
            mover.aside = self._mover.aside
        mover.stats = self._stats
        self._mover = mover
        return mover

    def _open_table(self) -> tuple[RelayStore, Ledger]:
        if self._database is None:
            self._database = open_database(self._where)
        database = self._database
        with database.reading() as connection:
            if isinstance(self._table, str):
                self._table, streamed = _reflected(database, connection, self._table)
                if self._columns["columns"] is None:
                    self._columns["columns"] = streamed
            sequence = sequence_of(database.kind, connection, self._table)
        ledger = Ledger(database, self._table)
        ledger.create()
        return RelayStore(database, RowReader(table=self._table, **self._columns, sequence=sequence)), ledger


async def _look(watch: Watch, mover: BatchMover) -> bool:
    """Moves what is there; whether another relay has the table."""
    while True:
        async with watch.look() as look:
            outcome = await mover.move()
            look.found = outcome.moved > 0
        if outcome.is_standby or not outcome.more:
            return outcome.is_standby


async def _drain(mover: BatchMover) -> int:
    moved, outcome = 0, Outcome(more=True)
    while outcome.more:
        outcome = await mover.move()
        moved += outcome.moved
    return moved


async def _wait_out(error: Exception, backoff: Backoff) -> None:
    """Waits after an error that may pass; raises one that does not."""
    may_pass = isinstance(error, OSError) or (isinstance(error, TickwheelError) and error.retryable)
    if not may_pass:
        raise error
    wait_s = backoff.next_s()
    log.warning("The relay waits.", error=f"{type(error).__name__}: {error}", again_in_s=round(wait_s, 3))
    await anyio.sleep(wait_s)


def _name(table: str | sa.Table) -> str:
    return table if isinstance(table, str) else table.name


def _reflected(
    database: Database, connection: sa.Connection, name: str
) -> tuple[sa.Table, Sequence[str] | None]:
    """The table as the database has it; the name may have a schema. Which columns are streamed, if it is a message
    table. Raises TableMissing."""
    schema, _, plain = name.rpartition(".")
    if not schema:
        try:
            found = load(database, connection, plain)
        except BadTable:
            pass  # no settings are needed here
        else:
            return found.table, found.columns
    try:
        return reflected(connection, plain, schema or None), None
    except TableMissing:
        raise TableMissing(f"There is no table {name!r}.") from None
