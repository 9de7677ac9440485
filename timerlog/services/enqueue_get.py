"""The first service: what is durable and new."""

from __future__ import annotations

from tickwheel_native import rebuild
from timerlog.engine.state import Engine
from timerlog.services.batches import DueBatch
from timerlog.wheel.timers import MESSAGE_TIMER, Timers


class EnqueueGet:
    """Takes messages from the system topic, which is the MessageTable in order of ids."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def pending(self) -> int:
        """Messages accepted but not yet taken by EnqueueGet."""
        return self._engine.tables.next_id - self._engine.enqueued_id

    @property
    def taken_id(self) -> int:
        """Messages below it were taken."""
        return self._engine.enqueued_id

    @property
    def has_more(self) -> bool:
        """Whether ``enqueue_get`` would bring something."""
        return self._engine.enqueued_id < self._engine.durable_next_id

    def take(self, limit: int) -> DueBatch | None:
        """The next durable messages of the system topic, at most ``limit``; None when there are none."""
        start = self._engine.enqueued_id
        end = min(self._engine.durable_next_id, start + limit)
        if start >= end:
            return None
        assert end <= self._engine.tables.next_id, "what is durable was accepted before"
        found = Timers.room(end - start)
        found.owner.fill(MESSAGE_TIMER)
        count, at = rebuild.scheduled(self._engine.native, start, end, found.due_ms, found.ref, found.epoch)
        assert at >= end, "all of them were looked at"
        assert not count or start <= found.ref[0] <= found.ref[count - 1] < end, "only they were looked at"
        self._engine.enqueued_id = end
        return found.part(0, count)
