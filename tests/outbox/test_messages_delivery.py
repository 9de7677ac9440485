"""Messages come at their time, once for each lease, and what the user writes with plain SQL counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa

from tests.support.outbox.databases import DatabaseServer
from tests.support.outbox.messages import (
    NEVER_MS,
    PATIENCE_S,
    engine_of,
    eventually,
    execute,
    fast,
    get,
    get_many,
    message_table,
    rows,
    same_table,
    send,
)
from tickwheel.outbox import LeaseLost, NotInTransaction
from tickwheel.outbox.watch import channel_of

Main = Callable[[], Awaitable[None]]


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    """Runs a test on both kinds of event loops."""

    def run(main: Main) -> None:
        async def limited() -> None:
            with anyio.fail_after(2 * PATIENCE_S):
                await main()

        anyio.run(limited, backend=request.param)

    return run


@pytest.mark.promise("V42", "V45", "V79")
def test_a_commit_wakes_and_a_rollback_does_not(database_url: str, run: Callable[[Main], None]) -> None:
    async def main() -> None:
        with message_table(database_url) as table, engine_of(database_url) as engine:
            async with table.stream() as stream:
                assert stream.fields == ("id", "message")
                for text in ("first", "second"):
                    with engine.connect() as connection:
                        connection.begin()
                        table.send(connection, message="rolled back")
                        connection.rollback()
                        connection.begin()
                        table.send(connection, message=text)
                        connection.commit()
                    message = await get(stream)
                    assert message["message"] == text
                    assert (message.epoch, message.priority) == (1, 50)
                    await message.ack()
                with engine.connect() as connection:
                    with pytest.raises(NotInTransaction):
                        table.send(connection, message="nobody would commit it")
                    connection.begin()
                    table.send(connection, message="rolled back")
                    connection.rollback()
            assert len(table.claim()) == 0
            assert table.stats().acked == 2

    run(main)


@pytest.mark.promise("V13", "V43", "V74", "V80")
def test_nothing_is_early_and_nothing_is_late(database_url: str, run: Callable[[Main], None]) -> None:
    async def main() -> None:
        with message_table(database_url, batch_size=1) as table:
            at = datetime.now(UTC) + timedelta(milliseconds=700)
            with table.database.begin() as connection:
                table.send(connection, message="later", delay=timedelta(seconds=1.2))
                table.send(connection, message="sooner", deliver_at=at)
                table.send(connection, message="at once")
            async with table.stream() as stream:
                for text in ("at once", "sooner", "later"):
                    message = await get(stream)
                    assert message["message"] == text
                    assert message.due_ns <= table.database.now_ns()
                assert message.due_ns > at.timestamp() * 1e9

    run(main)


@pytest.mark.promise("V12", "V55", "V105")
def test_acks_nacks_and_extensions(database_url: str, run: Callable[[Main], None]) -> None:
    async def main() -> None:
        with message_table(database_url, ack_wait_ms=400, min_backoff_ms=NEVER_MS) as table:
            send(table, "a")
            async with table.stream() as stream:
                first = await get(stream)
                await first.extend(timedelta(seconds=1))
                extended_until = table.database.now_ns() + 900_000_000
                second = await get(stream)
                assert table.database.now_ns() > extended_until
                assert (second.id, second.epoch) == (first.id, 2)
                for change in (first.ack, first.nack, lambda: first.extend(timedelta(milliseconds=5))):
                    with pytest.raises(LeaseLost) as caught:
                        await change()
                    assert list(caught.value.ids) == [first.id]
                await second.nack()
                third = await get(stream)
                assert third.epoch == 3
                await third.ack()
                await third.ack()
                with pytest.raises(LeaseLost):
                    await third.nack()
            assert table.stats().acked == 1

    run(main)


@pytest.mark.promise("V30", "V104")
def test_what_is_not_acked_comes_again_with_another_number(
    database_url: str, run: Callable[[Main], None]
) -> None:
    async def main() -> None:
        with message_table(database_url, ack_wait_ms=150, max_backoff_ms=150) as table:
            send(table, "a", "b")
            async with table.hub() as hub, hub.subscribe() as stream:
                started = table.database.now_ns()
                received = await get_many(stream, 6)
                assert table.database.now_ns() >= started + 2 * 150_000_000
                assert [one.epoch for one in received] == [1, 1, 2, 2, 3, 3]
                assert (hub.stats.sent, hub.stats.retried) == (6, 4)

    run(main)


def test_acks_may_come_after_the_stream_has_ended(database_url: str, run: Callable[[Main], None]) -> None:
    async def main() -> None:
        with message_table(database_url) as table:
            send(table, "a", "b", "c")
            async with table.stream() as stream:
                first, second, third = await get_many(stream, 3)
                with table.database.begin() as connection:
                    table.cancel(connection, [second.id])
            await first.ack()
            await first.ack()
            with pytest.raises(LeaseLost):
                await second.ack()
            await third.nack()
            assert (table.stats().acked, table.stats().due) == (1, 1)

    run(main)


@pytest.mark.promise("V50", "V99")
async def test_what_nobody_looked_at_is_given_back_when_the_stream_ends(database_url: str) -> None:
    with message_table(database_url) as table:
        send(table, "a", "b", "c")
        async with table.stream() as stream:
            message = await get(stream)
        assert sorted(rows(table, "epoch")) == [(0,), (0,), (1,)]
        async with table.hub() as hub:
            subscription = hub.subscribe()
            other = await subscription.__aenter__()
            batch = await other.receive_batch(PATIENCE_S)
            assert batch is not None
            assert {one["message"] for one in batch} == {"a", "b", "c"} - {message["message"]}
            send(table, "d")
            await eventually(lambda: hub.stats.sent == 3)
        # The hub was closed before its subscriber was.
        assert sorted(rows(table, "epoch")) == [(0,), (1,), (1,), (1,)]
        await subscription.__aexit__(None, None, None)
        assert [one async for one in other] == []
        assert [one.epoch for one in table.claim()] == [1]


@pytest.mark.promise("V1", "V10", "V14", "V49", "V52", "V53", "V100")
async def test_a_hub_of_many_messages_delivers_each_once(database_url: str) -> None:
    """Two hubs, as of two processes, with several subscribers each."""
    count = 1_200
    seen: list[object] = []
    with message_table(database_url, batch_size=17) as table, same_table(database_url) as twin:
        with table.database.begin() as connection:
            table.send_many(connection, ({"message": str(number)} for number in range(count)))

        with anyio.fail_after(2 * PATIENCE_S):
            async with table.hub() as one, twin.hub() as two, anyio.create_task_group() as group:

                async def consume(hub: object) -> None:
                    async with hub.subscribe() as stream:  # type: ignore[attr-defined]
                        async for batch in stream.batches():
                            while not (
                                one.stats.sent and two.stats.sent
                            ):  # one that is slow to begin has its share
                                await anyio.sleep(0.005)
                            await batch.ack()
                            seen.extend(message.id for message in batch)
                            if len(seen) == count:
                                group.cancel_scope.cancel()

                for hub in (one, one, two, two):
                    group.start_soon(consume, hub)
            assert one.stats.sent + two.stats.sent == count
            assert min(one.stats.sent, two.stats.sent) > 0
        assert len(set(seen)) == len(seen) == count
        assert set(rows(table, "epoch")) == {(1,)}
        assert table.stats().acked == count


async def test_several_tasks_share_a_stream(database_url: str) -> None:
    with message_table(database_url, batch_size=1) as table:
        found: list[str] = []
        async with table.stream() as stream:

            async def work() -> None:
                found.append((await get(stream))["message"])

            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(work)
                await anyio.wait_all_tasks_blocked()
                send(table, "a", "b", "c", "d")
        assert sorted(found) == ["a", "b", "c", "d"]


async def test_notifications_of_others_harm_nobody(postgres_server: DatabaseServer) -> None:
    with postgres_server.database() as url, message_table(url) as table:
        async with table.stream() as stream:
            send(table, "a")
            await get(stream)  # so it listens, or will
            for payload in ("hello", "-5", "9" * 30):
                execute(table, f"select pg_notify('{channel_of(table.name)}', '{payload}')")
            send(table, "b")
            assert (await get(stream))["message"] == "b"
            await anyio.sleep(0.1)
            send(table, "c")
            assert (await get(stream))["message"] == "c"


@pytest.mark.parametrize("name", ["file:a.sqlite?uri=true", "a.sqlite", "link.sqlite"])
async def test_commits_wake_whatever_names_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.sqlite").symlink_to("a.sqlite")
    with message_table(f"sqlite:///{name}") as table:
        monkeypatch.chdir("/")
        async with table.hub() as hub, hub.subscribe() as stream:
            await eventually(lambda: hub.stats.looks > 0)
            await anyio.sleep(3)  # beyond the looks after the last change
            send(table, "a")
            assert (await get(stream))["message"] == "a"


async def test_round_robin(database_url: str) -> None:
    with message_table(database_url) as table:
        async with table.hub() as hub, hub.subscribe() as a, hub.subscribe(2) as b, hub.subscribe(1) as c:
            streams = [a, b, c]
            counts = [0, 0, 0]
            for number in range(9):
                send(table, str(number))
                await eventually(lambda: hub.stats.sent == number + 1)  # noqa: B023
                for index, stream in enumerate(streams):
                    if (batch := await stream.receive_batch(0)) is not None:
                        assert len(batch) == 1
                        counts[index] += 1
            assert counts == [3, 3, 3]


@pytest.mark.promise("V48")
async def test_a_busy_subscriber_is_passed_over(database_url: str) -> None:
    with message_table(database_url, batch_size=1) as table:
        async with table.hub() as hub, hub.subscribe() as busy, hub.subscribe() as free:
            send(table, *map(str, range(12)))
            await eventually(lambda: hub.stats.sent == 2)  # one each
            received = await get_many(free, 11)
            assert (await get(busy)).id not in {one.id for one in received}


@pytest.mark.promise("V3", "V41")
async def test_a_backlog_stops_no_send_and_stays_out_of_memory(database_url: str) -> None:
    with message_table(database_url, batch_size=5, cache_size=50) as table:
        async with table.hub() as hub, hub.subscribe() as stream:
            for part in range(6):
                with table.database.begin() as connection:
                    table.send_many(connection, [{"message": "x" * 1_000}] * 300)
                await eventually(lambda: hub.stats.sent >= 5)
                assert hub.stats.sent == 5
                assert len(hub._candidates) <= 50
                # The last were sent this moment, by the server's clock: it may be a millisecond ahead.
                await eventually(lambda: table.stats().due == 300 * (part + 1) - 5)  # noqa: B023
            batch = await stream.receive_batch(PATIENCE_S)
            assert batch is not None
            await batch.ack()
            await eventually(lambda: hub.stats.sent == 10)


@pytest.mark.promise("V32", "V76")
async def test_batches_are_as_large_as_asked_for_and_nothing_is_taken_ahead(database_url: str) -> None:
    with message_table(database_url, batch_size=3) as table:
        send(table, *map(str, range(20)))
        async with table.hub() as hub, hub.subscribe() as usual, hub.subscribe(5) as large:
            for size, stream in ((3, usual), (5, large)):
                batch = await stream.receive_batch(PATIENCE_S)
                assert batch is not None
                assert len(batch) == size
                assert len(batch[:2]) == 2
            await eventually(lambda: hub.stats.sent == 16)
            assert table.stats().due == 4


@pytest.mark.promise("V11", "V15", "V20")
async def test_lower_numbers_first_then_the_oldest_and_nothing_starves(database_url: str) -> None:
    with message_table(database_url, batch_size=1) as table:
        with table.database.begin() as connection:
            table.send_many(
                connection,
                [
                    {
                        "message": f"{priority} {age}",
                        "priority": priority,
                        "time_next": 10**18 + 1_000_000 - age,
                    }
                    for age in range(10)
                    for priority in (1, 50, 100)
                ],
            )
        execute(table, "update reminders set time_next = 5 where message = '100 3'")
        async with table.stream() as stream:
            order = [(await get(stream))["message"] for _ in range(30)]
    reserved = [order.index("100 3"), order.index("100 9")]
    assert order[:7] == [f"1 {age}" for age in range(9, 2, -1)]
    assert reserved[0] == 7
    assert order[8:11] == ["1 2", "1 1", "1 0"]
    assert order[11] == "50 9"


@pytest.mark.promise("V33")
async def test_the_cache_bounds_what_is_looked_up(database_url: str) -> None:
    with message_table(database_url, batch_size=50, cache_size=4) as table:
        with table.database.begin() as connection:
            table.send_many(connection, [{"message": "x", "priority": number % 100} for number in range(300)])
        async with table.hub() as hub, hub.subscribe() as stream:
            seen = set()
            while len(seen) < 300:
                batch = await stream.receive_batch(PATIENCE_S)
                assert batch is not None
                assert len(hub._candidates) <= 4
                assert len(batch) <= 4
                seen.update(one.id for one in batch)


@pytest.mark.promise("V72")
async def test_reschedules_of_what_waits_and_of_what_is_looked_up(database_url: str) -> None:
    with message_table(database_url, batch_size=1) as table:
        with table.database.begin() as connection:
            waiting = table.send(connection, message="waiting", delay=timedelta(hours=1))
        async with table.hub() as hub, hub.subscribe() as stream:
            await eventually(lambda: hub.stats.looks > 0)
            with table.database.begin() as connection:
                assert table.reschedule(connection, [waiting], delay=timedelta(milliseconds=300)) == 1
            assert (await get(stream)).id == waiting
            ids = send(table, "a", "b", "c", "d", "e")
            received = await get(stream)
            others = [one for one in ids if one != received.id]
            # One more was handed out; what comes after it was looked up, and is not in the hub's hands.
            await eventually(lambda: hub.stats.sent == 3)
            with table.database.begin() as connection:
                held = [one for one, epoch in rows(table, "id", "epoch") if one in others and epoch]
                rest = [one for one in others if one not in held]
                assert table.reschedule(connection, rest[:1], delay=timedelta(hours=1)) == 1
                assert table.cancel(connection, rest[1:2]) == 1
                assert table.reschedule(connection, rest[2:], priority=1, epoch=7) == 1
            assert (await get(stream)).id == held[0]
            last = await get(stream)
            assert (last.id, last.epoch, last.priority) == (rest[2], 8, 1)
            assert await stream.receive(0.2) is None


@pytest.mark.promise("V69", "V70")
async def test_plain_sql_sends_acks_and_reschedules(database_url: str) -> None:
    with message_table(database_url) as table:
        async with table.stream() as stream:
            execute(table, "insert into reminders (message) values ('now')")
            message = await get(stream)
            assert message["message"] == "now"
            acked = "update reminders set time_acked = :now, time_next = null where time_acked is null"
            assert execute(table, acked, now=table.database.now_ns()) == 1
            with pytest.raises(LeaseLost), table.database.begin() as connection:
                message.ack_in(connection)
            await message.ack()  # it is done, whoever did it
            future = table.database.now_ns() + 3_600_000_000_000
            execute(table, "insert into reminders (message, time_next) values ('later', :at)", at=future)
            assert await stream.receive(0.5) is None
            moved = "update reminders set priority = 3, time_next = :at, epoch = 5 where time_acked is null"
            assert execute(table, moved, at=table.database.now_ns() + 200_000_000) == 1
            message = await get(stream)
            assert (message["message"], message.epoch, message.priority) == ("later", 6, 3)


@pytest.mark.promise("V44")
async def test_messages_without_a_time_are_refused_or_repaired(database_url: str) -> None:
    with message_table(database_url) as table:
        with pytest.raises(sa.exc.DBAPIError):
            execute(table, "insert into reminders (message, time_next) values ('never', null)")
        made = (
            "create table adopted (id integer primary key, priority integer, epoch integer,"
            " time_next bigint, time_acked bigint)"
        )
        execute(table, made)
    with same_table(database_url, "adopted") as table:
        table.adopt(fast(poller_interval_ms=100))
        execute(table, "insert into adopted (id) values (7)")
        async with table.stream() as stream:
            message = await get(stream)
            assert (message.id, message.epoch, message.priority) == (7, 1, 50)
            await message.ack()
