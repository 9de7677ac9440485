"""The rhythm of a schedule in words, and what becomes of it when clocks change."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from cronsim import CronSim, CronSimError

from tickwheel import Schedule
from tickwheel_web.dashboard import words

_SOME_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Expressions are explained without regard to it."""
_FIELDS_WITHOUT_SECONDS: Final = 5
_LAST_YEAR: Final = 9999


def in_words(schedule: Schedule) -> str:
    """Of one that there is."""
    return explained(schedule.cron, schedule.tz) if schedule.cron else interval(schedule.every_ms)


def interval(every_ms: int) -> str:
    """
    >>> interval(600_000)
    'every 10 min'
    """
    return f"every {words.duration(every_ms)}"


@lru_cache(maxsize=4_096)
def explained(cron: str, tz: str) -> str:
    """
    >>> explained("0 9 * * 1-5", "Europe/Berlin"), explained("*/5 * * * *", "UTC")
    ('at 09:00 on Monday through Friday, Europe/Berlin', 'every fifth minute of every hour')
    >>> explained("nonsense", "UTC")
    'nonsense, UTC'
    """
    try:
        text: str = CronSim(cron, _SOME_TIME).explain()
    except CronSimError:
        return f"{cron}, {tz}"
    told = text[:1].lower() + text[1:]
    return told if told.startswith("every") and ":" not in told and "day" not in told else f"{told}, {tz}"


def has_fixed_time(cron: str) -> bool:
    """Whether it names times of day, which come once a day also when clocks change; anything else goes by elapsed
    time.

    >>> [has_fixed_time(cron) for cron in ("30 2 * * *", "*/30 2 * * *", "30 * * * *", "0 30 2 * * *", "")]
    [True, False, False, False, False]
    """
    fields = cron.split()
    return len(fields) == _FIELDS_WITHOUT_SECONDS and not fields[0].startswith("*") and fields[1][0] != "*"


def rule(cron: str, *, is_skipped: bool) -> str:
    """What becomes of a local time that there is not (``is_skipped``), or that comes twice."""
    if is_skipped:
        return "runs right after the gap" if has_fixed_time(cron) else "does not run in the gap"
    return "runs once, at the first of the two" if has_fixed_time(cron) else "runs twice"


def end_of(schedule: Schedule) -> datetime | None:
    """None: it has none."""
    return schedule.until if schedule.until.year < _LAST_YEAR else None
