"""The wheel follows from the tables."""

from __future__ import annotations

from typing import Final

import numpy as np

from tickwheel_native import rebuild
from timerlog.commitlog.records import in_records, pack_nack
from timerlog.engine.state import Engine, LogWriter
from timerlog.errors import DiskFull, LogFailed
from timerlog.layout import DeliveryState, RecordType
from timerlog.wheel.timers import MESSAGE_TIMER

_SCAN: Final = 65_536
_NOTICED_MS: Final = 2_000
"""So long after the clock was put back, at most, it is told here."""


class FillWheel:
    """Sets all timers again."""

    def __init__(self, engine: Engine, writer: LogWriter) -> None:
        self._engine, self._writer = engine, writer
        self._tables, self._native = engine.tables, engine.native

    def clock_went_back(self, now_ms: int, back_ms: int = 0) -> int:
        """Turns the wheel's time back, after the wall clock was, and by ``back_ms`` the ends of leases and backoffs
        that only a clock that was ahead can have set; returns how many. Messages in their topics stay there. Raises
        ``DiskFull``: then the wheel is turned back, and some of those ends are not; ``LogFailed``: only a start sets
        all timers again."""
        try:
            return sum(self._turn_waits_back(group_id, now_ms, back_ms) for group_id in self._tables.groups)
        finally:
            self._reset_wheel(now_ms)

    def _reset_wheel(self, now_ms: int) -> None:
        """The same wheel, so that no disk space is asked for that was there before. Raises ``LogFailed``."""
        self._engine.wheel.reset(now_ms - 1)
        try:
            self.fill()
        except DiskFull as error:
            raise LogFailed("the timers could not be set again: the disk is full") from error

    def _turn_waits_back(self, group_id: int, now_ms: int, back_ms: int) -> int:
        group = self._native.groups[group_id]
        longest_ms = max(int(group.ack_wait_ms), int(group.max_backoff_ms))
        first, end = int(group.floor_seq), int(group.high_seq)
        moved = 0
        for start in range(first, end if back_ms > 0 else first, _SCAN):
            assert start >= self._tables.groups[group_id].deliveries.start, "what is looked at has addresses"
            rows = self._tables.deliveries_of(group_id)
            part = rows[start : min(start + _SCAN, end)]
            seqs = np.flatnonzero(part["time_ms"] > now_ms + longest_ms) + start
            # Leases may be longer than the settings say, when a request has named a time of its own: those of the clock
            # that was ahead had not ended by it. Only of a longer lease than the clock went back it cannot be told.
            was_ahead = rows["time_ms"][seqs] > now_ms + back_ms - _NOTICED_MS
            leased = seqs[(rows["state"][seqs] == DeliveryState.LEASED) & was_ahead]
            waits = seqs[rows["state"][seqs] == DeliveryState.WAITING]
            # Longer waits were asked for, and so was the time of what was called for with its attempts from 0 again.
            backoff = (rows["time_ms"][waits] <= now_ms + back_ms + longest_ms) & (
                rows["epoch"][waits] != rows["base_epoch"][waits]
            )
            moved += self._turn_back(group_id, leased, now_ms, back_ms, RecordType.RELEASE)
            moved += self._turn_back(group_id, waits[backoff], now_ms, back_ms, RecordType.NACK)
        return moved

    def _turn_back(
        self, group_id: int, seqs: np.ndarray, now_ms: int, back_ms: int, record: RecordType
    ) -> int:
        """The timers are set by the new wheel."""
        rows = self._tables.deliveries_of(group_id)
        times = np.maximum(rows["time_ms"][seqs] - back_ms, now_ms)
        runs = self._engine.runs_of(seqs.astype(np.uint64), rows["epoch"][seqs], times)
        if not len(runs):
            return 0
        if record == RecordType.NACK:
            self._writer.append_all(in_records(record, group_id, runs, lambda piece: pack_nack(piece, "")))
            self._engine.applier.nack(group_id, runs, "")
        else:
            self._writer.append_runs(record, group_id, runs)
            self._engine.applier.release(group_id, runs)
        return len(seqs)

    def fill(self) -> None:
        """Links every message that still waits, and every lease. What was due before the wheel's tick is due at the
        next one: a timer can only be linked ahead of it. Raises ``DiskFull``."""
        assert self._engine.wheel.pending == 0, "no timer is set twice"
        times = np.empty(_SCAN, np.int64)
        refs = np.empty(_SCAN, np.uint64)
        epochs = np.empty(_SCAN, np.uint32)
        at = int(self._native.first_id)
        while at < self._engine.enqueued_id:
            before = at
            count, at = rebuild.scheduled(self._native, at, self._engine.enqueued_id, times, refs, epochs)
            assert at > before, "each step goes on behind the one before"
            self._engine.link(times[:count], refs[:count], epochs[:count], MESSAGE_TIMER)
        for group_id in self._tables.groups:
            at = int(self._native.groups[group_id].floor_seq)
            while at < self._native.groups[group_id].high_seq:
                before = at
                count, at = rebuild.leased(self._native, group_id, at, times, refs, epochs)
                assert at > before, "each step goes on behind the one before"
                self._engine.link(times[:count], refs[:count], epochs[:count], group_id)
