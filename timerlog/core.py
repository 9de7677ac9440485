"""What the parts of the store share: the log, the tables, the wheel, and how a change is made.

Every change goes the same way: decide, make room, hand the record to the log, apply. Nothing is applied that the log
does not have, so a process that is killed between any two steps loses nothing and doubles nothing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from native import Buffer, ffi, lib
from timerlog.apply import Applier, Runs, runs_pointer
from timerlog.layout import MAX_BATCH, RECORD_HEAD_BYTES, RUN, RecordType
from timerlog.log import CommitLog
from timerlog.settings import StoreSettings
from timerlog.spare import Spare
from timerlog.tables import Tables
from timerlog.wheel import TimerWheel

#: A record holds at most so many runs, so that it always fits into a segment.
RUNS_A_RECORD: Final = 4096
MESSAGE_TIMER: Final = 0  #: the owner of a message's timer; a lease's timer is owned by its group

UInt64Array = npt.NDArray[np.uint64]
UInt32Array = npt.NDArray[np.uint32]
Int64Array = npt.NDArray[np.int64]


class Core:
    """Holds the parts; the classes that inherit from it add the behaviour."""

    settings: StoreSettings
    log: CommitLog
    tables: Tables
    wheel: TimerWheel
    spare: Spare
    _applier: Applier
    _native: Any
    _runs_scratch: Runs
    #: The system topic: messages below this id have gone to the wheel or their topic.
    _enqueued_id: int
    #: Messages below this id are on disk.
    _durable_next_id: int

    def _make_scratch(self) -> None:
        self._runs_scratch = np.empty(MAX_BATCH, RUN)

    def _runs(
        self, values: UInt64Array, epochs: UInt32Array | None = None, times: Int64Array | None = None
    ) -> Runs:
        """Compresses consecutive values of equal epoch and time. The result is valid until the next call."""
        count = lib.tw_runs(
            ffi.from_buffer("uint64_t[]", np.ascontiguousarray(values, np.uint64)),
            ffi.NULL
            if epochs is None
            else ffi.from_buffer("uint32_t[]", np.ascontiguousarray(epochs, np.uint32)),
            ffi.NULL
            if times is None
            else ffi.from_buffer("int64_t[]", np.ascontiguousarray(times, np.int64)),
            len(values),
            runs_pointer(self._runs_scratch),
        )
        return self._runs_scratch[:count]

    def _spread(self, deliver_at_ms: Int64Array, ids: UInt64Array) -> Int64Array:
        """When messages are due: at their time, or a part of their topic's spread later."""
        if not self.tables.has_spread:
            return deliver_at_ms
        ids, due_ms = np.ascontiguousarray(ids), np.empty(len(ids), np.int64)
        lib.tw_due_times(
            self._native, ffi.from_buffer("uint64_t[]", ids), len(ids), ffi.from_buffer("int64_t[]", due_ms)
        )
        spread: Int64Array = due_ms - self.tables.rows["deliver_at_ms"][ids] + deliver_at_ms
        return spread

    def _room_for_runs(self, runs: int, head_bytes: int = 0) -> int:
        """The log bytes that records with so many runs take at most."""
        records = -(-runs // RUNS_A_RECORD)
        return runs * RUN.itemsize + records * (RECORD_HEAD_BYTES + head_bytes + 8)

    def _append_runs(self, record: RecordType, aux: int, runs: Runs) -> None:
        """Appends runs in one or more records, all or none, and hands them to the operating system."""
        self.log.ensure_room(self._room_for_runs(len(runs)))
        for start in range(0, len(runs), RUNS_A_RECORD):
            self.log.append(record, aux, runs[start : start + RUNS_A_RECORD].tobytes())
        self.log.flush()

    def _append(self, record: RecordType, aux: int, payload: Buffer) -> None:
        """Appends one control record and hands it to the operating system."""
        self.log.append(record, aux, payload)
        self.log.flush()
