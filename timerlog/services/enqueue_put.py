"""The second service: onto the wheel."""

from __future__ import annotations

import numpy as np

from timerlog.services.batches import DueBatch
from timerlog.wheel.wheel import TimerWheel


class EnqueuePut:
    """Links messages on the wheel."""

    def __init__(self, wheel: TimerWheel) -> None:
        self._wheel = wheel

    def link(self, batch: DueBatch, now_ms: int) -> DueBatch | None:
        """Links what is due later; returns what is due already, by due time and then in the order sent. Raises
        ``DiskFull``: then nothing was linked, and the same batch may be given again."""
        assert np.count_nonzero(batch.owner) == 0, "leases come from the wheel, not from the log"
        assert len(batch) < 2 or batch.ref[0] < batch.ref[-1], "messages come in the order sent"
        late = batch.due_ms > now_ms
        if late_count := np.count_nonzero(late):
            self._wheel.advance(now_ms)
            later = batch if late_count == len(batch) else batch.where(late)
            self._wheel.link(later.due_ms, later.ref, later.epoch, later.owner)
            if later is batch:
                return None
            batch = batch.where(~late)
        if len(batch) > 1 and bool(np.any(batch.due_ms[1:] < batch.due_ms[:-1])):
            batch = batch.where(np.argsort(batch.due_ms, kind="stable"))
        return batch if len(batch) else None
