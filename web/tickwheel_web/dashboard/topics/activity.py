"""How many messages topics and groups have had: a second since somebody looked before, and in each minute of the last
hour."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from tickwheel.watching.activity import Activities
from tickwheel_web.dashboard import words
from tickwheel_web.dashboard.drawing import marks
from tickwheel_web.dashboard.figures.traffic import Minute
from tickwheel_web.dashboard.page import Viewed

TICKS: Final = ("1 h ago", "45 min ago", "30 min ago", "15 min ago", "now")


class Hour(NamedTuple):
    """What the charts of a topic are drawn of, the oldest minute first."""

    minutes: Sequence[Minute]
    titles: list[str]
    rates: dict[str, list[float | None]]
    """In a second, by what stands beside the lines."""
    rate_marks: list[float]
    backlog: list[float | None]
    backlog_marks: list[float]
    since: datetime | None
    """The first minute of which something is known, if there are others before it; the first of all else: None."""
    has_gaps: bool
    """There are minutes after it of which nothing is known."""


async def activities(viewed: Viewed) -> Activities:
    """As far as the token may know."""
    if not viewed.rights.sees("query:*"):
        return Activities(None, None)
    return Activities(*await viewed.site.recent.figures(viewed.client, viewed.token, viewed.max_age_s))


def hour(minutes: Sequence[Minute]) -> Hour:
    """Of some of which something is known."""
    rates = {
        "sent": [one.per_s("sent") for one in minutes],
        "delivered, to all groups": [one.per_s("delivered") for one in minutes],
    }
    backlog = [None if one.counts is None else float(one.counts.backlog) for one in minutes]
    known = [number for number, one in enumerate(minutes) if one.counts is not None]
    return Hour(
        minutes=minutes,
        titles=[_title(one) for one in minutes],
        rates=rates,
        rate_marks=marks(max(value or 0 for values in rates.values() for value in values), is_whole=False),
        backlog=backlog,
        backlog_marks=marks(max(value or 0 for value in backlog)),
        since=minutes[known[0]].since if known[0] else None,
        has_gaps=len(known) < len(minutes) - known[0],
    )


def _title(minute: Minute) -> str:
    """What a minute says."""
    if minute.counts is None:
        return f"{words.utc(minute.since)}: not known"
    sent, delivered, backlog = map(words.count, minute.counts)
    return f"{words.utc(minute.since)}: {sent} sent, {delivered} delivered, backlog {backlog}"
