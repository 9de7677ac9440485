"""An effect in the user's database happens once for each message, however often and to whomever it is delivered."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

import tickwheel
from tests.support.clients import forking
from tests.support.outbox.databases import OUTBOX
from tests.support.outbox.relaying import PATIENCE_S, until
from tests.support.processes.daemon_harness import Daemon
from tickwheel import sync
from tickwheel._embedded import EmbeddedBroker
from tickwheel.outbox import (
    AlreadyInTransaction,
    Inbox,
    NotInTransaction,
    TableMissing,
    inbox,
    open_database,
)
from tickwheel.protocol.errors import AckRefused, BadArgument, BadTopicName

DATA = sa.MetaData()
EFFECTS = sa.Table("effects", DATA, sa.Column("body", sa.String(100), nullable=False))


class Failed(Exception):
    """The user's code failed."""


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    """The user's own engine, with the inbox's table and one for effects."""
    with open_database(database_url) as database:
        Inbox(database).create().create()
        DATA.create_all(database.engine)
    engine = sa.create_engine(database_url)
    yield engine
    engine.dispose()


def effects(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(sa.select(EFFECTS.c.body)).scalars())


def act(connection: sa.Connection, message: Any) -> None:
    connection.execute(EFFECTS.insert().values(body=message.body.decode()))


async def is_acked(client: tickwheel.Client, topic: str) -> bool:
    """Whether every message of the topic is acked in its only group."""
    return all(one.groups[0]["state"] == "acked" for one in await client.browse(topic))


def acked(client: tickwheel.Client, topic: str) -> Callable[[], Awaitable[bool]]:
    return lambda: is_acked(client, topic)


async def fail_in(message: tickwheel.Message, connection: Any) -> None:
    """The user's code fails after its effect."""
    async with inbox.process(message, connection) as first:
        assert first
        if isinstance(connection, sa.Connection):
            act(connection, message)
        else:
            await connection.run_sync(act, message)
        raise Failed


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_effect_commits_with_the_mark_and_then_the_message_is_acked(
    backend: str, broker: EmbeddedBroker, engine: sa.Engine, topic: str
) -> None:
    async def main() -> None:
        async with broker.client() as client, client.subscribe(topic) as subscription:
            await client.send(topic, b"pay")
            message = await subscription.receive(PATIENCE_S)
            assert message is not None
            with engine.connect() as connection:
                with pytest.raises(Failed):
                    await fail_in(message, connection)
                assert not connection.in_transaction()
                assert (effects(engine), await is_acked(client, topic)) == ([], False)
                async with inbox.process(message, connection) as first:
                    assert first
                    act(connection, message)
                await until(acked(client, topic))
                async with inbox.process(message, connection) as first:
                    assert not first
                async with inbox.process(message, connection, group="other") as first:
                    assert first  # each group counts for itself
            assert effects(engine) == ["pay"]

    anyio.run(main, backend=backend)


async def test_only_the_ack_is_missing_when_it_comes_again(
    broker: EmbeddedBroker, engine: sa.Engine, topic: str
) -> None:
    """The consumer died between the commit and the ack."""
    async with broker.client() as client:
        await client.send(topic, b"pay")
        async with client.subscribe(topic) as subscription:
            message = await anext(subscription)
            with engine.connect() as connection, connection.begin():
                assert await inbox.mark(message, connection)
                act(connection, message)
        await client.redeliver(topic=None, id=message.id)
        async with client.subscribe(topic) as subscription:
            again = await subscription.receive(PATIENCE_S)
            assert again is not None
            with engine.connect() as connection:
                async with inbox.process(again, connection) as first:
                    assert not first
            await until(acked(client, topic))
        assert effects(engine) == ["pay"]


async def test_a_missing_table_is_said(broker: EmbeddedBroker, engine: sa.Engine, topic: str) -> None:
    async with broker.client() as client, client.subscribe(topic, group="till") as subscription:
        await client.send(topic, b"pay")
        message = await anext(subscription)
        with engine.connect() as connection:
            with pytest.raises(TableMissing, match="elsewhere") as caught:
                async with Inbox(table_name="elsewhere").process(message, connection):
                    raise AssertionError("there is nothing to do")
            assert "create()" in caught.value.advice
            assert not connection.in_transaction()


async def test_groups_count_for_themselves(broker: EmbeddedBroker, engine: sa.Engine, topic: str) -> None:
    async with (
        broker.client() as client,
        client.subscribe(topic, group="till") as till,
        client.subscribe(topic, group="audit") as audit,
    ):
        await client.send(topic, b"pay")
        for subscription in (till, audit):
            message = await anext(subscription)
            with engine.connect() as connection:
                for expected in (True, False):
                    async with inbox.process(message, connection) as first:
                        assert first is expected


