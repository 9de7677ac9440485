"""A month, a week or a day with the times of all schedules, and what changes of clocks make of them.

The broker computes the times, with the rules by which it sends. What runs often is told in words instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Annotated, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from starlette.responses import Response

from tickwheel import Client, Schedule
from tickwheel.errors import BadArgument
from tickwheel_web.dashboard import listing, words
from tickwheel_web.dashboard.page import Viewed
from tickwheel_web.dashboard.schedules import rhythm

TIMES: Final = 200
"""Of one schedule: more than there can be in six weeks of what does not run often."""
NAMES: Final = 3
"""With one time, and in one day so many times, where there are other days beside it; the others are behind a link."""
MOMENTS: Final = 8
OFTEN: Final = timedelta(days=1)
"""What has five times within it is told in words."""
_WEEK: Final = timedelta(days=7)
_TITLES: Final = {
    "month": "{chosen:%B %Y}",
    "week": "Week of {first:%Y-%m-%d}",
    "day": "{chosen:%A, %Y-%m-%d}",
}
_YEARS: Final = range(1971, 9000)
_MS: Final = timedelta(milliseconds=1)
_PLENTY: Final = 5


class Asked(listing.Asked, forbid_unknown_fields=True, frozen=True):
    """Which days, in which zone; schedules with a text in their name or topic: each costs the broker a computation."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 500
    view: Literal["month", "week", "day"] = "month"
    day: Annotated[str, msgspec.Meta(max_length=10)] = ""
    zone: Annotated[str, msgspec.Meta(max_length=100)] = "UTC"


class Computed(NamedTuple):
    """What the broker says of a rhythm: its times, each with which of two it is, and local times that are skipped."""

    times: list[tuple[datetime, str]]
    skipped: list[str]


class Entry(NamedTuple):
    """One time of one schedule. ``note``: what a change of clocks makes of it. ``is_before``: it lies before the
    schedule's start, so that it did not run then."""

    time: str
    is_before: bool
    note: str
    name: str


class Moment(NamedTuple):
    """All schedules with one time."""

    time: str
    is_before: bool
    note: str
    names: list[str]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.names)


@dataclass
class Day:
    """Of the calendar. ``change``: what its clocks do."""

    date: date
    is_in_span: bool
    change: str
    entries: list[Entry] = field(default_factory=list)

    @property
    def moments(self) -> list[Moment]:
        """In order."""
        groups = groupby(sorted(self.entries), key=lambda one: (one.time, one.is_before, one.note))
        return [
            Moment(time, is_before, note, [one.name for one in found])
            for (time, is_before, note), found in groups
        ]


@dataclass(frozen=True)
class Span:
    """Whole weeks, from a Monday on; or one day."""

    first: date
    days: int
    zone: ZoneInfo

    @property
    def start(self) -> datetime:
        """Its first moment."""
        return midnight(self.first, self.zone)

    @property
    def end(self) -> datetime:
        """Its last one, to the millisecond."""
        return midnight(self.first + timedelta(days=self.days), self.zone) - _MS


async def calendar(viewed: Viewed) -> Response:
    """What is paused has no times."""
    asked: Asked = viewed.query
    zone = _zone(asked.zone)
    chosen = _date(asked.day) if asked.day else datetime.now(zone).date()
    span = _span(asked.view, chosen, zone)
    found = await viewed.client.schedules(count=0)
    running = [one for one in found if not one.paused]
    part = listing.listed(viewed, running, lambda one: one.name, lambda one: f"{one.name}\n{one.topic}")
    days = {one.date: one for one in _days(span, chosen, asked.view)}
    often = [one async for one in _fill(days, viewed.client, part.rows, span)]
    listed = list(days.values())
    return viewed.page(
        "schedules/calendar.html",
        title=_TITLES[asked.view].format(chosen=chosen, first=span.first),
        weeks=[listed[start : start + 7] for start in range(0, len(listed), 7)],
        before=_moved(asked.view, chosen, -1),
        behind=_moved(asked.view, chosen, 1),
        chosen=chosen,
        today=datetime.now(zone).date(),
        often=[(one, rhythm.in_words(one)) for one in often],
        paused=len(found) - len(running),
        part=part,
        names=NAMES,
        moments=MOMENTS,
        has_before=any(one.is_before for day in listed for one in day.entries),
    )


