"""Cron expressions and offsets of Taskiq, and what they are in the broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.support.run.cases import table
from tickwheel.errors import BadSchedule
from tickwheel.taskiq.crons import checked_cron, offset_of, zone_of


@table("cron", ["* * * * *", "0 9 1 * *", "0 9 * * MON", "*/5 9 */2 * 1-5"])
def test_those_that_mean_the_same(cron: str) -> None:
    assert checked_cron(cron) == cron


@table("cron", ["", "* * * *", "0 0 9 * * *", "0 9 1 * 1", "0 9 1,15 * MON-FRI"])
def test_those_that_do_not(cron: str) -> None:
    with pytest.raises(BadSchedule):
        checked_cron(cron)


@table("hours", range(-12, 15))
def test_whole_hours_are_zones_and_come_back(hours: int) -> None:
    offset = timedelta(hours=hours)
    zone = zone_of(offset)
    assert datetime(2031, 5, 1, tzinfo=UTC).astimezone(ZoneInfo(zone)).utcoffset() == offset
    assert offset_of(zone) == (offset or None)


def test_names_stay_and_others_are_refused() -> None:
    assert zone_of(None) == "UTC"
    assert offset_of("UTC") is None
    assert offset_of(zone_of("Asia/Kolkata")) == "Asia/Kolkata"
    for offset in (timedelta(minutes=30), timedelta(hours=15), timedelta(hours=-13)):
        with pytest.raises(BadSchedule, match="always"):
            zone_of(offset)
