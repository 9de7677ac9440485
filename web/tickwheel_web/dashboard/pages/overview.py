"""The first page: how it goes, on one screen."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from tickwheel.watching.attention import remarks
from tickwheel.watching.between import REACHED, SHARES, Between
from tickwheel.watching.coming import HORIZONS, coming
from tickwheel.watching.numbers import disk_share
from tickwheel_web.dashboard.figures.live import texts
from tickwheel_web.dashboard.page import Viewed

MINUTE_S, HOUR_S = 60.0, 3_600.0
POINTS: Final = 60
MAX_REMARKS: Final = 10
MAX_FOLDED: Final = 200
"""With those that are folded away."""


async def overview(viewed: Viewed) -> Response:
    """Asks for figures, statistics, and what is due when."""
    site = viewed.site
    figures, before = await site.recent.live(viewed.client, viewed.token)
    asked = viewed.client, viewed.token, viewed.max_age_s
    of_each, _ = await site.recent.figures(*asked)
    wheel = await site.recent.wheel(*asked, list(HORIZONS.values()))
    stats = await site.recent.stats(*asked)
    minute, hour = site.history.lately(MINUTE_S), site.history.lately(HOUR_S)
    points = site.history.points(HOUR_S, POINTS, figures.now_ms)
    found = remarks(of_each, hour)
    return viewed.page(
        "pages/overview.html",
        figures=figures,
        disk=disk_share(figures),
        stats=stats,
        live=texts(figures, before),
        coming=coming(wheel, stats.scheduled),
        to_topic=None if minute is None else minute.quantile(SHARES["p99"], REACHED),
        lateness={name: quantile(minute, share) for name, share in SHARES.items()},
        minute=minute,
        hour=hour,
        late_points=[quantile(point.between, SHARES["p99"]) for point in points],
        rate_points={
            name: [rate(point.between, name) for point in points] for name in ("sent", "delivered", "acked")
        },
        remarks=found,
        most_remarks=MAX_REMARKS,
        most_folded=MAX_FOLDED,
    )


def quantile(found: Between | None, share: float) -> float | None:
    """In seconds. None: nothing is known, or nothing was due."""
    return None if found is None else found.quantile(share)


def rate(found: Between | None, name: str) -> float | None:
    """Of one of the numbers, in a second."""
    return None if found is None else found.per_s(name)
