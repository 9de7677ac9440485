"""What the services hand to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from timerlog.layout import UInt32Array, UInt64Array
from timerlog.wheel.timers import Timers

#: Timers that are due, or were taken from the log and are to be linked: of messages, and of the ends of leases.
DueBatch: TypeAlias = Timers


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """Messages whose time has come, in order, and leases that may have ended."""

    ids: UInt64Array
    versions: UInt32Array
    damaged: (
        UInt64Array  # ids whose record no longer matches its checksum: set aside, reported, in nobody's way
    )
    leases: Timers

    def __len__(self) -> int:
        return len(self.ids) + len(self.damaged) + len(self.leases)


def select(timers: Timers, mask: npt.NDArray[np.bool_]) -> Timers:
    """Some of the timers of a batch."""
    return Timers(timers.due_ms[mask], timers.ref[mask], timers.epoch[mask], timers.owner[mask])


def not_before(due: Timers, now_ms: int) -> int:
    """A time at which all of these are due. Their timers are gone from the wheel, so that what was passed over for a
    clock that went back a little would never be looked at again."""
    return max(now_ms, int(due.due_ms.max(initial=now_ms)))
