"""The wall clock is set under the running daemon, by a day, in both directions.

libfaketime does not know timerfd, on which the broker sleeps. So the daemon's process has a library of ours before
libc (tests/support/clients/clock_shift.c), which does to one process what setting the machine's clock does to all:
other times of day, timers that fire by them, and sleepers that are woken.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.support.clients.shifted_clock import ShiftedClock, clock_library
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon

pytestmark = pytest.mark.alone

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clock_library(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[ShiftedClock]:
    shifted = ShiftedClock(tmp_path / "shift")
    yield shifted
    shifted.close()


@pytest.fixture
def daemon(
    tmp_path: Path, clock: ShiftedClock, library: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Daemon]:
    running = Daemon(tmp_path / "data", program=[sys.executable], ack_wait="5s")
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("TICKWHEEL_CLOCK_SHIFT", str(tmp_path / "shift"))
        running.start()
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()


async def receive_all(
    subscription: tickwheel.Subscription[tickwheel.Message, tickwheel.Batch], clock: ShiftedClock, count: int
) -> list[bytes]:
    """So many messages; each comes when the broker's clock has reached its time, and never before."""
    bodies = []
    with trio.fail_after(PATIENCE_S):
        while len(bodies) < count:
            message = await subscription.receive()
            assert message is not None
            assert clock.now_ms() >= message.deliver_at_ms, "it is early by the broker's clock"
            await message.ack(confirm=True)
            bodies.append(message.body)
    return bodies


@pytest.mark.promise("when-the-clock-jumps")
async def test_set_forward_what_became_due_fires(daemon: Daemon, clock: ShiftedClock) -> None:
    async with tickwheel.Client(daemon.url) as client, client.subscribe("t") as subscription:
        now_ms = clock.now_ms()
        for hours in (1, 23, 25):
            await client.send("t", b"%d h" % hours, deliver_at=now_ms + hours * HOUR_MS)
        await client.send("t", b"soon", deliver_at=now_ms + 100)
        assert await receive_all(subscription, clock, 1) == [b"soon"]
        clock.set_by(DAY_MS)
        assert await receive_all(subscription, clock, 2) == [b"1 h", b"23 h"]
        await client.send("t", b"later", deliver_at=clock.now_ms() + 200)
        assert await receive_all(subscription, clock, 1) == [b"later"]
        assert await subscription.receive(timeout=0.3) is None
        stats = await client.stats()
        assert (stats.scheduled, stats.acked) == (1, 4)
        clock.set_by(2 * DAY_MS)
        assert await receive_all(subscription, clock, 1) == [b"25 h"]
    assert daemon.stop() == 0


@pytest.mark.promise("when-the-clock-jumps")
async def test_set_back_nothing_fires_twice(daemon: Daemon, clock: ShiftedClock) -> None:
    clock.set_by(DAY_MS)
    async with tickwheel.Client(daemon.url) as client, client.subscribe("t") as subscription:
        now_ms = clock.now_ms()
        due = [b"due %d" % number for number in range(20)]
        await client.send_many("t", due, deliver_at=now_ms + 50)
        await client.send("t", b"in an hour", deliver_at=now_ms + HOUR_MS)
        assert sorted(await receive_all(subscription, clock, 20)) == sorted(due)
        clock.set_by(0)
        # By the clock as it is now, that is 25 hours away; what is sent now has its own time.
        await client.send("t", b"now", deliver_at=clock.now_ms())
        await client.send("t", b"later", deliver_at=clock.now_ms() + 200)
        assert sorted(await receive_all(subscription, clock, 2)) == [b"later", b"now"]
        assert await subscription.receive(timeout=0.3) is None
        stats = await client.stats()
        assert (stats.scheduled, stats.acked) == (1, 22)
        clock.set_by(DAY_MS + HOUR_MS)
        assert await receive_all(subscription, clock, 1) == [b"in an hour"]
    assert daemon.stop() == 0


@pytest.mark.promise("when-the-clock-jumps")
async def test_set_back_and_killed_it_starts_and_delivers(
    daemon: Daemon, clock: ShiftedClock, tmp_path: Path
) -> None:
    clock.set_by(DAY_MS)
    async with tickwheel.Client(daemon.url) as client, client.subscribe("t") as subscription:
        await client.send("t", b"fired", deliver_at=clock.now_ms())
        assert await receive_all(subscription, clock, 1) == [b"fired"]
    daemon.kill()
    # The machine comes up with a clock that is a day behind.
    with Daemon(tmp_path / "data") as again:
        async with tickwheel.Client(again.url) as client, client.subscribe("t") as subscription:
            await client.send("t", b"after", delay_ms=100)
            with trio.fail_after(PATIENCE_S):
                message = await subscription.receive()
            assert message is not None
            assert message.body == b"after"
            await message.ack(confirm=True)
            assert await subscription.receive(timeout=0.3) is None
        assert again.stop() == 0
    assert os.environ.get("LD_PRELOAD") is None
