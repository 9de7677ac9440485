"""Redelivery through the real daemon: for ever, with waits that double inside their bounds and differ."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest

import tickwheel
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import Message, Subscription

pytestmark = pytest.mark.shared_daemon

ACK_WAIT_MS, LEAST_MS, MOST_MS = 60_000, 120_000, 1_000_000
COUNT = 40


async def get(subscription: Subscription) -> Message:
    """The next message."""
    message = await subscription.receive(PATIENCE_S)
    assert message is not None, "nothing came"
    return message


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def bounds_ms(epoch: int, first_ms: int = LEAST_MS) -> tuple[int, int]:
    """Between which waits the redelivery after delivery `epoch` lies."""
    if epoch == 1:
        return first_ms, first_ms
    middle = min(MOST_MS, LEAST_MS * 2 ** (epoch - 1))
    return middle - middle // 3, min(MOST_MS, middle + middle // 3)


async def next_times(client: tickwheel.Client, topic: str, state: str) -> list[int]:
    """When each message that is in a state is delivered again, in epoch ms."""
    result = await client.query(f"select time_next from \"{topic}\" where state = '{state}'")
    times: list[datetime] = [row[0] for row in result.rows]
    return [round(moment.timestamp() * 1_000) for moment in times]


@pytest.mark.promise("V4", "V22", "V59", "V60", "V82", "V95", "R59")
@pytest.mark.parametrize(("state", "first_ms"), [("leased", ACK_WAIT_MS), ("waiting", LEAST_MS)])
async def test_waits_double_between_their_bounds_and_differ(
    daemon: Daemon, topic: str, state: str, first_ms: int
) -> None:
    """Of messages that nobody acks, and of those that are given back without a time."""
    waits = {"ack_wait_ms": ACK_WAIT_MS, "min_backoff_ms": LEAST_MS, "max_backoff_ms": MOST_MS}
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, **waits)
        before_ms = now_ms()
        await client.send_many(topic, [b"x"] * COUNT)
        async with client.subscribe(topic) as subscription:
            for epoch in range(1, 7):
                held = [await get(subscription) for _ in range(COUNT)]
                assert {message.epoch for message in held} == {epoch}
                if state == "waiting":
                    before_ms = now_ms()
                    assert {await message.nack() for message in held} == {"nacked"}
                after_ms = now_ms()
                times = await next_times(client, topic, state)
                low, high = bounds_ms(epoch, first_ms)
                assert len(times) == COUNT
                assert before_ms + low <= min(times)
                assert max(times) <= after_ms + high
                if epoch > 1:
                    assert max(times) - min(times) > (high - low) // 2, "those that failed together spread"
                before_ms = now_ms()
                moved = await client.redeliver_where(topic, states=state, keep_attempts=True)
                assert moved.results == {"redelivered": COUNT}


@pytest.mark.promise("V2", "V63")
async def test_it_is_tried_for_ever_and_the_wait_never_collapses(daemon: Daemon, topic: str) -> None:
    """A shift by the attempt overflows at the 29th, the 54th or the 64th; two hundred are tried."""
    waits = {"ack_wait_ms": ACK_WAIT_MS, "min_backoff_ms": LEAST_MS, "max_backoff_ms": MOST_MS}
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(topic, **waits)
        sent = await client.send(topic, b"x")
        async with client.subscribe(topic) as subscription:
            for epoch in range(1, 201):
                message = await get(subscription)
                assert (message.id, message.epoch) == (sent.id, epoch)
                if epoch not in (29, 30, 54, 63, 64, 65, 128, 200):
                    assert await message.nack(0) == "nacked"
                    continue
                before_ms = now_ms()
                assert await message.nack() == "nacked"
                (at_ms,) = await next_times(client, topic, "waiting")
                assert at_ms - before_ms >= bounds_ms(epoch)[0]
                assert at_ms - now_ms() <= MOST_MS
                assert await client.redeliver(id=sent.id, keep_attempts=True) == ["redelivered"]
            last = await get(subscription)
            assert last.epoch == 201
            await last.ack(confirm=True)
            assert await subscription.receive(0.5) is None


@pytest.mark.promise("V70", "V71")
async def test_what_was_put_off_for_long_comes_at_once_and_starts_afresh(daemon: Daemon, topic: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(
            topic, ack_wait_ms=ACK_WAIT_MS, min_backoff_ms=LEAST_MS, max_backoff=0, max_attempts=9
        )
        await client.send_many(topic, [b"x"] * COUNT)
        async with client.subscribe(topic, credit=1_000) as subscription:
            for _ in range(4):
                for _ in range(COUNT):
                    assert await (await get(subscription)).nack(0) == "nacked"
            for _ in range(COUNT):
                assert await (await get(subscription)).nack(timedelta(days=30)) == "nacked"
            assert await subscription.receive(0.3) is None
            assert (await client.redeliver_where(topic, states="waiting")).matched == COUNT
            held = [await get(subscription) for _ in range(COUNT)]
            assert {message.epoch for message in held} == {6}, "receipts of before stay fenced off"
            before_ms = now_ms()
            for message in held:
                assert await message.nack() == "nacked"
            times = await next_times(client, topic, "waiting")
            assert max(times) <= now_ms() + LEAST_MS, "the wait is that of a first attempt"
            assert min(times) >= before_ms + LEAST_MS
