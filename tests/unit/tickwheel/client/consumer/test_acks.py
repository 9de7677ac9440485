"""Acks that nobody waits for: of each that is not made, a later flush hears or the log tells."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import pytest

from tests.unit.tickwheel.both import on_both
from tests.unit.tickwheel.fake_server import FakeServer, serving
from tickwheel import Batch, Client, Message, Subscription
from tickwheel.client import client as client_module
from tickwheel.client.consumer.acks import AckFlight, AckQueue
from tickwheel.errors import DiskFull, TickwheelError
from tickwheel.protocol.machine import AckRequested, ServerEvent

COUNT = 8


def full(event: ServerEvent) -> TickwheelError | None:
    """A disk that has no room for acks."""
    return DiskFull() if isinstance(event, AckRequested) else None


@asynccontextmanager
async def receiving() -> AsyncIterator[tuple[FakeServer, Subscription[Message, Batch], Batch]]:
    """A batch that nobody has settled yet."""
    async with serving() as (server, client), client.subscribe("tea", batch=COUNT) as subscription:
        await client.send_many("tea", [b"%d" % number for number in range(COUNT)])
        batch = await subscription.receive_batch()
        assert batch is not None
        assert len(batch) == COUNT
        yield server, subscription, batch


async def answered(server: FakeServer, count: int) -> None:
    """Waits until the server has seen so many frames of acks, and the client their answers."""
    while len(server.seen(AckRequested)) < count:
        await anyio.sleep(0.001)
    for _ in range(10):
        await anyio.sleep(0.001)


@pytest.mark.promise("when-a-call-is-cancelled")
@on_both
async def test_acks_that_are_refused_as_a_whole_before_a_flush(caplog: pytest.LogCaptureFixture) -> None:
    async with receiving() as (server, subscription, batch):
        server.refuse = full
        await batch.ack()
        await answered(server, 1)
        assert f"{COUNT} acks of 'tea' in group 'default' were not made: " in caplog.text
        with pytest.raises(DiskFull):
            await subscription.flush()
        await subscription.flush()  # what was raised is not raised again
        server.refuse = None
        await batch.ack()
        await subscription.flush()
        assert all(message.acked for message in server.messages)


@on_both
async def test_acks_that_are_refused_as_a_whole_during_a_flush() -> None:
    async with receiving() as (server, subscription, batch):
        server.refuse = full
        for message in batch:
            await message.ack()
        with pytest.raises(DiskFull):
            await subscription.flush()
        await subscription.flush()


@on_both
async def test_acks_that_are_refused_one_after_the_other_do_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with receiving() as (server, _, batch):
        server.refuse = full
        for number, message in enumerate(batch):
            await message.ack()
            await answered(server, number + 1)
        assert caplog.text.count("were not made") == 1
    assert "1 acks of 'tea' in group 'default' were not made" in caplog.text
    assert f"{COUNT - 1} acks of 'tea' in group 'default' were not made" in caplog.text
    assert caplog.text.count("were not made") == 2


@on_both
async def test_the_caller_that_waits_hears_of_it_and_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with receiving() as (server, subscription, batch):
        server.refuse = full
        with pytest.raises(DiskFull):
            await batch.ack(confirm=True)
        await subscription.flush()
    assert caplog.text == ""


@on_both
async def test_the_log_hears_of_it_when_the_caller_has_gone(caplog: pytest.LogCaptureFixture) -> None:
    async with receiving() as (server, subscription, batch):
        server.refuse = full
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 0)
                scope.cancel()
                await batch.ack(confirm=True)
        assert scope.cancelled_caught
        await batch.ack()
        with pytest.raises(DiskFull):
            await subscription.flush()
    assert "were not made" in caplog.text


async def fail_away(server: FakeServer, refused_dials: int) -> None:
    """A handler that fails while its connection is away, so that its subscription is left without waiting."""
    async with Client(dial=server.dial) as client, client.subscribe("tea") as subscription:
        await client.send("tea", b"x")
        message = await subscription.receive()
        assert message is not None
        server.refused_dials = refused_dials
        server.break_all()
        while client.is_connected:
            await anyio.sleep(0.001)
        await message.ack()
        raise ZeroDivisionError


@pytest.mark.promise("when-a-call-is-cancelled")
@on_both
async def test_acks_go_over_the_next_connection_while_the_client_is_closed() -> None:
    async with FakeServer() as server:
        with pytest.raises(ZeroDivisionError):
            await fail_away(server, 3)
        assert [message.acked for message in server.messages] == [{"default"}]


@on_both
async def test_acks_that_cannot_be_made_at_the_end_are_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CLOSE_TIMEOUT_S", 0.05)
    async with FakeServer() as server:
        with pytest.raises(ZeroDivisionError):
            await fail_away(server, 1_000)
    assert "1 acks of 'tea' in group 'default' were not made: " in caplog.text


@on_both
async def test_those_that_nobody_waits_for_are_told_though_the_last_frame_is_waited_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(client_module, "CLOSE_TIMEOUT_S", 0.05)
    failed: list[str] = []

    async def confirm(message: Message) -> None:
        try:
            await message.ack(confirm=True)
        except TickwheelError as error:
            failed.append(error.code)

    async def work(client: Client, group: anyio.abc.TaskGroup) -> None:
        async with client.subscribe("tea", batch=COUNT) as subscription:
            await client.send_many("tea", [b"%d" % number for number in range(COUNT)])
            batch = await subscription.receive_batch()
            assert batch is not None
            first, second, *_ = batch
            server.after = lambda event: "silent" if isinstance(event, AckRequested) else None
            await first.ack()
            await answered(server, 1)
            group.start_soon(confirm, second)
            await answered(server, 2)
            raise ZeroDivisionError

    async with FakeServer() as server, anyio.create_task_group() as group:
        with pytest.raises(ZeroDivisionError):
            async with Client(dial=server.dial) as client:
                await work(client, group)
    assert failed == ["client_closed"]
    told = "1 acks of 'tea' in group 'default' were not made: the client was closed before the broker had answered"
    assert told in caplog.text


@on_both
async def test_acks_of_fetched_messages_are_told_when_the_client_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No subscription ends, at which the rest could be told."""
    async with serving() as (server, client):
        server.refuse = full
        session = client._running
        assert session is not None
        queue = AckQueue(session, "g", "tea")
        queue.resume(0)
        for number in range(5):
            queue.add(1, 1)
            await answered(server, number + 1)
        assert "1 acks of 'tea' in group 'g' were not made" in caplog.text
        assert "4 acks" not in caplog.text
    assert "4 acks of 'tea' in group 'g' were not made" in caplog.text


