"""The timer service sleeps until the wheel's next event, and is woken for an earlier one only; and the way of messages
through all five services."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.support.native.driver import SMALL
from tests.support.native.frames import send
from tickwheel_broker.clock.clock import Alarm, ManualClock
from tickwheel_broker.services import STRAIGHT_MESSAGES, Services
from timerlog.errors import DiskFull
from timerlog.services.batches import DueBatch
from timerlog.store import Store

START = datetime(2030, 1, 1, tzinfo=UTC)


class CountingAlarm:
    def __init__(self, alarm: Alarm, slept_until_ms: list[int | None]) -> None:
        self._alarm = alarm
        self._slept_until_ms = slept_until_ms
        self.close = alarm.close
        self.ring = alarm.ring

    async def sleep_until(self, due_ms: int | None) -> None:
        self._slept_until_ms.append(due_ms)
        await self._alarm.sleep_until(due_ms)


class CountingClock(ManualClock):
    def __init__(self) -> None:
        super().__init__(START)
        self.slept_until_ms: list[int | None] = []

    def alarm(self) -> Alarm:
        return CountingAlarm(super().alarm(), self.slept_until_ms)


async def take_in(store: Store, services: Services, frame: bytes, now_ms: int) -> None:
    """What is sent is durable, and the services have done what they can with it."""
    store.produce.ingest(frame, now_ms)
    store.sync()
    services.durable_moved()
    await trio.testing.wait_all_tasks_blocked()


async def test_only_an_earlier_timer_wakes_the_timer_service(tmp_path: Path) -> None:
    clock = CountingClock()
    now_ms = clock.now_ms()
    store = Store.open(tmp_path, SMALL, now_ms)
    topic_id = store.topics.open("t", now_ms)
    services = Services(store, clock, max_backlog_messages=1_000, publish=lambda: None)

    async def put_on_the_wheel(due_ms: int) -> None:
        await take_in(store, services, send(topic_id, [b"x"], times_ms=[due_ms]), now_ms)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(services.run)
        await trio.testing.wait_all_tasks_blocked()
        assert clock.slept_until_ms == [None]
        await put_on_the_wheel(now_ms + 1_000)
        assert clock.slept_until_ms == [None, now_ms + 1_000]
        await put_on_the_wheel(now_ms + 2_000)
        services.timers_changed()
        await trio.testing.wait_all_tasks_blocked()
        assert clock.slept_until_ms == [None, now_ms + 1_000], "it is not woken for a later one"
        await put_on_the_wheel(now_ms + 500)
        assert clock.slept_until_ms == [None, now_ms + 1_000, now_ms + 500]
        assert not services.is_about_to_move
        await put_on_the_wheel(now_ms + 1)
        assert services.is_about_to_move, "a millisecond before it is due"
        nursery.cancel_scope.cancel()
    store.close(clean=False)


async def test_a_few_messages_go_straight_and_many_by_the_channels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(START)
    now_ms = clock.now_ms()
    store = Store.open(tmp_path, SMALL, now_ms)
    topic_id = store.topics.open("t", now_ms)
    published: list[int] = []
    services = Services(
        store, clock, max_backlog_messages=10_000, publish=lambda: published.append(in_topic(store, topic_id))
    )

    async def put(count: int) -> None:
        await take_in(store, services, send(topic_id, [b"x"] * count), now_ms)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(services.run)
        await trio.testing.wait_all_tasks_blocked()
        await put(STRAIGHT_MESSAGES)
        assert published == [STRAIGHT_MESSAGES]
        assert (services.pending.passed, services.due.passed, services.ready.passed) == (0, 0, 0)
        await put(STRAIGHT_MESSAGES + 1)
        assert published == [STRAIGHT_MESSAGES, 2 * STRAIGHT_MESSAGES + 1]
        # A step without room leaves the batch to the channel, where it waits; what comes later waits behind it.
        link, full = store.enqueue_put.link, [True, True]
        monkeypatch.setattr(
            store.enqueue_put, "link", lambda *each: link(*each) if not full else refuse(full)
        )
        await put(1)
        assert (services.full_disks, len(services.pending.batches)) == (1, 1)
        await put(2)
        assert len(services.pending.batches) == 2
        await until(lambda: not services.pending.batches)
        await until(lambda: published[-1] == 2 * STRAIGHT_MESSAGES + 4)
        nursery.cancel_scope.cancel()
    store.close(clean=False)


async def test_batches_behind_a_large_one_go_straight_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While each batch is on its way, the next message becomes durable."""
    clock = ManualClock(START)
    now_ms = clock.now_ms()
    store = Store.open(tmp_path, SMALL, now_ms)
    topic_id = store.topics.open("t", now_ms)
    services = Services(store, clock, max_backlog_messages=10_000, publish=lambda: None)
    link, following = store.enqueue_put.link, [send(topic_id, [b"x"])] * 20

    def link_and_send(batch: DueBatch, at_ms: int) -> DueBatch | None:
        if following:
            store.produce.ingest(following.pop(), now_ms)
            store.sync()
            services.durable_moved()
        return link(batch, at_ms)

    monkeypatch.setattr(store.enqueue_put, "link", link_and_send)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(services.run)
        await take_in(store, services, send(topic_id, [b"x"] * (STRAIGHT_MESSAGES + 1)), now_ms)
        assert in_topic(store, topic_id) == STRAIGHT_MESSAGES + 21
        assert services.pending.passed == 2, "the large batch, and the message that came behind it"
        nursery.cancel_scope.cancel()
    store.close(clean=False)


async def test_due_messages_behind_a_large_batch_go_straight_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While each batch is on its way, the next millisecond comes."""
    clock = ManualClock(START)
    now_ms = clock.now_ms()
    store = Store.open(tmp_path, SMALL, now_ms)
    topic_id = store.topics.open("t", now_ms)
    services = Services(store, clock, max_backlog_messages=10_000, publish=lambda: None)
    turn = store.dequeue_get.turn
    times_ms = [now_ms + 100] * (STRAIGHT_MESSAGES + 1) + list(range(now_ms + 101, now_ms + 121))

    def turn_and_tick(at_ms: int, limit: int) -> DueBatch | None:
        if (batch := turn(at_ms, limit)) is not None:
            clock.advance(timedelta(milliseconds=1))
        return batch

    monkeypatch.setattr(store.dequeue_get, "turn", turn_and_tick)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(services.run)
        await take_in(store, services, send(topic_id, [b"x"] * len(times_ms), times_ms=times_ms), now_ms)
        clock.advance(timedelta(milliseconds=100))
        await trio.testing.wait_all_tasks_blocked()
        assert in_topic(store, topic_id) == len(times_ms)
        assert services.due.passed == 2, "the large batch, and the message that came behind it"
        nursery.cancel_scope.cancel()
    store.close(clean=False)


def in_topic(store: Store, topic_id: int) -> int:
    return int(store.tables.native.topics[topic_id].count)


def refuse(full: list[bool]) -> None:
    full.pop()
    raise DiskFull("no room")


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not is_so():
            await trio.sleep(0.01)
