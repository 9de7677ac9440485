"""Alive and ready, in simulated time."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
import trio.testing

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import send
from tests.support.run.profile import amount
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.config.load import from_arguments
from tickwheel_broker.group_commit import InPlace
from tickwheel_broker.monitoring import vitals
from tickwheel_broker.monitoring.vitals import (
    FULL_S,
    SLOW_SYNC_S,
    STALL_S,
    Disk,
    DiskSight,
    Reason,
    Vitals,
    look_at_disk,
)
from tickwheel_broker.wiring import watched_parts
from timerlog.store import Store

PATIENCE_S = 60.0
HOURS = amount("idle_hours")
WELL = Disk(size_bytes=1 << 40, free_bytes=1 << 39, is_read_only=False)


class Made(NamedTuple):
    """A broker, and what is watched of it."""

    broker: Broker
    vitals: Vitals


class StuckRunner(InPlace):
    """A disk that does not answer until it is let go."""

    def __init__(self) -> None:
        self.let_go = trio.Event()

    async def run(self, work: Callable[[], None]) -> None:
        await self.let_go.wait()
        work()


@asynccontextmanager
async def broker(path: Path, runner: InPlace | None = None) -> AsyncIterator[tuple[Made, trio.Nursery]]:
    store = Store.open(path, SMALL, NOW_MS)
    async with trio.open_nursery() as nursery:
        made = Broker(
            settings=from_arguments(data_dir=str(path)),
            store=store,
            clock=TrioClock(NOW_MS),
            runner=runner or InPlace(),
            nursery=nursery,
        )
        vitals = watched_parts(made).vitals
        nursery.start_soon(vitals.run)
        yield Made(made, vitals), nursery
        nursery.cancel_scope.cancel()
    store.close(clean=False)


def codes(reasons: list[Reason]) -> list[str]:
    return [reason.code for reason in reasons]


async def test_a_broker_that_works_is_alive_for_days(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with broker(tmp_path) as (made, nursery):
        nursery.start_soon(made.broker.run)
        topic_id = made.broker.store.topics.open("t", NOW_MS)
        for hour in range(HOURS):
            now_ms = made.broker.clock.now_ms()
            made.broker.store.produce.ingest(send(topic_id, [b"x"], times_ms=[now_ms + 1_800_000]), now_ms)
            await made.broker.commit.wait_durable(made.broker.store.log.appended_position)
            await trio.sleep(3_600)
            assert made.vitals.is_alive, hour
        assert made.broker.store.look.stats(0)["ready"] == HOURS
        assert made.vitals.reasons(WELL) == []


async def test_a_broker_whose_tasks_do_not_run_is_not_alive(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Here nobody runs them."""
    async with broker(tmp_path) as (made, _):
        topic_id = made.broker.store.topics.open("t", NOW_MS)
        made.broker.store.produce.ingest(send(topic_id, [b"x"]), NOW_MS)
        made.broker.store.sync()
        await trio.sleep(STALL_S / 2)
        assert made.vitals.is_alive
        await trio.sleep(STALL_S)
        assert sorted(made.vitals.hanging) == ["EnqueueGet", "housekeeping"]
        assert codes(made.vitals.reasons(WELL)) == ["hanging"]
        made.broker.lifetime.is_draining = True
        assert made.vitals.is_alive, "one that stops is left to do so"
        assert codes(made.vitals.reasons(WELL)) == ["draining", "hanging"]


async def test_a_process_that_was_away_is_given_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Stopped and continued, or on a machine that slept: nobody looked, so nobody hung."""
    async with broker(tmp_path) as (made, _):
        await trio.sleep(1.5)
        autojump_clock.jump(1_000)
        made.vitals.look()
        assert made.vitals.hanging == []


async def test_a_full_disk_counts_for_a_while(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with broker(tmp_path) as (made, nursery):
        nursery.start_soon(made.broker.run)
        await trio.sleep(100)
        assert made.vitals.reasons(WELL) == []
        made.broker.counters.refusals["disk_full"] += 1
        assert codes(made.vitals.reasons(WELL)) == ["disk_full"]
        assert made.vitals.is_alive
        await trio.sleep(FULL_S + 1)
        assert made.vitals.reasons(WELL) == []


async def test_what_the_disk_says(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with broker(tmp_path) as (made, _):
        assert codes(made.vitals.reasons(WELL._replace(is_read_only=True))) == ["disk_read_only"]
        assert codes(made.vitals.reasons(WELL._replace(free_bytes=1_000))) == ["disk_full"]
        assert codes(made.vitals.reasons(None)) == ["disk_unreadable"]
        real = look_at_disk(str(tmp_path))
        assert 0 < real.free_bytes <= real.size_bytes


async def test_a_disk_is_looked_at_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def seen(directory: str) -> Disk:
        looks.append(directory)
        if len(looks) == 2:
            raise OSError("it is gone")
        return WELL

    monkeypatch.setattr(vitals, "look_at_disk", seen)
    monkeypatch.setattr(vitals, "DISK_S", 0.0)
    sight = DiskSight(str(tmp_path))
    assert [await sight.look() for _ in range(3)] == [WELL, None, WELL]
    monkeypatch.setattr(vitals, "DISK_S", 60.0)
    assert [await sight.look() for _ in range(3)] == [WELL] * 3
    assert looks == [str(tmp_path)] * 3


async def test_a_disk_that_hangs_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go = threading.Event(), threading.Event()
    looks: list[str] = []

    def hang(directory: str) -> Disk:
        looks.append(directory)
        began.set()
        go.wait(PATIENCE_S)
        return WELL

    monkeypatch.setattr(vitals, "look_at_disk", hang)
    monkeypatch.setattr(vitals, "DISK_S", 0.0)
    monkeypatch.setattr(vitals, "DISK_PATIENCE_S", 0.05)
    sight = DiskSight(str(tmp_path))
    try:
        assert await sight.look() is None
        assert began.wait(PATIENCE_S)
        assert [await sight.look() for _ in range(3)] == [None] * 3
        assert await sight.look_now() is None
        assert looks == [str(tmp_path)]
    finally:
        go.set()


async def test_a_disk_that_does_not_answer_is_no_reason_to_start_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    runner = StuckRunner()
    async with broker(tmp_path, runner) as (made, nursery):
        nursery.start_soon(made.broker.run)
        made.broker.store.topics.open("t", NOW_MS)
        made.broker.commit.when_durable(made.broker.store.log.appended_position, lambda _: None, b"")
        await trio.sleep(SLOW_SYNC_S + STALL_S + 5)
        assert made.vitals.is_alive
        assert codes(made.vitals.reasons(WELL)) == ["disk_slow"]
        runner.let_go.set()
