"""The third service: off the wheel."""

from __future__ import annotations

from timerlog.services.batches import DueBatch
from timerlog.wheel.wheel import TimerWheel


class DequeueGet:
    """Turns the wheel."""

    def __init__(self, wheel: TimerWheel) -> None:
        self._wheel = wheel

    def next_wakeup_ms(self) -> int | None:
        """The earliest moment at which ``dequeue_get`` has work; it may lie in the past. None: the wheel is empty."""
        return self._wheel.next_event_ms()

    def turn(self, now_ms: int, limit: int) -> DueBatch | None:
        """Turns the wheel: at most ``limit`` timers that are due, and a bounded amount of cascading. None when this
        turn brought nothing; ``next_wakeup_ms`` says whether to come back at once."""
        return self._wheel.turn(now_ms, limit)
