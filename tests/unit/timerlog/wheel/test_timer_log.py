"""The TimerLog gives the wheel its records: their room grows, and all of it can be given back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from timerlog.errors import DiskFull
from timerlog.wheel.timer_log import SMALL_BYTES, TIMER_DTYPE, TimerLog


@pytest.fixture(params=["a file", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TimerLog]:
    path = tmp_path / "timer.log" if request.param == "a file" else None
    opened = TimerLog(path)
    yield opened
    opened.close()


def test_it_begins_empty_whatever_was_there(tmp_path: Path) -> None:
    path = tmp_path / "timer.log"
    path.write_bytes(b"\1" * 8_192)
    log = TimerLog(path)
    try:
        assert (log.capacity, log.disk_bytes()) == (0, 0)
    finally:
        log.close()


def test_room_is_for_so_many_more_and_keeps_what_is_there(log: TimerLog) -> None:
    log.make_room(10)
    first = log.capacity
    assert first >= 10
    log.records(10)["ref"] = np.arange(10)
    log.make_room(100_000)
    assert log.capacity >= first + 100_000
    assert log.records(10)["ref"].tolist() == list(range(10))
    assert not log.records(log.capacity)["ref"][10:].any()
    with pytest.raises(AssertionError, match="not allocated"):
        log.records(log.capacity + 1)


def test_started_anew_it_has_no_record_and_no_space(log: TimerLog) -> None:
    log.make_room(SMALL_BYTES // TIMER_DTYPE.itemsize + 1)
    assert log.is_large
    log.records(1)["ref"] = 7
    had_bytes = log.region.allocated_bytes
    assert log.start_anew() == had_bytes
    assert (log.capacity, log.is_large, log.disk_bytes()) == (0, False, 0)
    log.make_room(1)
    assert log.records(1)["ref"].tolist() == [0]


def test_without_room_it_stays_as_it_was(log: TimerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(bytes_needed: int) -> None:
        raise DiskFull("the disk is full")

    log.make_room(1)
    before = log.capacity
    monkeypatch.setattr(log.region, "ensure", refuse)
    with pytest.raises(DiskFull):
        log.make_room(1)
    assert log.capacity == before
