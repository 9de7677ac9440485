"""Workers whose clock is wrong: a task with an ETA runs at its time, by the clock of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.celery.conftest import Worker
from tests.integration.celery.test_workers import PROGRAM, Place
from tests.support.clients.shifted_clock import ShiftedClock, clock_library
from tests.support.processes.daemon_harness import Daemon
from tickwheel_bench.processes import wait_until

HOUR_MS = 3_600_000


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[ShiftedClock]:
    one = ShiftedClock(tmp_path / "shift")
    yield one
    one.close()


@pytest.mark.parametrize("shift_ms", [-HOUR_MS, HOUR_MS], ids=["an hour behind", "an hour ahead"])
def test_an_eta_is_by_the_clock_of_the_broker(
    daemon: Daemon, queue: str, tmp_path: Path, clock: ShiftedClock, shift_ms: int
) -> None:
    clock.set_by(shift_ms)
    place = Place(daemon.url, queue, tmp_path)
    environment = {
        "BROKER": daemon.url,
        "QUEUE": queue,
        "OUT": str(place.out),
        "LD_PRELOAD": str(clock_library(tmp_path)),
        "TICKWHEEL_CLOCK_SHIFT": str(tmp_path / "shift"),
    }
    program = PROGRAM + "\n@app.task(name='clock')\ndef clock():\n    note(time.time())\n"
    with place.app, Worker(program, tmp_path, "--pool", "prefork", "-c", "1", **environment) as worker:
        eta = datetime.now(UTC) + timedelta(seconds=2)
        place.send("clock", eta=eta)
        wait_until(place.lines)
        (theirs,) = place.lines()
        ours = datetime.fromtimestamp(
            float(theirs) - shift_ms / 1_000, UTC
        )  # what the clock of the broker said
        assert ours >= eta - timedelta(milliseconds=1)
        assert worker.stop() == 0
