"""A limit of deliveries a second, as a token bucket.

Tokens accrue with time and are spent on messages. The bucket is small, a tenth of a second of the rate, so that a
pause is not followed by a burst.
"""

from __future__ import annotations

_DEPTH_S = 0.1
_STEP_S = 0.005


class RateLimiter:
    """Shared by all dispatchers that one limit holds for. Times in seconds of trio's clock."""

    def __init__(self, rate: float, now_s: float) -> None:
        """`rate` is deliveries a second, above 0."""
        self._tokens = 0.0
        self._at_s = now_s
        self.rate = rate

    def set_rate(self, rate: float, now_s: float) -> None:
        """From now on."""
        if rate != self.rate:
            self._accrue(now_s)
            self.rate = rate

    def allowed(self, now_s: float) -> int:
        """How many messages may be delivered now."""
        self._accrue(now_s)
        return max(0, int(self._tokens))

    def spend(self, messages: int) -> None:
        """So many were delivered."""
        self._tokens -= messages

    def wait_s(self) -> float:
        """How long until the next turn is worth it: one message, or a few milliseconds' worth of them."""
        wanted = max(1.0, self.rate * _STEP_S)
        return max(0.0, (wanted - self._tokens) / self.rate)

    def _accrue(self, now_s: float) -> None:
        depth = max(1.0, self.rate * _DEPTH_S)
        self._tokens = min(depth, self._tokens + (now_s - self._at_s) * self.rate)
        self._at_s = now_s
