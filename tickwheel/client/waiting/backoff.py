"""How long to wait before the next attempt to connect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import SystemRandom

_MAX_EXPONENT = 32
chance = SystemRandom()
"""The system's randomness: a program that seeds its own has its sequence for itself, and programs that were forked, or
seeded alike, do not come back together."""


@dataclass(slots=True)
class Backoff:
    """Doubles from ``first_s`` up to ``max_s``, and takes a random 50 to 100 % of that.

    The jitter keeps a thousand clients from returning in the same millisecond.
    """

    first_s: float = 0.05
    max_s: float = 5.0
    jitter: Callable[[], float] = chance.random
    attempts: int = field(default=0, init=False)

    def next_s(self) -> float:
        """Seconds to wait now."""
        ceiling_s = min(self.max_s, self.first_s * 2 ** min(self.attempts, _MAX_EXPONENT))
        self.attempts += 1
        return float(ceiling_s * (0.5 + 0.5 * self.jitter()))

    def reset(self) -> None:
        """A connection lived: start again from ``first_s``."""
        self.attempts = 0
