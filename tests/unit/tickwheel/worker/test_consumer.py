"""What a worker that ends could not tell the broker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

import tickwheel.testing
from tests.unit.tickwheel.both import on_both
from tickwheel import Message
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.consumer.message import Batch
from tickwheel.worker import consumer
from tickwheel.worker.handler import Handler, Options
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
