"""When an entry runs, as a schedule of the broker says it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule, solar

from tickwheel.celery.beat.errors import NotOnBroker
from tickwheel.celery.beat.rhythm import Rhythm, rhythm_of

PARIS = ZoneInfo("Europe/Paris")
DELHI = ZoneInfo("Asia/Kolkata")


class Own(schedule):  # type: ignore[misc]
    """Somebody's."""


@pytest.mark.parametrize(
    ("given", "zone", "rhythm"),
    [
        (crontab("30", "2"), PARIS, Rhythm(cron="30 2 * * *", tz="Europe/Paris")),
        (crontab("30", "2"), UTC, Rhythm(cron="30 2 * * *", tz="UTC")),
        (schedule(timedelta(seconds=1.5)), PARIS, Rhythm(every_ms=1_500)),
        (schedule(timedelta(seconds=1.0001)), PARIS, Rhythm(every_ms=1_001)),
        (schedule(timedelta(hours=2), relative=True), UTC, Rhythm(every_ms=7_200_000, offset_ms=0)),
        # At whole hours there: 5 h 30 min east.
        (schedule(timedelta(hours=1), relative=True), DELHI, Rhythm(every_ms=3_600_000, offset_ms=1_800_000)),
    ],
)
def test_a_rhythm(given: Any, zone: Any, rhythm: Rhythm) -> None:
    assert rhythm_of(given, zone) == rhythm


@pytest.mark.parametrize(
    ("given", "zone", "why"),
    [
        (solar("sunset", 48, 2), UTC, "no 'solar'"),
        (Own(timedelta(seconds=1)), UTC, "no 'Own'"),
        (schedule(timedelta(microseconds=10)), UTC, "shorter than a millisecond"),
        (schedule(timedelta(days=2), relative=True), UTC, "begins at midnight"),
        (crontab(nowfun=lambda: datetime.now(UTC)), UTC, "clock of its own"),
        (crontab(), timezone(timedelta(hours=2)), "has no name"),
    ],
    ids=["solar", "subclass", "short", "days", "nowfun", "offset"],
)
def test_what_stays_with_beat(given: Any, zone: Any, why: str) -> None:
    with pytest.raises(NotOnBroker, match=why):
        rhythm_of(given, zone)
