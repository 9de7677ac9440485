"""How far a node's clock is from that of the log's owner, as far as the owner's records tell.

Each record says what its writer's clock showed. What a node reads a moment later shows the difference of both clocks,
and how long the record was on its way: so the smallest of some differences counts, and of no record that may have lain
in the shared log for long.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from timerlog.replication.record import Head

WINDOW_S: Final = 5.0
"""Of so many last seconds, or a little more."""

_LEAST: Final = 3
"""Fewer differences say nothing: a record may be late once."""


class ClockSkew:
    """Of one node, while it follows."""

    def __init__(self, forget_s: float) -> None:
        """`forget_s`: after so long without a record there is no owner to differ from."""
        self._forget_s, self._window_s = forget_s, min(WINDOW_S, forget_s)
        self._node: int | None = None
        self._heard: deque[tuple[float, int]] = deque()
        """(when, own clock less the owner's) of each."""
        self._began_s = 0.0
        self._before_ms: int | None = None
        """From the owner before: a clock that was wrong is not right because the owner has changed."""

    def hear(self, head: Head, now_ms: int) -> None:
        """A record of the owner was read as soon as it was there."""
        now_s = trio.current_time()
        self._forget(now_s)
        if head.node != self._node:
            self._before_ms = self.ms
            self._node = head.node
            self._heard.clear()
        if not self._heard:
            self._began_s = now_s
        self._heard.append((now_s, now_ms - head.clock_ms))
        while self._heard[0][0] < now_s - self._window_s and len(self._heard) > _LEAST:
            self._heard.popleft()

    def reset(self) -> None:
        """What was heard does not hold any more: there is no owner, or it is this node."""
        self._heard.clear()
        self._before_ms = None

    @property
    def ms(self) -> int | None:
        """How far the own clock is ahead, or behind where it is negative; None: it is not known."""
        now_s = trio.current_time()
        self._forget(now_s)
        if len(self._heard) < _LEAST or now_s - self._began_s < self._window_s / 2:
            return self._before_ms
        return min(difference_ms for _, difference_ms in self._heard)

    def _forget(self, now_s: float) -> None:
        if self._heard and self._heard[-1][0] < now_s - self._forget_s:
            self.reset()
