"""When an entry runs, as a schedule of the broker says it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

import msgspec
from celery.schedules import crontab, schedule

from tickwheel.celery.beat.cron import cron_expression
from tickwheel.celery.beat.errors import NotOnBroker

_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Rhythm(msgspec.Struct, frozen=True):
    """Either a cron expression and its zone, or an interval."""

    cron: str = ""
    tz: str = "UTC"
    every_ms: int = 0
    offset_ms: int | None = None
    """Of an interval that goes by the clock: where its slots lie, counted from 1970. None: it is counted from when the
    schedule was made."""


def rhythm_of(entry_schedule: Any, zone: tzinfo) -> Rhythm:
    """The rhythm of an entry's schedule in the app's zone. Raises NotOnBroker."""
    if getattr(entry_schedule, "nowfun", None) is not None:
        raise NotOnBroker("its schedule has a clock of its own (nowfun)")
    # A subclass may mean anything, so only these two themselves are known.
    if type(entry_schedule) is crontab:
        return Rhythm(cron=cron_expression(entry_schedule), tz=zone_name(zone))
    if type(entry_schedule) is schedule:
        return _interval(entry_schedule, zone)
    raise NotOnBroker(f"the broker knows crontab and intervals, and no {type(entry_schedule).__name__!r}")


def _interval(entry_schedule: schedule, zone: tzinfo) -> Rhythm:
    every: timedelta = entry_schedule.run_every
    every_ms = -(-every // _MILLISECOND)
    if every < _MILLISECOND:
        raise NotOnBroker("its interval is shorter than a millisecond")
    if not entry_schedule.relative:
        return Rhythm(every_ms=every_ms)
    # Celery rounds such a time down to the day, hour, minute or second, whichever the interval has.
    if every.days:
        raise NotOnBroker("an interval of days that is relative begins at midnight, also when clocks change")
    midnight = datetime(1970, 1, 1, tzinfo=zone)
    return Rhythm(every_ms=every_ms, offset_ms=((midnight - _EPOCH) // _MILLISECOND) % every_ms)


def zone_name(zone: tzinfo) -> str:
    """The name by which the broker knows a zone. Raises NotOnBroker."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if isinstance(name, str):
        return name
    if zone is UTC:
        return "UTC"
    raise NotOnBroker(f"its time zone {zone!r} has no name; set timezone, for example to 'Europe/Paris'")
