"""The relay, the inbox and the services of keys, cancelled at each of their steps: nothing is lost or done twice, and
no transaction, lease or connection stays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

from tests.support.clients.cancelling import Canceller, each_step, run
from tests.support.outbox.relaying import PATIENCE_S, Messages, check_once
from tickwheel._embedded import EmbeddedBroker
from tickwheel.outbox import Inbox, Increment, KeySpace, Relay, open_database
from tickwheel.outbox.keys.tables import Service
from tickwheel.outbox.threads import finish_in_thread

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])
SOME_STEPS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 30, 40, 60)
EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("body", sa.String(100), nullable=False))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a.sqlite'}"


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    """The user's own engine, with the inbox's table and one for effects."""
    with open_database(url) as database:
        Inbox(database).create()
        EFFECTS.create(database.engine)
    engine = sa.create_engine(url, connect_args={"timeout": 0})
    yield engine
    engine.dispose()


def add_effect(connection: sa.Connection, body: bytes) -> None:
    connection.execute(EFFECTS.insert().values(body=body.decode()))


def effects(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(sa.select(EFFECTS.c.body).order_by(sa.text("rowid"))).scalars())


def check_idle(engine: sa.Engine) -> None:
    """Each connection is back, and nothing has the database locked."""
    assert isinstance(engine.pool, sa.QueuePool)
    assert engine.pool.checkedout() == 0
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        finally:
            connection.exec_driver_sql("PRAGMA busy_timeout = 15000")


# -- work in threads --


@BACKENDS
def test_work_that_is_cancelled_has_ended_or_never_begins(backend: str) -> None:
    async def main(canceller: Canceller) -> None:
        at_work, done, kept = 0, 0, []

        def add() -> int:
            nonlocal at_work, done
            at_work += 1
            done += 1
            at_work -= 1
            return done

        async def before() -> None:
            kept.clear()

        async def work() -> None:
            kept.append(await finish_in_thread(add, keep=kept.append))

        async def after() -> None:
            now = done
            assert at_work == 0
            assert kept == [now] * len(kept)
            await anyio.sleep(0.005)
            assert done == now

        assert await each_step(canceller, work, before=before, after=after)

    run(backend, main)


# -- the inbox --


@BACKENDS
def test_a_message_that_is_processed_by_calls_that_are_cancelled(
    broker: EmbeddedBroker, engine: sa.Engine, backend: str
) -> None:
    """The effect is there once, and the user's connection can be used on."""

    async def main(canceller: Canceller) -> None:
        inbox, sent = Inbox(), 0
        topic = f"processed-{backend}"
        with anyio.fail_after(PATIENCE_S):
            async with broker.client() as client, client.subscribe(topic) as subscription:
                with engine.connect() as connection:
                    message: Any = None

                    async def before() -> None:
                        nonlocal message, sent
                        sent += 1
                        await client.send(topic, b"%d" % sent)
                        message = await subscription.receive(PATIENCE_S)

                    async def work() -> None:
                        async with inbox.process(message, connection) as first:
                            if first:
                                add_effect(connection, message.body)
                            await anyio.lowlevel.checkpoint()

                    async def after() -> None:
                        assert not connection.in_transaction()
                        await work()

                    assert await each_step(canceller, work, before=before, after=after)
                assert effects(engine) == [str(number) for number in range(1, sent + 1)]
                check_idle(engine)
                await subscription.flush()
                page = await client.browse(topic, limit=1_000)
                assert {one.groups[0]["state"] for one in page} == {"acked"}

    run(backend, main)


async def test_a_commit_that_fails_is_rolled_back(broker: EmbeddedBroker, engine: sa.Engine) -> None:
    failures = iter([True])

    def fail(_connection: sa.Connection) -> None:
        if next(failures, False):
            raise OSError("the disk")

    sa.event.listen(engine, "commit", fail)
    async with broker.client() as client, client.subscribe("commit-fails") as subscription:
        await client.send("commit-fails", b"1")
        message = await subscription.receive(PATIENCE_S)
        assert message is not None
        with engine.connect() as connection:
            for expected in (pytest.raises(OSError, match="the disk"), nullcontext()):
                with expected:
                    async with Inbox().process(message, connection) as first:
                        assert first
                        add_effect(connection, message.body)
                assert connection.get_transaction() is None
    assert effects(engine) == ["1"]


