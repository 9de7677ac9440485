"""The fourth service: what became due is looked up."""

from __future__ import annotations

from typing import Final

import numpy as np

from tickwheel_native import delivery
from timerlog.engine.state import Engine
from timerlog.services.batches import DueBatch, ReadyBatch, not_before, select
from timerlog.wheel.timers import MESSAGE_TIMER

_DUE: Final = 1
_DAMAGED: Final = 2


class DequeueGetMessage:
    """Looks messages up."""

    def __init__(self, engine: Engine) -> None:
        self._native = engine.native

    def look_up(self, due: DueBatch, now_ms: int) -> ReadyBatch:
        """Looks up what became due. A record that fails its checksum is set aside, never in the way of others.
        ``now_ms`` may lie below what was due: then the clock went back since, and what was due stays so."""
        is_message = due.owner == MESSAGE_TIMER
        if is_message.all():
            messages, leases = due, due.part(0, 0)
        else:
            messages, leases = select(due, is_message), select(due, ~is_message)
        ids = np.ascontiguousarray(messages.ref)
        versions = np.ascontiguousarray(messages.epoch)
        verdicts = np.empty(len(ids), np.uint8)
        delivery.lookup(self._native, ids, versions, not_before(messages, now_ms), verdicts)
        good = verdicts == _DUE
        if good.all():
            return ReadyBatch(ids, versions, ids[:0], leases)
        return ReadyBatch(ids[good], versions[good], ids[verdicts == _DAMAGED], leases)
