"""What a worker could not tell the broker, or was answered otherwise than it asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest

import tickwheel.testing
from tests.unit.tickwheel.both import on_both
from tickwheel import GiveUp, Message, Retry
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.consumer.message import Batch
from tickwheel.worker import consumer
from tickwheel.worker.handler import Handler, Options
from tickwheel.worker.outcomes import Kind
from tickwheel.worker.tally import Tally
from tickwheel.worker.worker import Worker


@pytest.mark.promise("when-a-call-is-cancelled")
@on_both
async def test_a_message_that_could_not_be_given_back_in_time_is_counted_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun = anyio.Event()

    async def handle(_: Message) -> None:
        begun.set()
        await anyio.sleep_forever()

    async def never(*_: Any) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(consumer, "_LAST_WORD_S", 0.01)
    monkeypatch.setattr(AckQueue, "nack", never)
    async with tickwheel.testing.broker() as broker, broker.client() as client:
        await client.send("mails", b"x")
        worker = Worker(client, Batch, [Handler("mails", handle, Options())], drain=timedelta(0))
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            await begun.wait()
            worker.stop()
        assert worker.tallies[0].unsettled == 1
        assert "the broker could not be told (no answer in time)" in caplog.text


async def handled_with_one_topic(handle: Callable[[Message], Awaitable[None]]) -> Tally:
    """What is counted of the first outcome, where there is no room for a topic of dead letters."""
    async with tickwheel.testing.broker(max_topics=1) as broker, broker.client() as client:
        await client.send("mails", b"x")
        worker = Worker(client, Batch, [Handler("mails", handle, Options())], drain=timedelta(seconds=5))
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            while not worker.tallies[0].outcomes:
                await anyio.sleep(0.005)
            worker.stop()
        return worker.tallies[0]


@on_both
async def test_what_cannot_become_a_dead_letter_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(_: Message) -> None:
        raise GiveUp("no such customer")

    tally = await handled_with_one_topic(handle)
    assert (tally.outcomes, tally.unsettled) == ({Kind.GIVEN_UP: 1}, 1)
    assert "is given_up, but it could not become a dead letter, and comes again" in caplog.text


@on_both
async def test_what_somebody_else_has_settled_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(message: Message) -> None:
        await message.ack(confirm=True)
        raise Retry

    tally = await handled_with_one_topic(handle)
    assert (tally.outcomes, tally.unsettled) == ({Kind.RETRY: 1}, 1)
    assert "is retry, but it was no longer this worker's: already_acked" in caplog.text