def test_a_thread_at_the_users_connection_is_waited_for(broker: EmbeddedBroker, engine: sa.Engine) -> None:
    """asyncio's own cancel comes while the mark is being inserted, and again while that is waited for."""
    inside, may_go_on, users = threading.Event(), threading.Event(), set()

    def stop(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        users.add(threading.get_ident())
        if statement.startswith("INSERT"):
            inside.set()
            assert may_go_on.wait(PATIENCE_S)

    async def main() -> None:
        async with broker.client() as client, client.subscribe("waited-for") as subscription:
            await client.send("waited-for", b"1")
            message = await subscription.receive(PATIENCE_S)
            assert message is not None
            with engine.connect() as connection:

                async def process() -> None:
                    async with Inbox().process(message, connection):
                        raise AssertionError("it was cancelled before")

                task = asyncio.create_task(process())
                assert await asyncio.to_thread(inside.wait, PATIENCE_S)
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0.02)
                    assert not task.done()
                may_go_on.set()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert not connection.in_transaction()
                async with Inbox().process(message, connection) as first:
                    assert first
            check_idle(engine)

    sa.event.listen(engine, "before_cursor_execute", stop)
    anyio.run(main, backend="asyncio")


# -- the relay --


@BACKENDS
def test_a_relay_that_is_cancelled(broker: EmbeddedBroker, url: str, backend: str) -> None:
    """Each message is in the topic once, also when the broker has stored a batch that was not committed."""
    messages, topic, sent = Messages(url), f"cancelled-{backend}", 0

    async def main(canceller: Canceller) -> None:
        async with broker.client() as client:
            relay = Relay(url, messages.name, client, topic)

            async def before() -> None:
                nonlocal sent
                messages.add_ids(range(sent, sent + 2))
                sent += 2

            async def after() -> None:
                if relay._database is not None:
                    check_idle(relay._database.engine)

            assert await each_step(canceller, relay.run_once, before=before, after=after)
            with anyio.fail_after(PATIENCE_S):
                await relay.run_once()
            await check_once(client, topic, messages, range(sent))
            assert relay._database is not None
            relay._database.close()

    run(backend, main)
    messages.close()


@BACKENDS
def test_a_relay_that_waits_is_cancelled(broker: EmbeddedBroker, url: str, backend: str) -> None:
    """As a service, and started again after each cancellation."""
    messages, topic, sent = Messages(url), f"service-{backend}", 0

    async def main(canceller: Canceller) -> None:
        nonlocal sent
        async with broker.client() as client:
            relay = Relay(messages.database, messages.name, client, topic)

            async def work() -> None:
                await relay.run()

            for n in SOME_STEPS:
                messages.add_ids(range(sent, sent + 2))
                sent += 2
                with anyio.fail_after(PATIENCE_S):
                    assert await canceller.attempt(work, n)
                check_idle(messages.database.engine)
            with anyio.fail_after(PATIENCE_S):
                await relay.run_once()
            await check_once(client, topic, messages, range(sent))

    run(backend, main)
    messages.close()


# -- the services of keys --


@BACKENDS
@pytest.mark.parametrize("service", ["dispatcher", "executor"])
def test_a_key_service_that_is_cancelled(url: str, backend: str, service: Service) -> None:
    """Its ranges are free at once, and the same worker starts again."""

    async def main(canceller: Canceller) -> None:
        with KeySpace(url, "shop") as space:
            space.create()
            worker = getattr(space, service)(lease_s=3_600.0)
            how: list[Callable[[], Any]] = [worker.run, lambda: in_block(worker)]
            for number, n in enumerate(SOME_STEPS):
                with space.database.begin() as connection:
                    space.send(connection, "box", b"%d" % number, sender="s")
                    space.execute(connection, Increment("n"), sender="s")
                with anyio.fail_after(PATIENCE_S):
                    assert await canceller.attempt(how[number % 2], n)
                check_idle(space.database.engine)
                stats = space.stats()
                assert {one.owner for one in stats.ranges} == {None}
                assert stats.dispatchers == stats.executors == 0
            with anyio.fail_after(PATIENCE_S):
                async with space.dispatcher(), space.executor():
                    while (stats := space.stats()).deliverable_messages or stats.executable_messages:
                        await anyio.sleep(0.01)
            with space.database.begin() as connection:
                assert [one.value for one in space.reap(connection, "box", 1_000)] == [
                    b"%d" % number for number in range(len(SOME_STEPS))
                ]
                assert space.get(connection, "n") == b"%d" % len(SOME_STEPS)
            check_idle(space.database.engine)

    async def in_block(worker: Any) -> None:
        async with worker:
            await anyio.sleep_forever()

    run(backend, main)
