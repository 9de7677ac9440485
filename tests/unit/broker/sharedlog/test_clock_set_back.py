"""A producer whose threads may sleep because the clock was set back is not used any more."""

from __future__ import annotations

import pytest
import trio

from tickwheel_broker.sharedlog.kafka import client
from tickwheel_broker.sharedlog.kafka.client import SetBack
from tickwheel_broker.sharedlog.kafka.log import KafkaLog
from tickwheel_broker.sharedlog.kafka.producer import KafkaProducer

PATIENCE_S = 30.0
HOUR_S = 3_600.0


class Clock:
    """The time of day of a machine, by how much it is ahead."""

    def __init__(self) -> None:
        self.ahead_s = 1_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(client, "_ahead_s", lambda: found.ahead_s)
    return found


def test_only_a_clock_that_was_set_back_counts(clock: Clock) -> None:
    set_back = SetBack()
    clock.ahead_s += HOUR_S
    set_back.look()
    assert not set_back.was
    clock.ahead_s -= 0.1
    assert not set_back.was, "a clock may be held a little"
    clock.ahead_s -= HOUR_S
    set_back.look()
    assert set_back.was
    assert not SetBack().was


async def test_the_next_append_has_a_producer_that_is_awake(clock: Clock) -> None:
    """Where no broker of Kafka is: nothing needs to come of it."""
    async with KafkaLog("127.0.0.1:1", "t", append_timeout_s=0.1) as log:
        before = await log._ready_producer()
        assert await log._ready_producer() is before
        clock.ahead_s += HOUR_S
        await _looked(before, clock)
        assert await log._ready_producer() is before
        clock.ahead_s -= HOUR_S
        after = await log._ready_producer()
        assert after is not before
        assert await log._ready_producer() is after
        with trio.fail_after(PATIENCE_S):
            while not before.has_ended:
                await trio.sleep(0.01)


async def _looked(producer: KafkaProducer, clock: Clock) -> None:
    with trio.fail_after(PATIENCE_S):
        while producer._set_back._latest_s < clock.ahead_s:
            await trio.sleep(0.01)
