"""How many requests may begin now: those in flight, the rate, what the endpoint asked for, the circuit breaker.

What may not begin is not fetched: it stays in the broker, where it can be seen, moved and cancelled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from tickwheel.protocol.breaker import Breaker
from tickwheel_push.outcome import Kind, Outcome

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
MOST_AGAIN: Final = 32
"""So many moments are known at which messages come again: the first ones."""
_BURST_S: Final = 0.1
"""A rate may be caught up with by as much as it brings in this time."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many may begin, and when to ask again if nothing changes."""

    count: int
    again_at: float = math.inf


@dataclass(frozen=True, slots=True)
class Failing:
    """The last answer was a failure. Times are those of the gate's clock."""

    why: str
    since: float
    """The first of those in a row."""
    next_at: float | None
    """When a request may go again, as far as it is known here."""


class Gate:
    """One endpoint, or one host of tasks. Times are those of one clock that does not jump."""

    def __init__(self, max_in_flight: int, rate_per_s: float | None = None) -> None:
        self.breaker = Breaker()
        self.in_flight = 0
        self._max_in_flight = max_in_flight
        self._rate_per_s = rate_per_s
        self._tokens = 1.0
        self._counted_at = -math.inf
        self._pause_s = FIRST_PAUSE_S
        self._paused_until = -math.inf
        self._why = ""
        self._failing_since = math.inf
        self._again_at: list[float] = []
        """When messages come again that were not taken."""

    def change(self, max_in_flight: int, rate_per_s: float | None) -> None:
        """Other limits from now on. What is in flight stays so."""
        self._max_in_flight = max_in_flight
        self._rate_per_s = rate_per_s

    def room(self, now: float) -> Room:
        """How many requests may begin."""
        closed_until = max(self._paused_until, self.breaker.probe_at)
        if now < closed_until:
            return Room(0, closed_until)
        free = (1 if self.breaker.is_open else self._max_in_flight) - self.in_flight
        if free <= 0:
            return Room(0)
        if self._rate_per_s is None:
            return Room(free)
        self._count_tokens(now, self._rate_per_s)
        if self._tokens < 1:
            return Room(0, now + (1 - self._tokens) / self._rate_per_s)
        return Room(min(free, int(self._tokens)))

    def began(self) -> None:
        """A request goes."""
        self.in_flight += 1
        self._tokens -= 1

    def ended(self) -> None:
        """One that went is over, whatever came of it."""
        self.in_flight -= 1

    def told(self, outcome: Outcome, now: float) -> None:
        """What came of a request."""
        if outcome.is_success:
            self.breaker.succeeded()
            self._pause_s = FIRST_PAUSE_S
            self._failing_since = math.inf
            self._again_at.clear()
            return
        self.breaker.failed(now)
        self._failing_since = min(self._failing_since, now)
        self._why = outcome.why
        if outcome.kind is Kind.RETRY:
            again_at = [one for one in self._again_at if one > now]
            self._again_at = nsmallest(MOST_AGAIN, [*again_at, now + outcome.delay_ms / 1_000])
        if not outcome.pauses:
            return
        if outcome.pause_ms is not None:
            self._paused_until = max(self._paused_until, now + outcome.pause_ms / 1_000)
        elif now >= self._paused_until:
            self._paused_until = now + self._pause_s
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)

    def failing(self, now: float) -> Failing | None:
        """None: its last answer was a success, or there was none yet."""
        if not self.breaker.has_failures:
            return None
        closed_until = max(self._paused_until, self.breaker.probe_at)
        known = [closed_until] if closed_until > now else [one for one in self._again_at if one > now]
        return Failing(self._why, self._failing_since, min(known, default=None))

    def _count_tokens(self, now: float, rate_per_s: float) -> None:
        burst = max(1.0, rate_per_s * _BURST_S)
        self._tokens = min(burst, self._tokens + (now - self._counted_at) * rate_per_s)
        self._counted_at = now
