"""What the services hand to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from timerlog.layout import UInt32Array, UInt64Array
from timerlog.wheel.timers import Timers

#: Timers that are due, or were taken from the log and are to be linked: of messages, and of the ends of leases.
DueBatch: TypeAlias = Timers


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """Messages whose time has come, in order, and leases that may have ended."""

    ids: UInt64Array
    versions: UInt32Array
    damaged: UInt64Array  #: ids whose record does not match its checksum: set aside and reported, they stop no other
    leases: Timers
    healing: Timers | None = None  #: of messages whose record is being had again: they are looked up later

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.versions), "each message has the version that was looked up"
        assert np.count_nonzero(self.leases.owner) == len(self.leases), "the end of a lease is a group's"
        healing = self.healing
        assert healing is None or not np.count_nonzero(healing.owner), "what is had again are messages"

    def __len__(self) -> int:
        healing = 0 if self.healing is None else len(self.healing)
        return len(self.ids) + len(self.damaged) + len(self.leases) + healing


def not_before(due: Timers, now_ms: int) -> int:
    """A time at which all of these are due. Their timers are gone from the wheel, so that what was passed over for a
    clock that went back a little would never be looked at again."""
    return max(now_ms, int(due.due_ms.max(initial=now_ms)))
