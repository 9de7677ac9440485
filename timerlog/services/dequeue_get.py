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

    def has_work(self, now_ms: int) -> bool:
        """Whether a turn would do something. What the wheel has begun it finishes, also when the clock went back since:
        the rest of a crowded millisecond is due as well."""
        event_ms = self._wheel.next_event_ms()
        return event_ms is not None and event_ms <= max(now_ms, self._wheel.tick_ms)

    def turn(self, now_ms: int, limit: int) -> DueBatch | None:
        """Turns the wheel: at most ``limit`` timers that are due, and a bounded amount of cascading. None when this
        turn brought nothing; ``next_wakeup_ms`` says whether to come back at once."""
        return self._wheel.turn(now_ms, limit)
