"""Answers of the broker that all tabs of a token share for a moment."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import anyio

from tickwheel import Client
from tickwheel.stats import Figures, Wheel

FIGURES_S: Final = 0.9
"""A little less than from one look to the next."""
COST_FACTOR: Final = 50
"""A count that took the broker a while is used again for so many times as long."""
_MAX_KEPT: Final = 1_000


@dataclass(eq=False)
class _Kept:
    """One answer, and the one before it."""

    turn: anyio.Lock = field(default_factory=anyio.Lock)
    answer: Any = None
    before: Any = None
    until_s: float = float("-inf")


class Recent:
    """By token, so that none sees what another one may."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    async def figures(self, client: Client, token: str) -> tuple[Figures, Figures | None]:
        """Those of now, and those that were asked for before."""
        found = await self._recent((token, "figures"), client.figures, FIGURES_S, 0)
        return found.answer, found.before

    async def wheel(self, client: Client, token: str, horizons: Sequence[timedelta]) -> Wheel:
        """What is due when: the broker counts for it, which takes time with many messages."""

        async def ask() -> Wheel:
            return await client.wheel(horizons=horizons)

        found = await self._recent((token, tuple(horizons)), ask, FIGURES_S, COST_FACTOR)
        answer: Wheel = found.answer
        return answer

    async def _recent(
        self, key: tuple[str, Hashable], ask: Callable[[], Awaitable[Any]], least_s: float, factor: float
    ) -> _Kept:
        key = hashlib.sha256(key[0].encode()).hexdigest(), key[1]
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        if len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        async with kept.turn:
            began_s = anyio.current_time()
            if began_s >= kept.until_s:
                answer = await ask()
                now_s = anyio.current_time()
                kept.before, kept.answer = kept.answer, answer
                kept.until_s = began_s + max(least_s, factor * (now_s - began_s))
        return kept
