"""Clocks: never early, awake when rung, and jumps are noticed."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
import trio
import trio.testing

from tickwheel_broker.clock import clock as clocks
from tickwheel_broker.clock.clock import Clock, ManualClock, SystemClock, TrioClock

PATIENCE_S = 60.0


async def sleeps_until_due(clock: Clock, by_ms: int) -> int:
    alarm = clock.alarm()
    due_ms = clock.now_ms() + by_ms
    with trio.fail_after(PATIENCE_S):
        while clock.now_ms() < due_ms:
            await alarm.sleep_until(due_ms)
    alarm.close()
    return clock.now_ms() - due_ms


@pytest.mark.promise("how-early-or-late-may-it-fire")
async def test_the_system_clock_is_never_early() -> None:
    clock = SystemClock()
    for by_ms in (1, 2, 3, 20):
        assert await sleeps_until_due(clock, by_ms) >= 0


async def test_without_timerfd_it_is_never_early_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks.timerfd, "AVAILABLE", False)
    assert await sleeps_until_due(SystemClock(), 3) >= 0


async def test_a_time_in_the_past_does_not_sleep() -> None:
    alarm = SystemClock().alarm()
    with trio.fail_after(PATIENCE_S):
        await alarm.sleep_until(0)
        await alarm.sleep_until(-5)
    alarm.close()


@pytest.mark.parametrize("make", [SystemClock, ManualClock, lambda: TrioClock(1_000)])
async def test_ringing_wakes_a_sleeper_without_a_date(make: type[SystemClock]) -> None:
    alarm = make().alarm()
    async with trio.open_nursery() as nursery:

        async def sleeper() -> None:
            await alarm.sleep_until(None)
            nursery.cancel_scope.cancel()

        nursery.start_soon(sleeper)
        await trio.testing.wait_all_tasks_blocked()
        alarm.ring()
        await trio.sleep(PATIENCE_S)
        pytest.fail("the alarm did not wake its sleeper")
    alarm.close()


async def test_a_ring_before_the_sleep_is_not_lost() -> None:
    for clock in (SystemClock(), ManualClock(), TrioClock(0)):
        alarm = clock.alarm()
        alarm.ring()
        with trio.fail_after(PATIENCE_S):
            await alarm.sleep_until(None)
        alarm.close()


async def test_the_manual_clock_stands_still_until_advanced() -> None:
    start = datetime(2031, 5, 1, 9, tzinfo=UTC)
    clock = ManualClock(start)
    assert clock.now() == start
    alarm = clock.alarm()
    due_ms = clock.now_ms() + 86_400_000
    woken = trio.Event()

    async def sleeper() -> None:
        while clock.now_ms() < due_ms:
            await alarm.sleep_until(due_ms)
        woken.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeper)
        clock.advance(timedelta(hours=23))
        await trio.testing.wait_all_tasks_blocked()
        assert not woken.is_set()
        thread = threading.Thread(target=clock.advance, args=(timedelta(hours=1),))
        thread.start()
        with trio.fail_after(PATIENCE_S):
            await woken.wait()
        thread.join()
    assert clock.now() == start + timedelta(days=1)
    alarm.close()


async def test_the_manual_clock_tells_a_step_back() -> None:
    clock = ManualClock(datetime(2031, 5, 1, tzinfo=UTC))
    assert clock.take_step_back_ms() == 0
    clock.set(datetime(2031, 4, 30, tzinfo=UTC))
    assert clock.take_step_back_ms() == 86_400_000
    assert clock.take_step_back_ms() == 0
    clock.set(datetime(2032, 1, 1, tzinfo=UTC))
    assert clock.take_step_back_ms() == 0


def test_the_manual_clock_refuses_what_makes_no_sense() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="without a time zone"):
        ManualClock(datetime(2031, 5, 1))
    with pytest.raises(ValueError, match="without a time zone"):
        clock.set(datetime(2031, 5, 1))
    with pytest.raises(ValueError, match="goes forward"):
        clock.advance(timedelta(seconds=-1))


def test_advancing_after_the_loop_has_ended_is_harmless() -> None:
    clock = ManualClock()

    async def use() -> None:
        clock.alarm()

    trio.run(use)
    clock.advance(timedelta(seconds=1))


def test_the_system_clock_notices_a_step_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    real_ns = time.time_ns
    assert clock.take_step_back_ms() < 1_000
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() - 5_000_000_000)
    assert 4_900 < clock.take_step_back_ms() < 5_100
    assert clock.take_step_back_ms() < 1_000


async def test_the_trio_clock_follows_simulated_time(autojump_clock: trio.testing.MockClock) -> None:
    clock = TrioClock(1_000)
    assert await sleeps_until_due(clock, 3_000) == 0
    assert clock.take_step_back_ms() == 0
