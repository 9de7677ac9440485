"""How late messages were: their first delivery to a consumer, less when they were due; and the part of it until they
were in their topics."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

import msgspec
from starlette.responses import Response

from tickwheel.stats import Histogram, datetime_of
from tickwheel.watching.between import DELIVERED, REACHED
from tickwheel.watching.by_name import MAX_NAMES
from tickwheel_web.dashboard.figures.history import Point
from tickwheel_web.dashboard.page import Viewed

SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
Window = Literal["hour", "day"]
_WINDOWS: Final[dict[Window, tuple[str, float, int]]] = {
    "hour": ("1 hour", 3_600.0, 120),
    "day": ("24 hours", 86_400.0, 144),
}
MAX_NAMED: Final = 50
"""Topics or groups that are shown."""
_WHICH: Final = {"topic": REACHED, "consumer": DELIVERED}


class Asked(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How far to look back, and which of the two is meant."""

    window: Window = "hour"
    until: Literal["topic", "consumer"] = "consumer"


class Row(NamedTuple):
    """One span of time; without percentiles where nothing is known, or nothing was due."""

    since: datetime
    is_known: bool
    messages: int
    quantiles: list[float | None]


class Bucket(NamedTuple):
    """Of a histogram."""

    above_s: float
    until_s: float
    """Infinite: there is no bound."""
    messages: int


async def lateness(viewed: Viewed) -> Response:
    """Out of what this process has sampled."""
    history, name = viewed.site.history, _WHICH[viewed.query.until]
    figures, _ = await viewed.site.recent.figures(
        viewed.client, viewed.token, viewed.max_age_s
    )  # and allowed
    label, span_s, count = _WINDOWS[viewed.query.window]
    points = history.points(span_s, count, figures.now_ms)
    found = [point.between.lateness.get(name) for point in points if point.between is not None]
    whole = _added([one for one in found if one is not None])
    named = history.by_name.rows(span_s, name)
    return viewed.page(
        "pages/lateness.html",
        label=label,
        step=timedelta(seconds=span_s / count),
        windows=_WINDOWS,
        rows=[row_of(point, name) for point in points],
        shares_heads=[(share, "num") for share in SHARES],
        whole=whole,
        quantiles=dict(zip(SHARES, quantiles_of(whole), strict=True)),
        buckets=buckets_of(whole),
        named=[
            (one.topic, one.group, one.histogram.count, quantiles_of(one.histogram))
            for one in named[:MAX_NAMED]
        ],
        most_named=MAX_NAMES,
        more_named=max(0, len(named) - MAX_NAMED),
        threshold_s=viewed.site.threshold_s,
        is_known=bool(named) or any(point.between is not None for point in points),
        started=figures.started,
    )


def row_of(point: Point, name: str) -> Row:
    """Of a span of time."""
    histogram = None if point.between is None else point.between.lateness.get(name)
    count = 0 if histogram is None else histogram.count
    return Row(datetime_of(point.since_ms), point.between is not None, count, quantiles_of(histogram))


def quantiles_of(histogram: Histogram | None) -> list[float | None]:
    """In the order of ``SHARES``; None: nothing is known, or nothing was due."""
    is_known = histogram is not None and histogram.count
    return [
        histogram.quantile(share) if histogram is not None and is_known else None for share in SHARES.values()
    ]


def _added(histograms: list[Histogram]) -> Histogram:
    """All of them together."""
    if not histograms:
        return Histogram([], [0], 0.0)
    counts = [sum(column) for column in zip(*(one.counts for one in histograms), strict=True)]
    return Histogram(histograms[0].bounds, counts, 0.0)


def buckets_of(histogram: Histogram) -> list[Bucket]:
    """From the first one that has something to the last."""
    bounds = [*histogram.bounds, float("inf")]
    rows = [
        Bucket(bounds[number - 1] if number else 0.0, bound, count)
        for number, (bound, count) in enumerate(zip(bounds, histogram.counts, strict=False))
    ]
    used = [number for number, row in enumerate(rows) if row.messages]
    return rows[: used[-1] + 1] if used else []
