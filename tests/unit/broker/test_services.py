"""The timer service sleeps until the wheel's next event, and is woken for an earlier one only."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import trio
import trio.testing

from tests.support.native.driver import SMALL
from tests.support.native.frames import send
from tickwheel_broker.clock import Alarm, ManualClock
from tickwheel_broker.services import Services
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


async def test_only_an_earlier_timer_wakes_the_timer_service(tmp_path: Path) -> None:
    clock = CountingClock()
    now_ms = clock.now_ms()
    store = Store.open(tmp_path, SMALL, now_ms)
    topic_id = store.topics.open("t", now_ms)
    services = Services(store, clock, max_backlog_messages=1_000, publish=lambda: None)

    async def put_on_the_wheel(due_ms: int) -> None:
        store.produce.ingest(send(topic_id, [b"x"], times_ms=[due_ms]), now_ms)
        store.sync()
        services.durable_moved()
        await trio.testing.wait_all_tasks_blocked()

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
