"""The timer wheel: where its timers are, where its hands stand, and when they come down a level."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from starlette.responses import Response

from tickwheel.stats import Wheel, WheelLevel, datetime_of
from tickwheel_web.dashboard.page import Viewed

SLOTS: Final = 4_096
"""Of each level."""
HORIZONS: Final = (timedelta(minutes=1), timedelta(hours=1), timedelta(days=1))


class Cell(NamedTuple):
    """A part of a level."""

    since: datetime
    timers: int


class Level(NamedTuple):
    """A level, as it is shown."""

    level: WheelLevel
    reach_ms: int
    hand: int
    """The slot at which it stands."""
    next_slot: datetime
    cells: list[Cell]


async def wheel(viewed: Viewed) -> Response:
    """As the broker draws it."""
    found = await viewed.site.recent.wheel(viewed.client, viewed.token, viewed.max_age_s, HORIZONS)
    levels = [shown(found, level) for level in found.levels]
    return viewed.page(
        "pages/wheel.html",
        wheel=found,
        levels=levels,
        most=max((cell.timers for level in levels for cell in level.cells), default=0),
        timers=sum(level.timers for level in found.levels),
    )


def shown(wheel: Wheel, level: WheelLevel) -> Level:
    """With its cells, which begin at now."""
    reach_ms = level.slot_ms * SLOTS
    cell_ms = reach_ms // max(1, len(level.heat))
    return Level(
        level,
        reach_ms,
        wheel.tick_ms // level.slot_ms % SLOTS,
        datetime_of((wheel.tick_ms // level.slot_ms + 1) * level.slot_ms),
        [
            Cell(datetime_of(wheel.tick_ms + cell_ms * number), timers)
            for number, timers in enumerate(level.heat)
        ],
    )
