"""What is due when, counted a piece at a time, between which messages go on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

if TYPE_CHECKING:
    from tickwheel_broker.clock.clock import Clock
    from timerlog.engine.look import Look

COST_FACTOR: Final = 20
"""A count for monitoring is used again for so many times as long as it took: a twentieth of a processor at most."""
CHEAP_S: Final = 0.02
"""A count that is cheaper than this is made anew each time."""


class Forecasts:
    """Counts for those who ask, one after the other."""

    def __init__(self, look: Look, clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._turn = trio.Lock()
        self._recent: dict[str, Any] | None = None
        self._good_until_s = 0.0

    async def picture(self, horizons_ms: Sequence[int] | None = None) -> dict[str, Any]:
        """See ``tickwheel.stats.Wheel``. The wheel as it is when the count begins."""
        async with self._turn:
            found, _ = await self._count(horizons_ms)
            return found

    async def recent(self) -> dict[str, Any]:
        """The same with the usual horizons, perhaps a moment old."""
        async with self._turn:
            if self._recent is None or trio.current_time() >= self._good_until_s:
                self._recent, cost_s = await self._count(None)
                good_s = COST_FACTOR * cost_s if cost_s > CHEAP_S else 0.0
                self._good_until_s = trio.current_time() + good_s
            return self._recent

    async def _count(self, horizons_ms: Sequence[int] | None) -> tuple[dict[str, Any], float]:
        """Also the seconds of processor time that it took."""
        await trio.lowlevel.checkpoint_if_cancelled()  # it may have waited for its turn meanwhile
        cost_s, more = -time.thread_time(), True
        picture = self._look.wheel_picture(self._clock.now_ms(), horizons_ms)
        while more:
            more = picture.step()
            cost_s += time.thread_time()
            await trio.lowlevel.checkpoint()
            cost_s -= time.thread_time()
        return picture.body, cost_s + time.thread_time()
