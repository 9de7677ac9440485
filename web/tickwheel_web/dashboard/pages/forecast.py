"""How much comes due when: from the next second to decades."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, Literal, NamedTuple
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from tickwheel.protocol.readable import noun
from tickwheel.stats import Forecast, datetime_of
from tickwheel_web.dashboard import words
from tickwheel_web.dashboard.page import Viewed

_MS = timedelta(milliseconds=1)
_SECOND, _MINUTE, _HOUR, _DAY = (
    timedelta(seconds=1),
    timedelta(minutes=1),
    timedelta(hours=1),
    timedelta(days=1),
)
_YEAR: Final = 365.25 * _DAY
"""On average."""

MESSAGES: Final = "/messages"
"""The page with a list of them."""
MAX_NAMES: Final = 200
"""Of topics to choose from."""

Horizon = Literal["minute", "hour", "day", "week", "month", "year", "decade", "all"]


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How far to look ahead, and at which topic; empty: at all of them."""

    horizon: Horizon = "all"
    topic: str = ""


class Scale(NamedTuple):
    """Several spans of time from now on, one behind the other."""

    label: str
    steps: Sequence[timedelta]
    """Where each ends, from now on."""
    is_even: bool = True


def _even(label: str, step: timedelta, count: int) -> Scale:
    return Scale(label, [step * number for number in range(1, count + 1)])


SCALES: Final[dict[Horizon, Scale]] = {
    "minute": _even("1 minute", _SECOND, 60),
    "hour": _even("1 hour", _MINUTE, 60),
    "day": _even("1 day", _HOUR / 2, 48),
    "week": _even("1 week", 3 * _HOUR, 56),
    "month": _even("30 days", _DAY / 2, 60),
    "year": _even("1 year", 7 * _DAY, 53),
    "decade": _even("10 years", 61 * _DAY, 60),
    "all": Scale(
        "everything",
        [
            *(_SECOND, 10 * _SECOND, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR),
            *(_DAY, 7 * _DAY, 30 * _DAY, 91 * _DAY, 365 * _DAY, 3 * _YEAR, 10 * _YEAR, 100 * _YEAR),
        ],
        is_even=False,
    ),
}


class Span(NamedTuple):
    """What is due in a span of time."""

    since: datetime
    until: datetime | None
    """None: the last one has no end."""
    messages: int
    leases: int | None
    """Ends of leases; None: not counted."""


async def forecast(viewed: Viewed) -> Response:
    """Counts, exactly."""
    scale = SCALES[viewed.query.horizon]
    now, found = await (_of_topic(viewed, scale) if viewed.query.topic else _of_all(viewed, scale))
    figures, _ = await viewed.site.recent.figures(viewed.client, viewed.token, viewed.max_age_s)
    names = sorted(topic.name for topic in figures.topics if topic.scheduled and not topic.shard_of)
    peak = max(found, key=lambda one: one.messages)
    return viewed.page(
        "pages/forecast.html",
        now=now,
        topics=names[:MAX_NAMES],
        more_topics=max(0, len(names) - MAX_NAMES),
        scale=scale,
        scales=SCALES,
        spans=found,
        rows=[(one.messages, _title(one), _href(viewed, one)) for one in found],
        ticks=ticks_of(scale),
        total=sum(one.messages for one in found),
        peak=peak if peak.messages else None,
        peak_per_s=peak.messages / (peak.until - peak.since).total_seconds() if peak.until else None,
        fastest_per_s=_fastest(viewed),
    )


def ticks_of(scale: Scale) -> list[str]:
    """What stands below the bars: moments at equal distances, or the end of each span.

    >>> ticks_of(SCALES["hour"]), ticks_of(SCALES["all"])[-2:]
    (['now', 'in 15 min', 'in 30 min', 'in 45 min', 'in 1 h'], ['100 years', 'later'])
    """
    if not scale.is_even:
        return [*map(words.duration, scale.steps), "later"]
    whole = scale.steps[-1]
    return ["now", *(f"in {words.duration(whole * part / 4)}" for part in range(1, 5))]


def _title(span: Span) -> str:
    """What a bar says."""
    until = f"until {words.utc(span.until)}" if span.until else "later"
    return f"{noun(span.messages, 'message')} {until}"


def _href(viewed: Viewed, span: Span) -> str | None:
    """Where these messages are listed; None: nowhere."""
    if not viewed.query.topic or not span.messages or MESSAGES not in viewed.site.paths:
        return None
    # A span has its end and not its beginning; a filter the other way round.
    until = {"due_until": words.iso(span.until + _MS)} if span.until else {}
    asked = {
        "topic": viewed.query.topic,
        "state": "scheduled",
        "due_from": words.iso(span.since + _MS),
        **until,
    }
    return f"{MESSAGES}?{urlencode(asked)}"


async def _of_all(viewed: Viewed, scale: Scale) -> tuple[datetime, list[Span]]:
    """The broker has it at hand."""
    wheel = await viewed.site.recent.wheel(viewed.client, viewed.token, viewed.max_age_s, scale.steps)
    found = spans(wheel.now, wheel.forecast)
    if not scale.is_even:
        stats = await viewed.site.recent.stats(viewed.client, viewed.token, viewed.max_age_s)
        rest = max(0, stats.scheduled - sum(one.messages for one in found))
        found.append(Span(found[-1].until or wheel.now, None, rest, None))
    return wheel.now, found


async def _of_topic(viewed: Viewed, scale: Scale) -> tuple[datetime, list[Span]]:
    """By a query, which scans the topic in a process of its own."""
    now = (await viewed.client.stats()).now
    ends = [now + step for step in scale.steps]
    cases = " ".join(f"when deliver_at <= ${number + 2} then {number}" for number in range(len(ends)))
    answer = await viewed.client.query(
        f"select case {cases} else {len(ends)} end as span, count(distinct id) from messages "
        "where topic = $1 and state = 'scheduled' group by span",
        [viewed.query.topic, *ends],
    )
    counts: dict[int, int] = dict(answer.rows)
    found = [
        Span(since, until, counts.get(number, 0), None)
        for number, (since, until) in enumerate(pairwise([now, *ends]))
    ]
    if not scale.is_even:
        found.append(Span(ends[-1], None, counts.get(len(ends), 0), None))
    return now, found


def spans(now: datetime, cumulative: Sequence[Forecast]) -> list[Span]:
    """What is due in each span by itself; the broker tells what is due until its end."""
    found: list[Span] = []
    since, messages_before, leases_before = now, 0, 0
    for one in cumulative:
        messages = one.timers if one.messages is None else one.messages
        leases = one.leases or 0
        until = datetime_of(one.until_ms)
        found.append(Span(since, until, messages - messages_before, leases - leases_before))
        since, messages_before, leases_before = until, messages, leases
    return found


def _fastest(viewed: Viewed) -> float | None:
    """Deliveries a second in the fastest minute of the last day, as far as that is known."""
    now_ms = viewed.site.history.last_ms
    if now_ms is None:
        return None
    points = viewed.site.history.points(_DAY.total_seconds(), 24 * 60, now_ms)
    rates = [one.between.grown.delivered / one.between.seconds for one in points if one.between is not None]
    return max(rates, default=None)
