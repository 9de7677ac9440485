"""When a table has to be looked at again: due times on a timer wheel in memory.

The engine's own wheel: adding a time and finding the next one cost the same with one entry or a million, so that every
commit may add its own. What is on it is a hint and never the truth: a task that it wakes asks the table.
"""

from __future__ import annotations

import numpy as np

from timerlog.wheel.wheel import TimerWheel

_NS_A_MS = 1_000_000
_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999."""
_TURN_LIMIT = 4096


class DueTimes:
    """Times, in nanoseconds since 1970, at which something becomes due."""

    def __init__(self, now_ns: int) -> None:
        self._wheel = TimerWheel(None, now_ns // _NS_A_MS)
        self._last_ms = -1

    def add(self, due_ns: int) -> None:
        """Puts a time on the wheel; fractions of a millisecond are rounded up, so that no look comes too early."""
        due_ms = min(-(-due_ns // _NS_A_MS), _LATEST_MS)
        if due_ms == self._last_ms:
            return  # many times in one millisecond need one entry
        self._last_ms = due_ms
        one = np.ones(1, np.uint32)
        self._wheel.link(np.array([due_ms], np.int64), np.ones(1, np.uint64), one, one)

    def next_ns(self) -> int | None:
        """A time before which nothing becomes due; None if there is nothing at all."""
        next_ms = self._wheel.next_event_ms()
        return None if next_ms is None else next_ms * _NS_A_MS

    def take(self, now_ns: int) -> bool:
        """Turns the wheel up to now. Whether anything became due."""
        due = False
        while True:
            timers = self._wheel.turn(now_ns // _NS_A_MS, _TURN_LIMIT)
            due = due or timers is not None
            if timers is None and not self._wheel.more:
                self._last_ms = -1
                return due

    def close(self) -> None:
        """Gives the memory back."""
        self._wheel.close()
