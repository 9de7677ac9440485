"""The fourth service: what became due is looked up."""

from __future__ import annotations

import numpy as np

from tickwheel_native import delivery
from timerlog.engine.state import Engine
from timerlog.services.batches import DueBatch, ReadyBatch, not_before
from timerlog.wheel.timers import MESSAGE_TIMER


class DequeueGetMessage:
    """Looks messages up."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def look_up(self, due: DueBatch, now_ms: int) -> ReadyBatch:
        """Looks up what became due. A record that fails its checksum is set aside, never in the way of others; on a
        replica it is fetched again first.
        ``now_ms`` may lie below what was due: then the clock went back since, and what was due stays so."""
        is_message = due.owner == MESSAGE_TIMER
        if np.count_nonzero(is_message) == len(due):
            messages, leases = due, due.part(0, 0)
        else:
            messages, leases = due.where(is_message), due.where(~is_message)
        ids = np.ascontiguousarray(messages.ref)
        versions = np.ascontiguousarray(messages.epoch)
        verdicts = np.empty(len(ids), np.uint8)
        found = delivery.lookup(self._engine.native, ids, versions, not_before(messages, now_ms), verdicts)
        if found == len(ids):
            return ReadyBatch(ids, versions, ids[:0], leases)
        good = verdicts == delivery.DUE
        assert np.count_nonzero(good) == found, "each message that is due was counted"
        is_damaged = np.flatnonzero(verdicts == delivery.DAMAGED)
        lost = self._engine.are_lost(ids[is_damaged])
        healing = None if lost.all() else messages.where(is_damaged[~lost])
        return ReadyBatch(ids[good], versions[good], ids[is_damaged[lost]], leases, healing)
