"""The asynchronous consumer of a queue on each database, on trio and on asyncio."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import anyio
import pytest
import sqlalchemy as sa

from tests.support.outbox.databases import DatabaseServer
from tickwheel import outbox
from tickwheel.outbox import DatabaseUnavailable, LeaseLost, TableMissing

PATIENCE_S = 60.0
SHORT = timedelta(milliseconds=600)
"""A lease whose end is waited for."""


@pytest.fixture
def play(database: outbox.Database) -> Callable[[Play], None]:
    """Runs a test with a queue of its own, on trio."""
    return lambda test: run(test, database, "trio")


@pytest.fixture(params=["trio", "asyncio"])
def play_on_both(request: pytest.FixtureRequest, database: outbox.Database) -> Callable[[Play], None]:
    """Runs a test with a queue of its own, on trio and on asyncio."""
    return lambda test: run(test, database, request.param)


def run(test: Play, database: outbox.Database, backend: str) -> None:
    queue = outbox.Queue(database.engine, f"q_{secrets.token_hex(4)}").create()

    async def main() -> None:
        with anyio.fail_after(PATIENCE_S):
            await test(queue)

    anyio.run(main, backend=backend)


Play = Callable[[outbox.Queue], Awaitable[None]]


def put(queue: outbox.Queue, *bodies: str) -> list[int]:
    with queue.database.begin() as connection:
        return queue.put_many(connection, bodies)


def end_leases(queue: outbox.Queue) -> None:
    lease = queue.sql.table.c.lease_until_ns
    ended = sa.update(queue.sql.table).where(lease > 0).values(lease_until_ns=1)
    queue.database.run(lambda connection: connection.execute(ended))  # the consumer renews them meanwhile


async def receive(consumer: outbox.QueueConsumer) -> outbox.QueueBatch:
    batch = await consumer.receive(PATIENCE_S)
    assert batch is not None
    return batch


@contextmanager
def counted(queue: outbox.Queue) -> Iterator[list[str]]:
    """The statements that are executed meanwhile."""
    statements: list[str] = []

    def note(_c: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    sa.event.listen(queue.database.engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sa.event.remove(queue.database.engine, "before_cursor_execute", note)


def test_messages_come_in_order_and_end_when_asked(play_on_both: Callable[[Play], None]) -> None:
    async def test(queue: outbox.Queue) -> None:
        ids = put(queue, *map(str, range(25)))
        seen: list[bytes] = []
        async with queue.consume(batch=10, name="me") as consumer:
            async for batch in consumer:
                seen += batch.bodies()
                await batch.ack()
                if batch.ids[-1] == ids[-1]:
                    consumer.stop()
            assert await consumer.receive() is None
        assert [int(body) for body in seen] == list(range(25))
        assert queue.stats() == outbox.QueueStats(0, 0, 0, None)

    play_on_both(test)


def test_a_commit_wakes(play_on_both: Callable[[Play], None]) -> None:
    async def test(queue: outbox.Queue) -> None:
        async with queue.consume() as consumer, anyio.create_task_group() as group:

            async def produce() -> None:
                for number in range(5):
                    await queue.database.call(put, queue, str(number))
                    await seen[number].wait()

            seen = [anyio.Event() for _ in range(5)]
            group.start_soon(produce)
            for number in range(5):
                batch = await receive(consumer)
                assert batch.bodies() == [str(number).encode()]
                await batch[0].ack()
                seen[number].set()

    play_on_both(test)


@pytest.mark.promise("Q8")
def test_an_idle_queue_is_asked_nothing(
    play: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change it looks some more times, and after the last of these looks no more."""
    monkeypatch.setattr("tickwheel.outbox.statistics_watch._LAST_ECHO_S", 0.1)

    async def test(queue: outbox.Queue) -> None:
        async with queue.consume() as consumer:
            with counted(queue) as statements:
                claims: list[str] = []
                while len(claims) != 1:  # the first look of this call, and no other within a second
                    statements.clear()
                    assert await consumer.receive(1) is None
                    claims = [one for one in statements if "FOR UPDATE" in one or "RETURNING" in one]

    play(test)


@pytest.mark.promise("Q6")
def test_the_end_of_a_lease_wakes(play: Callable[[Play], None]) -> None:
    """Whoever claimed it is gone, and nothing else happens."""

    async def test(queue: outbox.Queue) -> None:
        put(queue, "a")
        async with queue.consume() as consumer:
            dies = await queue.database.call(lambda: queue.claim(lease=SHORT))
            batch = await receive(consumer)
            assert (batch.ids, batch[0].epoch) == (dies.ids, 2)
            with pytest.raises(LeaseLost):
                await queue.database.call(dies.ack)
            await batch.ack()

    play(test)


