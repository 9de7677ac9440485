"""The circuit breaker of an endpoint: after many failures in a row it is asked by one request at a time, ever more
rarely, and everything else stays in the broker. The first answer that is no failure closes the circuit again."""

from __future__ import annotations

import math
from typing import Final, Literal

FAILURES: Final = 20
FIRST_STEP_S: Final = 5.0
LONGEST_STEP_S: Final = 300.0


class Breaker:
    """Counts failures in a row. Times are those of one clock that does not jump."""

    def __init__(
        self, failures: int = FAILURES, first_s: float = FIRST_STEP_S, longest_s: float = LONGEST_STEP_S
    ) -> None:
        self._most = failures
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0
        self._step_s = first_s
        self._probe_at = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether only probes go."""
        return self._failures >= self._most

    @property
    def has_failures(self) -> bool:
        """Whether the latest answer was one."""
        return self._failures > 0

    @property
    def probe_at(self) -> float:
        """When the next probe may go; long ago while the circuit is closed."""
        return self._probe_at

    def state(self, now: float) -> Literal["closed", "open", "half_open"]:
        """``half_open``: a probe may go, or is on its way."""
        if not self.is_open:
            return "closed"
        return "open" if now < self._probe_at else "half_open"

    def succeeded(self) -> None:
        """An answer that is no failure."""
        self._failures = 0
        self._step_s = self._first_s
        self._probe_at = -math.inf

    def failed(self, now: float) -> None:
        """No answer, or one that says that it failed. Of requests that were on their way together only the first one
        to come back after a step's time makes the next step."""
        self._failures += 1
        if self.is_open and now >= self._probe_at:
            self._probe_at = now + self._step_s
            self._step_s = min(self._longest_s, 2 * self._step_s)