async def _fill(
    days: dict[date, Day], client: Client, rows: Sequence[Schedule], span: Span
) -> AsyncIterator[Schedule]:
    """Asks for each rhythm once; yields the schedules that run too often for a calendar."""
    known: dict[tuple[object, ...], Computed] = {}
    now = datetime.now(UTC)
    for one in rows:
        until = min(one.until, span.end)
        if until < span.start or one.start > until:
            continue
        # Days that have passed have its times, too, as far as these do not hang on its start.
        start = None if one.cron and one.start <= now else one.start
        key = one.cron, one.tz, one.every_ms, start, until
        if key not in known:
            found = await client.preview_schedule(
                cron=one.cron or None,
                tz=one.tz,
                every=one.every if one.every_ms else None,
                start=start,
                until=until,
                count=TIMES,
                after=span.start - _MS,
            )
            known[key] = Computed([(each.time, each.repeated) for each in found.times], found.skipped)
        if _is_often(known[key]):
            yield one
            continue
        for at, entry in _entries(one, known[key], span.zone):
            if at in days:
                days[at].entries.append(entry)


def _entries(schedule: Schedule, found: Computed, zone: ZoneInfo) -> Iterator[tuple[date, Entry]]:
    for at, repeated in found.times:
        local = at.astimezone(zone)
        note = ""
        if repeated:
            note = f"{repeated} of two, {rhythm.rule(schedule.cron, is_skipped=False)}"
        yield local.date(), Entry(_clock(local), at < schedule.start, note, schedule.name)
    for text in found.skipped:
        local = datetime.fromisoformat(text)
        is_before = local.replace(tzinfo=ZoneInfo(schedule.tz)) < schedule.start
        note = f"skipped at {_clock(local)} in {schedule.tz}, {rhythm.rule(schedule.cron, is_skipped=True)}"
        yield local.date(), Entry(_clock(local), is_before, note, schedule.name)


def _days(span: Span, chosen: date, view: str) -> Iterator[Day]:
    for number in range(span.days):
        day = span.first + timedelta(days=number)
        yield Day(day, view != "month" or day.month == chosen.month, change_of_clocks(day, span.zone))


def change_of_clocks(day: date, zone: ZoneInfo) -> str:
    """
    >>> berlin = ZoneInfo("Europe/Berlin")
    >>> change_of_clocks(date(2031, 3, 30), berlin), change_of_clocks(date(2031, 10, 26), berlin)
    ('clocks go forward 1 h', 'clocks go back 1 h')
    >>> change_of_clocks(date(2031, 5, 1), berlin)
    ''
    """
    length = midnight(day + timedelta(days=1), zone) - midnight(day, zone)
    change = timedelta(days=1) - length
    if not change:
        return ""
    return f"clocks go {'forward' if change > timedelta(0) else 'back'} {words.duration(abs(change))}"


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """Where a day begins, in UTC: moments of one zone are subtracted as if its clocks never changed."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


def _span(view: str, chosen: date, zone: ZoneInfo) -> Span:
    if view == "day":
        return Span(chosen, 1, zone)
    first = chosen.replace(day=1) if view == "month" else chosen
    monday = first - timedelta(days=first.weekday())
    last = _moved("month", chosen, 1) if view == "month" else monday + _WEEK
    return Span(monday, -(-(last - monday).days // 7) * 7, zone)


def _moved(view: str, chosen: date, step: int) -> date:
    """The first day of the month before or behind, the same weekday, or the next day."""
    if view != "month":
        return chosen + step * (_WEEK if view == "week" else timedelta(days=1))
    months = chosen.year * 12 + chosen.month - 1 + step
    return date(months // 12, months % 12 + 1, 1)


def _is_often(found: Computed) -> bool:
    times = [at for at, _ in found.times]
    return any(later - at < OFTEN for at, later in zip(times, times[_PLENTY - 1 :], strict=False))


def _clock(local: datetime) -> str:
    return f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"


def _zone(name: str) -> ZoneInfo:
    """Raises BadArgument."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise BadArgument("There is no such zone.", advice="Use a name like Europe/Berlin, or UTC.") from None


def _date(text: str) -> date:
    """Raises BadArgument."""
    try:
        found = date.fromisoformat(text)
    except ValueError:
        raise BadArgument("day is no date.", advice="Write it like 2031-05-01.") from None
    if found.year not in _YEARS:
        raise BadArgument(f"The calendar has the years {_YEARS.start} to {_YEARS.stop - 1:,}.")
    return found
