"""The clock of a test broker: when `advance` returns, all that is due then has happened."""

from __future__ import annotations

import threading
import warnings
from datetime import UTC, datetime, timedelta

import anyio
import anyio.lowlevel
import pytest

import tickwheel
from tickwheel.errors import BadTime, NotConnected
from tickwheel.testing import broker

DAY = timedelta(days=1)


def test_a_fetch_behind_it_finds_what_is_due() -> None:
    with broker() as one, one.sync_client() as client:
        for number in range(50):
            client.send("t", b"%d" % number, delay=DAY)
            one.advance(DAY - timedelta(milliseconds=1))
            assert not client.fetch("t")
            one.advance(timedelta(milliseconds=1))
            (message,) = client.fetch("t")
            assert message.body == b"%d" % number
            message.ack(confirm=True)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_is_awaited_in_async(backend: str) -> None:
    async def main() -> None:
        async with broker() as one, one.client() as client:
            for number in range(20):
                await client.send("t", b"%d" % number, delay=DAY)
                await one.advance(DAY)
                (message,) = await client.fetch("t")
                await message.ack(confirm=True)
            await client.send("t", b"later", delay=DAY)
            one.clock.advance(DAY)
            await one.settle()
            assert len(await client.fetch("t")) == 1

    anyio.run(main, backend=backend)


def test_the_callers_loop_goes_on_meanwhile() -> None:
    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with broker() as one, one.client() as client:
            await client.create_schedule("hourly", "t", every=timedelta(hours=1))
            async with anyio.create_task_group() as group:
                group.start_soon(count)
                await one.advance(DAY)
                group.cancel_scope.cancel()
        return turns

    assert anyio.run(main) > 1


def test_a_broker_of_a_with_block_may_be_awaited_too() -> None:
    async def main(one: tickwheel.testing.TestBroker) -> None:
        async with one.client() as client:
            await client.send("t", b"x", delay=DAY)
            await one.advance(DAY)
            assert len(await client.fetch("t")) == 1

    with broker() as one:
        anyio.run(main, one)


def test_a_thread_of_an_async_program_needs_no_await() -> None:
    found: list[int] = []

    def work(one: tickwheel.testing.TestBroker) -> None:
        with one.sync_client() as client:
            client.send("t", b"x", delay=DAY)
            one.advance(DAY)
            found.append(len(client.fetch("t")))

    async def main() -> None:
        async with broker() as one:
            await anyio.to_thread.run_sync(work, one)
            thread = threading.Thread(target=work, args=(one,))
            thread.start()
            await anyio.to_thread.run_sync(thread.join)

    anyio.run(main)
    assert found == [1, 1]


def test_each_time_of_a_schedule_comes() -> None:
    with broker(start=datetime(2031, 5, 1, tzinfo=UTC)) as one, one.sync_client() as client:
        client.create_schedule("hourly", "t", cron="0 * * * *", catch_up="none")
        one.advance(DAY)
        assert client.topic("t").ready == 24


def test_the_end_of_a_lease_comes() -> None:
    with broker(ack_wait="1h") as one, one.sync_client() as client:
        client.send("t", b"x")
        one.settle()
        assert len(client.fetch("t")) == 1
        one.advance(timedelta(minutes=59))
        assert not client.fetch("t")
        one.advance(timedelta(minutes=1))
        (message,) = client.fetch("t")
        assert message.epoch == 2


def test_retention_goes_by_the_clock() -> None:
    with broker() as one, one.sync_client() as client:
        client.create_topic("t", retention=DAY)
        client.create_group("t", "g")
        sent = client.send("t", b"x")
        one.advance(DAY - timedelta(seconds=1))
        assert client.group("t", "g").backlog == 1
        one.advance(timedelta(seconds=2))
        found = client.message(id=sent.id)
        assert found is not None
        assert found.state == "expired"
        assert client.group("t", "g").backlog == 0


def test_ephemeral_groups_end_by_the_clock() -> None:
    with broker() as one, one.sync_client() as client:
        client.create_topic("t")
        client.create_group("t", "g", ephemeral=timedelta(hours=1))
        one.advance(timedelta(minutes=30))
        assert [group.name for group in client.groups("t")] == ["g"]
        one.advance(DAY)
        assert client.groups("t") == []


@pytest.mark.parametrize("by", [-DAY, 5, timedelta.max], ids=["back", "a number", "far"])
def test_what_is_no_way_forward(by: timedelta) -> None:
    with broker() as one:
        before = one.clock.now()
        with pytest.raises(BadTime):
            one.advance(by)
        assert one.clock.now() == before


def test_without_a_broker() -> None:
    one = broker()
    with pytest.raises(NotConnected):
        one.advance(DAY)
    one.close()


def test_what_is_not_awaited_is_told() -> None:
    async def main() -> None:
        async with broker() as one:
            one.advance(DAY)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        anyio.run(main)
    assert any("never awaited" in str(one.message) for one in told)


def test_what_was_acked_is_kept_by_the_tests_clock() -> None:
    """`purge_after` is of the clock that the test moves, down to its millisecond."""
    with broker() as one, one.sync_client() as client:
        client.create_topic("t", purge_after=DAY)
        client.create_group("t", "default")
        client.send("t", b"x")
        one.settle()
        (message,) = client.fetch("t")
        message.ack(confirm=True)
        one.advance(DAY - timedelta(milliseconds=1))
        assert client.purge().purged_messages == 0
        one.advance(timedelta(milliseconds=1))
        assert client.purge().purged_messages == 1


def test_a_rate_is_of_real_time() -> None:
    """The clock need not be moved for a test to be given what a limit of deliveries a second holds back."""
    with broker() as one, one.sync_client() as client:
        client.create_topic("t", rate=100)
        client.send_many("t", [b"x"] * 5)
        began = one.clock.now()
        with client.subscribe("t", "default") as subscription:
            received = [message.id for _, message in zip(range(5), subscription, strict=False)]
        assert len(received) == 5
        assert one.clock.now() == began
