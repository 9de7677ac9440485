"""Of two holders of one message only one is told that its ack counted, whichever way they ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.clients.in_time import InTime, broker_in_time
from tickwheel import Client, Message, Subscription, TransactionRefused
from tickwheel.errors import AckRefused, StaleReceipt
from tickwheel.protocol.frames import FrameType

NO_RENEWAL = timedelta(0)


async def take(subscription: Subscription) -> Message:
    message = await subscription.receive(timeout=30)
    assert message is not None
    return message


@asynccontextmanager
async def both(directory: Path) -> AsyncIterator[tuple[InTime, Client, Message, Message]]:
    """A client, and the same message as it was given to that one first, and then to another one."""
    async with (
        broker_in_time(directory, ack_wait="2s") as there,
        there.client() as late,
        there.client() as next_one,
        late.subscribe("t", max_hold=NO_RENEWAL, credit=1) as first,
    ):
        await late.send("t", b"x")
        earlier = await take(first)
        async with next_one.subscribe("t") as second:
            later = await take(second)
            assert (earlier.id, earlier.epoch, later.epoch) == (later.id, 1, 2)
            yield there, late, earlier, later


async def test_the_ack_of_the_earlier_one_is_refused_once_the_later_one_has_acked(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with both(tmp_path) as (_, _client, earlier, later):
        await later.ack(confirm=True)
        with pytest.raises(StaleReceipt) as refused:
            await earlier.ack(confirm=True)
        assert refused.value.refused == {earlier.id: "stale_receipt"}
        await earlier.ack()
        with pytest.raises(AckRefused):
            await earlier.acks.flush()
        await later.ack(confirm=True)


@pytest.mark.promise("sending-twice")
async def test_both_at_once(tmp_path: Path, autojump_clock: Any) -> None:
    async with both(tmp_path) as (_, _client, earlier, later):
        told: dict[int, str] = {}

        async def ack(message: Message) -> None:
            try:
                await message.ack(confirm=True)
            except StaleReceipt as error:
                told[message.epoch] = error.code
            else:
                told[message.epoch] = "acked"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ack, later)
            nursery.start_soon(ack, earlier)
        assert told == {1: "stale_receipt", 2: "acked"}


async def test_whatever_else_the_earlier_one_asks_for(tmp_path: Path, autojump_clock: Any) -> None:
    async with both(tmp_path) as (_, client, earlier, later):
        await later.ack(confirm=True)
        assert await earlier.nack() == "stale_receipt"
        assert await earlier.nack(give_up=True) == "stale_receipt"
        assert await earlier.extend(timedelta(minutes=1)) == "stale_receipt"
        group_id = earlier.acks.group_id
        assert group_id is not None
        pairs = [(earlier.id, epoch) for epoch in (1, 2, 1)]
        wanted = ["stale_receipt", "already_acked", "stale_receipt"]
        assert await client.ack(group_id, pairs) == wanted
        assert await client.nack(group_id, pairs[:2]) == wanted[:2]
        assert await client.extend(group_id, pairs[:2], timedelta(minutes=1)) == wanted[:2]
        assert await client.give_back(group_id, pairs[:2]) == wanted[:2]
        for pair, reason in zip(pairs, wanted, strict=False):
            transaction = client.transaction()
            transaction.ack_receipts(group_id, [pair])
            with pytest.raises(TransactionRefused) as refused:
                await transaction.commit()
            assert refused.value.reason == reason


async def test_an_ack_whose_answer_was_lost_is_confirmed_when_it_is_repeated(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repetition of the holder before is refused on its new connection, too."""
    async with both(tmp_path) as (there, _client, earlier, later):
        losses: list[int] = []

        def loses_answer(frame_type: int) -> bool:
            losses.append(frame_type)
            return losses.count(FrameType.ACK_OK) == 1 and frame_type == FrameType.ACK_OK

        monkeypatch.setattr(there.network, "loses_answer", loses_answer)
        await later.ack(confirm=True)
        assert losses.count(FrameType.ACK_OK) == 2, "it was answered twice"
        losses.clear()
        with pytest.raises(StaleReceipt):
            await earlier.ack(confirm=True)
        assert losses.count(FrameType.ACK_OK) == 2, "it was answered twice"
