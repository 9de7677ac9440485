"""The TimerLog: the log of timers under the wheel, one record of 32 bytes for each timer that is pending.

TimerWheel and TimerLog are those of Apache RocketMQ's scheduled messages (``org.apache.rocketmq.store.timer``): a slot
of the wheel knows the newest record of its chain, and each record an older one, so that linking a timer is an append
and never a search. Two things differ. A chain has six strands, so that a walk fetches six records at a time; and the
records of timers that were handed out are used again before the log grows: they are a chain like any other.

Like the wheel it is derived state: it starts empty. C writes the records (``native/wheel.c``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tickwheel_native.arrays import dtype_of
from timerlog.files.held_space import Lender
from timerlog.files.mapped_file import Region
from timerlog.layout import Array

TIMER_DTYPE = dtype_of("tw_timer")
RESERVE_BYTES: Final = 64 << 30
SMALL_BYTES: Final = 16 << 20
assert TIMER_DTYPE.itemsize == 32


class TimerLog:
    """The records of one wheel, in memory mapped from ``path`` (None: no file). Always starts empty."""

    def __init__(self, path: Path | None, lender: Lender | None = None) -> None:
        self._path = path
        self._lender = lender
        self.region = Region.fresh(path, RESERVE_BYTES, lender)

    @property
    def pointer(self) -> Any:
        """Where the first record is, for C; another one after ``start_anew``."""
        return self.region.pointer

    @property
    def capacity(self) -> int:
        """How many records the allocated space holds."""
        return self.region.allocated_bytes // TIMER_DTYPE.itemsize

    @property
    def is_large(self) -> bool:
        """Whether its space is worth giving back when nothing is pending."""
        return self.region.allocated_bytes > SMALL_BYTES

    def records(self, count: int) -> Array:
        """The first records, as they lie there; no copy."""
        assert count <= self.capacity, "what was not allocated must not be touched"
        return self.region.array(TIMER_DTYPE, 0, count)

    def make_room(self, more: int) -> None:
        """Room for so many records more than there is room for now. Raises ``DiskFull``: then nothing changed."""
        self.region.ensure((self.capacity + more) * TIMER_DTYPE.itemsize)

    def start_anew(self) -> int:
        """Gives all of its space back: an empty file. Returns how many bytes it had."""
        freed = self.region.allocated_bytes
        self.region.close()
        self.region = Region.fresh(self._path, RESERVE_BYTES, self._lender)
        return freed

    def disk_bytes(self) -> int:
        """What the file occupies."""
        return self.region.disk_bytes()

    def close(self) -> None:
        """Unmaps it. It cannot be used afterwards."""
        self.region.close()