def test_one_who_waits_learns_of_a_later_lease(play: Callable[[Play], None]) -> None:
    """It looked when nothing was there at all, and another one was faster to claim what came then."""

    async def test(queue: outbox.Queue) -> None:
        async with queue.consume() as consumer:
            assert await consumer.receive(0.2) is None
            async with anyio.create_task_group() as group:

                def claim() -> None:
                    with queue.database.begin() as connection:
                        queue.put(connection, "a")
                        assert queue.sql.claim(connection, 1, 10**9 // 2, "dies").rows

                group.start_soon(queue.database.call, claim)
                batch = await receive(consumer)
            assert (batch.bodies(), batch[0].epoch) == ([b"a"], 2)

    play(test)


def test_what_is_given_back_wakes(play: Callable[[Play], None]) -> None:
    async def test(queue: outbox.Queue) -> None:
        put(queue, "a")
        async with queue.consume() as first, queue.consume() as second, anyio.create_task_group() as group:
            batch = await receive(first)
            first.stop()
            group.start_soon(batch.nack)
            batch = await receive(second)
            assert batch[0].epoch == 2
            group.start_soon(batch[0].nack, timedelta(milliseconds=300))
            assert (await receive(second))[0].epoch == 3

    play(test)


@pytest.mark.promise("Q5")
def test_leases_are_extended_while_the_program_works(play: Callable[[Play], None]) -> None:
    async def test(queue: outbox.Queue) -> None:
        put(queue, "a", "b")
        async with queue.consume(lease=SHORT) as slow, queue.consume(lease=SHORT) as other:
            batch = await receive(slow)
            assert await other.receive(3 * SHORT.total_seconds()) is None
            await batch.ack()
        assert batch.lost == ()
        assert queue.stats().oldest_age_s is None

    play(test)


def test_what_the_program_forgets_comes_again(play: Callable[[Play], None]) -> None:
    async def test(queue: outbox.Queue) -> None:
        put(queue, "a")
        async with queue.consume(lease=SHORT) as consumer:
            batch = await receive(consumer)
            del batch
            gc.collect()
            assert (await receive(consumer))[0].epoch == 2

    play(test)


def test_iterating_lets_go_of_the_batch_before(play: Callable[[Play], None]) -> None:
    """A loop that goes on after a failure must not hold for ever what it did not finish."""

    async def test(queue: outbox.Queue) -> None:
        put(queue, "a")
        async with queue.consume(lease=SHORT) as consumer:
            epochs = []
            async for batch in consumer:  # the name keeps the batch in hand until the next one comes
                epochs.append(batch[0].epoch)
                if len(epochs) == 3:
                    break
            await batch.ack()
            assert epochs == [1, 2, 3]

    play(test)


def test_a_lost_lease_is_told(play_on_both: Callable[[Play], None]) -> None:
    async def test(queue: outbox.Queue) -> None:
        put(queue, "a", "b")
        async with queue.consume(lease=SHORT) as consumer:
            batch = await receive(consumer)

            def take_over() -> tuple[int, ...]:
                taken: tuple[int, ...] = ()
                while not taken:  # a heartbeat may come in between
                    end_leases(queue)
                    taken = queue.claim(1).ids
                return taken

            taken = await queue.database.call(take_over)
            assert await batch.wait_lost() == taken == batch.lost == batch.ids[:1]
            assert [message.is_lost for message in batch] == [True, False]
            with pytest.raises(LeaseLost) as caught:
                await batch.ack()
            assert caught.value.ids == list(taken)

    play_on_both(test)


def test_a_delete_in_a_transaction_is_not_taken_for_a_loss(play: Callable[[Play], None]) -> None:
    """While it is open the heartbeats pass over its rows, and afterwards they are not missed."""

    async def test(queue: outbox.Queue) -> None:
        put(queue, "a", "b")
        async with queue.consume(lease=SHORT) as consumer, queue.consume(lease=SHORT) as other:
            batch = await receive(consumer)
            if queue.database.kind == "sqlite":  # one writes at a time: nothing else happens meanwhile
                await queue.database.transaction(batch.ack_in)
            else:
                with queue.database.begin() as connection:
                    batch.ack_in(connection)
                    assert await other.receive(2 * SHORT.total_seconds()) is None
            assert await other.receive(SHORT.total_seconds()) is None
            assert batch.lost == ()
            await batch.ack()

    play(test)


def test_leaving_gives_back_what_is_not_done(play_on_both: Callable[[Play], None]) -> None:
    async def test(queue: outbox.Queue) -> None:
        put(queue, *"abcdef")
        with pytest.raises(LookupError):  # noqa: PT012 - as it was raised, in no group
            async with queue.consume(batch=3) as consumer:
                batch = await receive(consumer)
                await batch[0].ack()
                await receive(consumer)
                raise LookupError
        assert (queue.stats().ready, queue.stats().leased) == (5, 0)

    play_on_both(test)


def test_who_stops_waiting_loses_nothing(play_on_both: Callable[[Play], None]) -> None:
    """A claim that was made, but whose caller was cancelled, is there for the next one."""

    async def test(queue: outbox.Queue) -> None:
        bodies = [str(number) for number in range(20)]
        seen: list[bytes] = []
        async with queue.consume(batch=1) as consumer:
            put(queue, *bodies)
            while len(seen) < len(bodies):
                batch = await consumer.receive(0.002)
                if batch is not None:
                    seen += batch.bodies()
                    await batch.ack()
        assert [body.decode() for body in seen] == bodies

    play_on_both(test)


def test_a_claim_that_never_commits(play: Callable[[Play], None]) -> None:
    """Others pass over what it has locked, and nobody tells them that it was rolled back."""

    async def test(queue: outbox.Queue) -> None:
        put(queue, "a")
        async with queue.consume() as consumer:
            if queue.database.kind == "sqlite":
                assert (await receive(consumer)).bodies() == [b"a"]
                return
            with queue.database.engine.connect() as connection, connection.begin() as transaction:
                assert queue.sql.claim(connection, 1, 10**9, "dies").rows
                assert await consumer.receive(0.3) is None
                transaction.rollback()
            assert (await receive(consumer))[0].epoch == 1

    play(test)


def test_a_commit_that_takes_long(maria_server: DatabaseServer) -> None:
    """MariaDB counts a statement when it begins: the count may stand still before its commit is seen."""

    async def test(queue: outbox.Queue) -> None:
        other = sa.create_engine(queue.database.engine.url)
        async with queue.consume() as consumer, anyio.create_task_group() as group:
            blocker = other.raw_connection()
            cursor = blocker.cursor()
            cursor.execute("backup stage start")
            cursor.execute("backup stage block_commit")
            producer = other.connect()  # it is not given back, which would be one more statement
            queue.put(producer.begin().connection, "a")
            group.start_soon(queue.database.call, producer.commit)

            async def unblock() -> None:
                await anyio.sleep(0.3)  # the consumer looks in vain meanwhile
                blocker.driver_connection._force_close()  # what ends the block is no statement either

            group.start_soon(unblock)
            assert (await receive(consumer)).bodies() == [b"a"]
            producer.close()
            blocker.invalidate()
        other.dispose()

    with maria_server.database() as url, outbox.open_database(url) as database:
        run(test, database, "trio")


def test_many_consumers_side_by_side(play_on_both: Callable[[Play], None]) -> None:
    async def test(queue: outbox.Queue) -> None:
        seen: list[int] = []
        everything = anyio.Event()

        async def consume() -> None:
            async with queue.consume(batch=7) as consumer:
                async for batch in consumer:
                    assert list(batch.ids) == sorted(batch.ids)
                    await batch.ack()
                    seen.extend(batch.ids)
                    if len(seen) == 200:
                        everything.set()

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(consume)
            ids: list[int] = []
            for _ in range(20):
                ids += await queue.database.call(put, queue, *map(str, range(10)))
            await everything.wait()
            group.cancel_scope.cancel()
        assert sorted(seen) == ids

    play_on_both(test)


def test_it_says_at_once_that_there_is_no_table(play: Callable[[Play], None]) -> None:
    async def test(queue: outbox.Queue) -> None:
        other = outbox.Queue(queue.database, "no_such_queue")
        with pytest.raises(TableMissing):
            async with other.consume():
                raise AssertionError("it was entered")

    play(test)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_server_is_killed_and_comes_back(database_server: DatabaseServer, backend: str) -> None:
    """In the middle of consuming: the consumer waits, goes on, and does everything."""

    async def main() -> None:
        with anyio.fail_after(2 * PATIENCE_S):
            await survive(database_server, url)

    with database_server.database() as url:
        anyio.run(main, backend=backend)


async def survive(server: DatabaseServer, url: str) -> None:
    seen: set[bytes] = set()
    with outbox.Queue(url, "work") as queue:
        put(queue.create(), *map(str, range(200)))

        async def is_all_done() -> bool:
            return len(seen) == 201 and (await anyio.to_thread.run_sync(queue.stats)).oldest_age_s is None

        async with (
            queue.consume(batch=10, lease=timedelta(seconds=2)) as consumer,
            anyio.create_task_group() as group,
        ):

            async def restart() -> None:
                await anyio.to_thread.run_sync(server.kill)
                with pytest.raises(DatabaseUnavailable):
                    await anyio.to_thread.run_sync(queue.stats)
                await anyio.to_thread.run_sync(server.start)
                with outbox.Queue(url, "work") as again:
                    await anyio.to_thread.run_sync(put, again, "after")

            while not await is_all_done():
                batch = await consumer.receive(0.5)
                if batch is None:
                    continue
                if batch.ids[0] == 51:
                    group.start_soon(restart)
                seen |= set(batch.bodies())
                with suppress(LeaseLost):  # it comes again, unless only the answer to its ack was lost
                    await batch.ack()
        assert seen == {str(number).encode() for number in range(200)} | {b"after"}
        assert queue.stats().oldest_age_s is None