async def test_two_consumers_at_once_have_one_effect(
    broker: EmbeddedBroker, engine: sa.Engine, topic: str
) -> None:
    """The second has the message because the first one's lease ran out. It waits for the first one's transaction."""
    outcomes: list[bool] = []
    inside = anyio.Event()
    async with broker.client() as client, client.subscribe(topic) as subscription:
        await client.send(topic, b"pay")
        message = await anext(subscription)

        async def consume(*, fails: bool = False) -> None:
            with engine.connect() as connection:
                async with inbox.process(message, connection) as first:
                    outcomes.append(first)
                    inside.set()
                    if first:
                        await anyio.to_thread.run_sync(act, connection, message)
                    if fails:
                        raise Failed

        async def fail() -> None:
            with pytest.raises(Failed):
                await consume(fails=True)

        async with anyio.create_task_group() as group:
            group.start_soon(fail)
            await inside.wait()
            for _ in range(4):
                group.start_soon(consume)
        assert sorted(outcomes) == [False, False, False, True, True]
        assert effects(engine) == ["pay"]


async def test_a_consumer_that_is_cancelled_leaves_nothing_behind(
    broker: EmbeddedBroker, engine: sa.Engine, topic: str
) -> None:
    async with broker.client() as client, client.subscribe(topic) as subscription:
        await client.send(topic, b"pay")
        message = await anext(subscription)
        with engine.connect() as connection:
            with anyio.CancelScope() as scope:
                async with inbox.process(message, connection):
                    act(connection, message)
                    scope.cancel()  # noticed at the commit
            assert scope.cancelled_caught
            assert not connection.in_transaction()
            assert effects(engine) == []
            async with inbox.process(message, connection) as first:
                assert first


def test_the_blocking_twin(broker: EmbeddedBroker, engine: sa.Engine, topic: str) -> None:
    with broker.sync_client() as client, client.subscribe(topic) as subscription:
        client.send(topic, b"pay")
        message = subscription.receive(PATIENCE_S)
        assert message is not None
        with engine.connect() as connection:
            with pytest.raises(Failed), inbox.process_sync(message, connection):
                fail(connection, message)
            for expected in (True, False):
                with inbox.process_sync(message, connection) as first:
                    assert first is expected
                    if first:
                        act(connection, message)
            with connection.begin():
                assert not inbox.mark_sync(message, connection)
            with pytest.raises(BadArgument, match=r"is no tickwheel\.sync\.Message\."):
                inbox.mark_sync("message", connection)  # type: ignore[arg-type]
        subscription.flush()
        assert client.browse(topic)[0].groups[0]["state"] == "acked"
    assert effects(engine) == ["pay"]


def fail(connection: sa.Connection, message: sync.Message) -> None:
    act(connection, message)
    raise Failed


async def test_whose_transaction_it_is(broker: EmbeddedBroker, engine: sa.Engine, topic: str) -> None:
    async with broker.client() as client, client.subscribe(topic) as subscription:
        await client.send(topic, b"pay")
        message = await anext(subscription)
        with engine.connect() as connection:
            with pytest.raises(NotInTransaction):
                await inbox.mark(message, connection)
            with connection.begin():
                with pytest.raises(AlreadyInTransaction):
                    await inbox.process(message, connection).__aenter__()
                assert await inbox.mark(message, connection)
                assert not await inbox.mark(message, connection)
            with pytest.raises(BadTopicName):
                await inbox.process(message, connection, group="no group").__aenter__()
            assert not connection.in_transaction()


async def test_what_tells_messages_apart(broker: EmbeddedBroker, engine: sa.Engine, topic: str) -> None:
    """By default the broker's number; by key, what was sent again under the same key is the same."""
    by_key = Inbox(engine, "keys_inbox", by="key").create()
    async with broker.client() as client, client.subscribe(topic) as subscription:
        outcomes: list[tuple[bool, bool]] = []
        for key in ("order-17", "Order-17", "order-17 ", "order-17", None, None):
            await client.send(topic, b"", key=key)
            message = await anext(subscription)
            found: list[bool] = []
            with engine.connect() as connection:
                for one in (inbox, by_key):
                    async with one.process(message, connection) as first:
                        found.append(first)
            outcomes.append((found[0], found[1]))
            await until(acked(client, topic))
            place = await client.log_place()  # so that the broker forgets the key
            await client.drop(place.log_id, [(message.id, 1)], done_before=2**45)
        assert outcomes == [(True, one) for one in (True, True, True, False, True, True)]
    with pytest.raises(BadArgument):
        Inbox(engine, by="name")  # type: ignore[arg-type]