@on_both
async def test_refused_acks_are_told_though_the_block_ends_by_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(client: Client) -> None:
        async with client.subscribe("tea", batch=COUNT) as subscription:
            await client.send_many("tea", [b"%d" % number for number in range(COUNT)])
            batch = await subscription.receive_batch()
            assert batch is not None
            for stored in server.messages:
                stored.epochs["default"] = 7
            for number, message in enumerate(batch):
                await message.ack()
                await answered(server, number + 1)
            raise ZeroDivisionError

    async with serving() as (server, client):
        with pytest.raises(ZeroDivisionError):
            await fail(client)
        assert caplog.text.count("was refused: stale_receipt") == 1
        assert f"{COUNT - 1} more acks of 'tea' in group 'default' were refused" in caplog.text


@on_both
async def test_what_was_not_told_is_told_by_the_queue_of_another_timeline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with receiving() as (server, subscription, batch):
        server.refuse = full
        for number, message in enumerate(batch):
            await message.ack()
            await answered(server, number + 1)
        before = subscription.acks
        after = AckQueue(before._session, "default", "tea")
        after.take_over(before)
        with pytest.raises(DiskFull):
            await after.flush()
        after.warn_of_rest()
        assert f"{COUNT - 1} acks of 'tea' in group 'default' were not made" in caplog.text


@on_both
async def test_a_flight_that_comes_to_a_subscription_that_is_over_ends() -> None:
    async with receiving() as (_, subscription, _batch):
        queue = subscription.acks
        queue.suspend()
        subscription.fail(DiskFull())
        flight = AckFlight(queue)
        queue._session.submit(flight)
        with anyio.fail_after(5):
            await flight.done.wait()
        assert isinstance(flight.error, DiskFull)


@on_both
async def test_two_that_flush_at_the_same_time_hear_of_it_both() -> None:
    heard: list[str] = []

    async def flush(subscription: Subscription[Message, Batch]) -> None:
        try:
            await subscription.flush()
        except DiskFull as error:
            heard.append(error.code)

    async with receiving() as (server, subscription, batch):
        server.refuse = full
        await batch.ack()
        async with anyio.create_task_group() as group:
            group.start_soon(flush, subscription)
            group.start_soon(flush, subscription)
    assert heard == ["disk_full"] * 2
