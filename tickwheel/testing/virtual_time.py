"""The clock of a test broker, as `tickwheel push` sees it: what waits for a time waits until the clock is moved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from tickwheel_broker.clock.clock import ManualClock

_ROUNDING_MS: Final = 0.001
"""Sums of seconds are not exact; times are whole milliseconds."""


class VirtualTime:
    """All that waits for a time in one event loop."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._began_ms = clock.now_ms()
        self._reached_s = 0.0
        """The latest time that something was woken at: `now_s` is not a rounding error before it."""
        self._waiting: dict[anyio.CancelScope, float] = {}

    def wall_s(self) -> float:
        """The date, in epoch seconds."""
        return self._clock.now_ms() / 1_000

    def now_s(self) -> float:
        """Seconds since this was made. Set back, the clock stands still here until it has caught up."""
        self._reached_s = max(self._reached_s, (self._clock.now_ms() - self._began_ms) / 1_000)
        return self._reached_s

    @contextmanager
    def until(self, deadline_s: float) -> Iterator[anyio.CancelScope]:
        """A block that is cancelled when `now_s` has come so far."""
        with anyio.CancelScope() as scope:
            self._waiting[scope] = deadline_s
            self.look()
            try:
                yield scope
            finally:
                del self._waiting[scope]

    def next_ms(self) -> int | None:
        """When the first one is to be woken that waits, by the clock. None: there is none."""
        first_s = min(self._waiting.values(), default=math.inf)
        return None if math.isinf(first_s) else self._at_ms(first_s)

    def look(self) -> None:
        """Wakes all whose time has come. To be called in their loop after the clock was moved."""
        now_ms = self._clock.now_ms()
        for scope, deadline_s in self._waiting.items():
            if not math.isinf(deadline_s) and self._at_ms(deadline_s) <= now_ms:
                self._reached_s = max(self._reached_s, deadline_s)
                scope.cancel()

    def _at_ms(self, time_s: float) -> int:
        return self._began_ms + math.ceil(time_s * 1_000 - _ROUNDING_MS)