async def test_a_broker_with_another_log_has_other_messages(
    broker: EmbeddedBroker, engine: sa.Engine, tmp_path: Path
) -> None:
    """Their numbers are the same."""
    for url in (broker, tickwheel.embedded(tmp_path / "other")):
        if url is not broker:
            url.start()
        async with url.client() as client, client.subscribe("numbers") as subscription:
            await client.send_many("numbers", [b""] * 300)
            with engine.connect() as connection:
                for _ in range(3):
                    async with inbox.process(await anext(subscription), connection) as first:
                        assert first
        if url is not broker:
            url.close()


async def test_old_marks_are_purged(broker: EmbeddedBroker, engine: sa.Engine, topic: str) -> None:
    marks = Inbox(engine)
    async with broker.client() as client, client.subscribe(topic) as subscription:
        await client.send(topic, b"")
        message = await anext(subscription)
        with engine.connect() as connection:
            async with inbox.process(message, connection) as first:
                assert first
            assert marks.purge(timedelta(hours=1)) == 0
            with engine.begin() as other:
                other.execute(
                    marks.table.update().values(processed_ns=marks.table.c.processed_ns - 7_200 * 10**9)
                )
                old = {"topic": "t", "consumer_group": "g", "message": "m", "processed_ns": 1}
                rows = [{"mark": f"{one}", **old} for one in range(2_500)]
                other.execute(marks.table.insert(), rows)
            assert marks.purge(timedelta(hours=1)) == 2_501
            async with inbox.process(message, connection) as first:
                assert first
    with pytest.raises(BadArgument):
        Inbox().purge(timedelta(1))


# -- AsyncConnection --

_ASYNC_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "mariadb": "mariadb+aiomysql",
}


def test_with_an_asynchronous_connection(
    broker: EmbeddedBroker, engine: sa.Engine, database_url: str, topic: str
) -> None:
    pytest.importorskip("greenlet", reason="SQLAlchemy's asynchronous layer needs it")
    from sqlalchemy.ext.asyncio import create_async_engine

    url = sa.make_url(database_url)
    driver = _ASYNC_DRIVERS[url.get_backend_name()]
    url = url.set(drivername=driver).difference_update_query(["ssl_disabled"])  # it knows no such option
    if not driver.endswith("psycopg"):
        pytest.importorskip(driver.partition("+")[2])

    async def main() -> None:
        own = create_async_engine(url, poolclass=NullPool)
        async with broker.client() as client, client.subscribe(topic) as subscription:
            await client.send(topic, b"pay")
            message = await anext(subscription)
            async with own.connect() as connection:
                with pytest.raises(Failed):
                    await fail_in(message, connection)
                for expected in (True, False):
                    async with inbox.process(message, connection) as first:
                        assert first is expected
                        if first:
                            await connection.run_sync(act, message)
                async with connection.begin():
                    assert not await inbox.mark(message, connection)
            await until(acked(client, topic))
        assert effects(engine) == ["pay"]

    anyio.run(main, backend="asyncio")


# -- killed --

_CONSUMER = """
import os, signal, sys
import sqlalchemy as sa
from tickwheel import sync
from tickwheel.outbox import inbox

database, broker, topic, after = sys.argv[1:]
engine = sa.create_engine(database)
with sync.Client(broker) as client, client.subscribe(topic, credit=5, batch=5) as subscription:
    for number, message in enumerate(subscription, 1):
        with engine.connect() as connection, inbox.process_sync(message, connection) as first:
            if first:
                connection.execute(sa.text("insert into effects values (:body)"), {"body": message.body.decode()})
            if number == abs(int(after)) and int(after) < 0:
                os.kill(os.getpid(), signal.SIGKILL)  # before the commit
            if number == int(after):  # after the commit
                type(message).ack = lambda self: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_consumers_are_killed_before_and_after_the_commit(
    engine: sa.Engine, database_url: str, tmp_path: Path, topic: str
) -> None:
    running = Daemon(tmp_path / "data", ack_wait="200ms", min_backoff="200ms")
    with running as daemon, sync.Client(daemon.unix_url) as client:
        client.send_many(topic, [b"%d" % one for one in range(20)])
        for after in (-3, 3, 1):
            words = database_url, daemon.unix_url, topic, str(after)
            consumer = forking.start(_CONSUMER, *words, modules=OUTBOX)
            assert consumer.wait(PATIENCE_S) == -signal.SIGKILL
        with client.subscribe(topic) as subscription, closing(engine.connect()) as connection:
            done: set[int] = set()
            while len(done) < 20 and any(one.groups[0]["state"] != "acked" for one in client.browse(topic)):
                message = subscription.receive(1.0)
                if message is None:
                    continue
                with inbox.process_sync(message, connection) as first:
                    if first:
                        act(connection, message)
                with suppress(
                    AckRefused
                ):  # too late on a busy machine: then it comes again, and counts no more
                    subscription.flush()
                done.add(message.id)
    assert effects(engine) == sorted(str(one) for one in range(20))
