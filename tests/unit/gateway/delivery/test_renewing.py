"""Leases of push consumers, in simulated time."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.rocketmq.gateway_call import CALLER, OpenCall
from tests.support.rocketmq.gateway_consumer import Consumer, another, bodies, consuming, handle_of, handles
from tickwheel.errors import NotConnected
from tickwheel_gateway.config import Config
from tickwheel_gateway.wire.codes import Code


async def pushed(consumer: Consumer, count: int = 1) -> list[Any]:
    """Messages that a push consumer has."""
    for number in range(count):
        await consumer.send(b"%d" % number)
    found = await consumer.receive(auto_renew=True)
    assert len(found) == count
    return found


async def comes_again_after(consumer: Consumer) -> float:
    """How long it takes until there is one for another client; it is the second attempt."""
    began = trio.current_time()
    while True:
        call = OpenCall()
        answers = await consumer.ask(call, another("other"), wait_s=20)
        if answers[0].status.code == Code.OK:
            assert answers[1].message.system_properties.delivery_attempt == 2
            return trio.current_time() - began


def count_extends(consumer: Consumer) -> list[int]:
    """How many receipts each request has."""
    frames: list[int] = []
    real = consumer.client.extend

    async def counted(group_id: int, receipts: list[tuple[int, int]], duration: Any) -> Any:
        frames.append(len(receipts))
        return await real(group_id, receipts, duration)

    consumer.client.extend = counted  # type: ignore[method-assign,assignment]
    return frames


async def test_a_message_is_kept_for_many_leases(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        found = await pushed(consumer, 3)
        consumer.registry.heard(CALLER)
        frames = count_extends(consumer)
        await trio.sleep(200)
        assert frames == [3, 3, 3], "in one request, when less than ten seconds are left"
        (group,) = await consumer.client.groups("t")
        assert (group.leased, group.backlog) == (3, 3)
        assert await consumer.ack(*handles(found)) == (20_000, [20_000] * 3)
        assert len(consumer.renewing) == 0
        await trio.sleep(100)
        assert frames == [3, 3, 3]


async def test_not_for_ever(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path, Config(renew_max_ms=150_000)) as consumer:
        (message,) = await pushed(consumer)
        assert 150 <= await comes_again_after(consumer) <= 150 + 60
        assert await consumer.ack(handle_of(message)) == (40_013, [40_013])
        assert len(consumer.renewing) == 0


async def test_what_a_client_has_that_goes_is_given_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        await pushed(consumer)
        await consumer.registry.forget(CALLER)
        assert len(consumer.renewing) == 0
        assert abs(await comes_again_after(consumer) - 1) < 0.05


async def test_a_client_that_goes_without_a_word(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer, trio.open_nursery() as nursery:
        await pushed(consumer)
        nursery.start_soon(consumer.registry.look)
        assert 60 <= await comes_again_after(consumer) <= 63
        nursery.cancel_scope.cancel()


async def test_what_a_client_is_given_that_has_just_gone(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Its long poll was still open when it said so."""
    async with consuming(tmp_path) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.registry.look)
        call = OpenCall()

        async def poll() -> None:
            await consumer.ask(call, wait_s=20, auto_renew=True)

        nursery.start_soon(poll)
        await trio.sleep(1)
        await consumer.registry.forget(CALLER)
        await consumer.send(b"x")
        assert 60 <= await comes_again_after(consumer) <= 63
        assert call.written == 3
        nursery.cancel_scope.cancel()


async def test_what_was_settled_elsewhere_is_found_out(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        found = await pushed(consumer, 3)
        consumer.renewing, here = _another_process(consumer), consumer.renewing
        await consumer.client.ack(
            (await consumer.client.group("t", "g")).group_id,
            [(message.system_properties.queue_offset, 1) for message in found[:2]],
        )
        await trio.sleep(60)
        assert len(here) == 1


def _another_process(consumer: Consumer) -> Any:
    return type(consumer.renewing)(Config(), consumer.broker, consumer.registry)


async def test_a_broker_that_is_away_is_asked_again(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with consuming(tmp_path) as consumer:
        (message,) = await pushed(consumer)
        await trio.sleep(48)
        for error in (NotConnected(), OSError("no socket"), ValueError("a defect")):
            consumer.broker.error = error
            await trio.sleep(2.5)
        consumer.broker.error = None
        assert "leases could not be renewed" in caplog.text
        await trio.sleep(60)
        assert len(consumer.renewing) == 1
        assert await consumer.ack(handle_of(message)) == (20_000, [20_000])


async def test_a_broker_that_is_away_for_too_long(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with consuming(tmp_path) as consumer:
        await pushed(consumer)
        consumer.broker.error = NotConnected()
        with caplog.at_level(logging.WARNING):
            await trio.sleep(66)
        assert "ended before the broker could be told" in caplog.text
        assert len(consumer.renewing) == 0
        assert bodies(await consumer.receive()) == [b"0"]


async def test_giving_back_is_tried_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with consuming(tmp_path) as consumer:
        await pushed(consumer)
        consumer.broker.error = NotConnected()
        await consumer.registry.forget(CALLER)
        assert len(consumer.renewing) == 1
        await trio.sleep(12)
        consumer.broker.error = None
        assert await comes_again_after(consumer) <= 5 + 1.05
        assert len(consumer.renewing) == 0


async def test_one_that_is_told_of_a_client_that_goes_may_be_cancelled(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with consuming(tmp_path) as consumer:
        await pushed(consumer)
        with trio.CancelScope() as scope:
            scope.cancel()
            await consumer.registry.forget(CALLER)
        assert len(consumer.renewing) == 1
        assert await comes_again_after(consumer) <= 5 + 1.05


async def test_who_ends_leaves_clients_the_time_of_a_whole_lease(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with consuming(tmp_path) as consumer:
        (message,) = await pushed(consumer)
        consumer.renewing, ends = _another_process(consumer), consumer.renewing
        await trio.sleep(45)
        await ends.leave()
        ends.drop(*_all_of(ends))
        await trio.sleep(55)
        assert await consumer.ack(handle_of(message)) == (20_000, [20_000])


async def test_who_ends_gives_back_what_could_not_be_given_back_before(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with consuming(tmp_path) as consumer:
        await pushed(consumer)
        await trio.sleep(6)  # the next turn comes after 10 s
        consumer.broker.error = NotConnected()
        await consumer.registry.forget(CALLER)
        consumer.broker.error = None
        await consumer.renewing.leave()
        assert await comes_again_after(consumer) <= 1.05
        assert len(consumer.renewing) == 0


async def test_who_ends_does_not_wait_for_a_broker_that_is_away(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with consuming(tmp_path) as consumer:
        await pushed(consumer)
        consumer.broker.error = NotConnected()
        await consumer.renewing.leave()
        consumer.broker.error = None

        async def never(*_: Any) -> Any:
            await trio.sleep_forever()

        consumer.client.extend = never  # type: ignore[method-assign]
        with trio.fail_after(5):
            await consumer.renewing.leave()
        assert "leases of 1 messages may not have been renewed or given back" in caplog.text


def _all_of(renewing: Any) -> tuple[int, list[Any]]:
    """Of one group: what it does not do any more."""
    receipts = list(renewing._by_receipt)
    return receipts[0][0], [receipt for _, receipt in receipts]
