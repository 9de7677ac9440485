"""Answers of the broker that all tabs of a token share for a moment: what tabs ask by themselves takes little of it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

import anyio

from tickwheel import Client
from tickwheel.stats import Figures, Stats, Wheel

LIVE_S: Final = 0.9
"""How old it may be: a little less than from one look of an open tab at the figures to the next."""
REFRESH_S: Final = 4.5
"""The same for a page that a tab loads anew by itself."""
COST_FACTOR: Final = 50
"""A count that took the broker a while is used again for so many times as long."""
_MAX_KEPT: Final = 1_000


@dataclass(eq=False)
class _Kept:
    """One answer, and the one before it."""

    turn: anyio.Lock = field(default_factory=anyio.Lock)
    answer: Any = None
    before: Any = None
    asked_s: float = float("-inf")
    cost_s: float = 0.0


class Recent:
    """By token, so that none sees what another one may."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    async def live(self, client: Client, token: str) -> tuple[Figures, Figures | None]:
        """Of all together, now, and those that were asked for before."""
        found = await self._recent((token, "live"), partial(client.figures, totals_only=True), LIVE_S)
        return found.answer, found.before

    async def figures(self, client: Client, token: str, max_age_s: float) -> tuple[Figures, Figures | None]:
        """The same with those of each topic and group."""
        found = await self._recent((token, "figures"), client.figures, max_age_s)
        return found.answer, found.before

    async def stats(self, client: Client, token: str, max_age_s: float) -> Stats:
        """Counts over everything."""
        answer: Stats = (await self._recent((token, "stats"), client.stats, max_age_s)).answer
        return answer

    async def wheel(
        self, client: Client, token: str, max_age_s: float, horizons: Sequence[timedelta]
    ) -> Wheel:
        """What is due when: the broker counts for it, which takes time with many messages."""
        ask = partial(client.wheel, horizons=horizons)
        found = await self._recent((token, tuple(horizons)), ask, max_age_s, COST_FACTOR)
        answer: Wheel = found.answer
        return answer

    async def _recent(
        self, key: tuple[str, Hashable], ask: Callable[[], Awaitable[Any]], max_age_s: float, factor: int = 0
    ) -> _Kept:
        key = hashlib.sha256(key[0].encode()).hexdigest(), key[1]
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        if len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        async with kept.turn:
            began_s = anyio.current_time()
            if began_s - kept.asked_s >= max(max_age_s, factor * kept.cost_s):
                answer = await ask()
                kept.before, kept.answer = kept.answer, answer
                kept.asked_s, kept.cost_s = began_s, anyio.current_time() - began_s
        return kept
