"""Dead letters as RocketMQ has them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.support.clients.in_time import broker_in_time
from tickwheel import Client, Fetched
from tickwheel_gateway.delivery.dead_letters import DeadLetters, Dying
from tickwheel_gateway.delivery.fetched import held_of
from tickwheel_gateway.wire.codes import Refused

LONG = timedelta(seconds=5)


async def fetched(client: Client, group: str = "g") -> Fetched:
    return await client.fetch("t", group, wait=LONG, lease=LONG)


def dying(batch: Fetched, group: str = "g") -> Dying:
    (message,) = batch
    return Dying(group, "t", batch.group_id, message.epoch, held_of(message), message.priority)


async def dead(client: Client, topic: str = "rmq.DLQ.g") -> list[tuple[str | None, bytes]]:
    batch = await client.fetch(topic, "undertaker", count=10, wait=LONG)
    return [(message.key, message.body) for message in batch]


async def test_a_message_is_in_one_place_at_any_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with broker_in_time(tmp_path, auto_create_topics=False) as there, there.client() as client:
        await client.create_topic("t")
        sent = await client.send("t", b"bad", headers={"n": 7}, priority=3)
        letters, of = DeadLetters(), dying(await fetched(client))
        assert await letters.forward(client, of) == "acked"
        assert await letters.forward(client, of) == "acked", "it was the same"
        (message,) = await client.fetch("rmq.DLQ.g", "undertaker", wait=LONG)
        assert (message.key, message.body, message.priority) == (f"t:{sent.id}", b"bad", 3)
        assert message.headers["n"] == 7
        ours = f"00{sent.id:032x}"
        assert message.headers["rocketmq"]["dead"] == {"topic": "t", "message_id": ours}
        assert message.headers["rocketmq"]["id"] == ours
        assert not await client.fetch("t", "g")


async def test_a_receipt_that_does_not_count(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        await client.send("t", b"bad")
        first = dying(await fetched(client))
        await trio.sleep(6)
        second = await fetched(client)
        letters = DeadLetters()
        assert await letters.forward(client, first) == "stale_receipt"
        await second.ack(confirm=True)
        assert await letters.forward(client, dying(second)) == "already_acked"
        assert await dead(client) == []


async def test_one_that_is_there_already_is_not_doubled(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The group was set back to it since."""
    async with broker_in_time(tmp_path) as there, there.client() as client:
        sent = await client.send("t", b"bad")
        letters = DeadLetters()
        assert await letters.forward(client, dying(await fetched(client))) == "acked"
        await client.seek_group("t", "g", to="earliest")
        assert await letters.forward(client, dying(await fetched(client))) == "acked"
        assert not await client.fetch("t", "g")
        assert await dead(client) == [(f"t:{sent.id}", b"bad")]


async def test_one_that_is_cancelled_is_in_one_place(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        letters = DeadLetters()
        for number in range(20):
            await client.send("t", b"%d" % number)
            batch = await fetched(client)
            with trio.move_on_after(number / 2_000):
                await letters.forward(client, dying(batch))
            await batch.give_back()
        left = set()
        while batch := await fetched(client):
            left |= set(batch.bodies())
            await batch.ack(confirm=True)
        buried = {body for _, body in await dead(client)}
        buried |= {body for _, body in await dead(client)}
        assert left
        assert buried
        assert not left & buried
        assert left | buried == {b"%d" % number for number in range(20)}


async def test_a_name_that_is_too_long(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with broker_in_time(tmp_path) as there, there.client() as client:
        await client.send("t", b"bad")
        batch = await fetched(client)
        with pytest.raises(Refused, match="at most 114"):
            await DeadLetters().forward(client, dying(batch, "g" * 120))
        assert await batch.give_back() == ["returned"]
