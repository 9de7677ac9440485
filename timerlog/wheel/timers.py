"""Batches of timers as numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from timerlog.layout import Int64Array, UInt32Array, UInt64Array

#: The owner of a message's timer; that of a lease is owned by its group.
MESSAGE_TIMER: Final = 0


@dataclass(frozen=True, slots=True)
class Timers:
    """Timers as four arrays of the same length.

    ``owner`` MESSAGE_TIMER: a scheduled message (``ref`` is its id, ``epoch`` its version); ``owner`` g > 0: a lease of
    group g (``ref`` is the sequence number in the topic, ``epoch`` the lease's)."""

    due_ms: Int64Array
    ref: UInt64Array
    epoch: UInt32Array
    owner: UInt32Array

    def __len__(self) -> int:
        return len(self.ref)

    def part(self, start: int, end: int) -> Timers:
        """Items ``start`` to ``end``, without copying."""
        assert 0 <= start <= end <= len(self), "a part lies inside of the whole"
        span = slice(start, end)
        return Timers(self.due_ms[span], self.ref[span], self.epoch[span], self.owner[span])

    def where(self, which: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Timers:
        """Some of them, by a mask or by their places; copies."""
        return Timers(self.due_ms[which], self.ref[which], self.epoch[which], self.owner[which])

    @staticmethod
    def room(count: int) -> Timers:
        """Room for ``count`` timers; the contents are undefined."""
        return Timers(
            np.empty(count, np.int64),
            np.empty(count, np.uint64),
            np.empty(count, np.uint32),
            np.empty(count, np.uint32),
        )


class Crowd:
    """The timers of a crowded millisecond: first taken off the wheel, then handed out, both in bounded
    pieces."""

    def __init__(self, due_ms: int, count: int) -> None:
        self.due_ms = due_ms
        self.on_wheel = count
        """Timers not taken off the wheel yet: the first items of ``timers``, because the newest come
        first."""
        self.timers = Timers.room(count)
        self.timers.due_ms.fill(due_ms)
        self._handed_out = 0

    @property
    def left(self) -> int:
        """Timers not handed out yet."""
        return len(self.timers) - self._handed_out

    def order(self) -> None:
        """Sorts by owner and reference. Nearly free when the timers were linked in the order of sending, also
        if a cascade has turned them round: the stable sort finds such runs."""
        assert self.on_wheel == self._handed_out == 0, "a crowd is put in order as a whole"
        timers = self.timers
        one_owner = bool(np.all(timers.owner == timers.owner[0]))
        if one_owner and bool(np.all(timers.ref[:-1] <= timers.ref[1:])):
            return
        order = np.argsort(timers.ref, kind="stable")
        if not one_owner:
            order = order[np.argsort(timers.owner[order], kind="stable")]
        self.timers = timers.where(order)

    def hand_out(self, limit: int) -> Timers:
        """The next ``limit`` timers, or as many as are left."""
        assert self.on_wheel == 0, "what is handed out is off the wheel and in order"
        start = self._handed_out
        self._handed_out = min(start + limit, len(self.timers))
        return self.timers.part(start, self._handed_out)

    def waiting(self) -> Timers:
        """Those that are off the wheel and were not handed out."""
        return self.timers.part(max(self.on_wheel, self._handed_out), len(self.timers))
