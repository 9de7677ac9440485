"""What is due until when: counted exactly, and a piece at a time.

Every pending timer has a record in the TimerLog, so a count goes through that from its first record to its last, which
is faster than to follow the chains of the slots. Each timer is asked for its message: one whose message was cancelled,
acked or given another time stays on the wheel until its time and does nothing then; it counts as gone.

Between two pieces the store goes on. A count is of the messages that were there when it began, each of them at most
once, and exact for what does not change while it runs. One that becomes due or is cancelled meanwhile counts as it was
before or after; one that is given another time meanwhile, with its old or its new time, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np

from tickwheel_native import wheel as native_wheel
from timerlog.layout import MAX_TIME_MS, Array
from timerlog.wheel.timer_log import TIMER_DTYPE
from timerlog.wheel.timers import Timers
from timerlog.wheel.wheel import TimerWheel

STEP: Final = 32_768
"""So many timers are looked at in a piece: well under a millisecond of work, as long as the rows are in memory."""

_SECOND_MS: Final = 1_000
FORECAST: Final = (
    ("second", _SECOND_MS),
    ("minute", 60 * _SECOND_MS),
    ("hour", 3_600 * _SECOND_MS),
    ("day", 86_400 * _SECOND_MS),
    ("week", 7 * 86_400 * _SECOND_MS),
    ("month", 30 * 86_400 * _SECOND_MS),
    ("later", MAX_TIME_MS),
)
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))


class Due(NamedTuple):
    """How many are due at a moment or before it: messages whose time comes; leases and waits for redelivery that
    end; timers of what is gone, which do nothing."""

    messages: int
    leases: int
    gone: int


class DueCount:
    """A count on its way: call ``step`` until it says that it is done, then look at ``due``."""

    def __init__(self, store: Any, wheel: TimerWheel, until_ms: Sequence[int]) -> None:
        """``store``: the ``tw_store`` of the tables."""
        self._store = store
        self._wheel = wheel
        self._wanted = list(until_ms)
        self._until = np.unique(np.array(self._wanted, np.int64))
        self._begin()

    def _begin(self) -> None:
        self._resets = self._wheel.resets
        self._counts = np.zeros((3, len(self._until) + 1), np.uint64)
        first, end = int(self._store.first_id), int(self._store.next_id)
        self._bits = np.zeros((end - first) // 64 + 1, np.uint64)
        self._seen = native_wheel.new_seen(self._bits, first, end - first)
        self._crowded = self._wheel.crowded()
        self._place = 0

    def step(self) -> bool:
        """Looks at some timers. Returns whether there are more."""
        if self._wheel.resets != self._resets:  # the clock was set back: all timers were set again
            self._begin()
        if self._crowded:
            self._crowded[-1] = self._count_part(self._crowded[-1])
            if not len(self._crowded[-1]):
                self._crowded.pop()
            return True
        log, end = self._wheel.timer_log, self._wheel.used_records
        count = min(STEP, end - self._place)
        if count > 0:
            self._count(log.records(end)[self._place : self._place + count])
            self._place += count
        return self._place < end

    def _count_part(self, timers: Timers) -> Timers:
        """Counts the first of these, which are off the wheel already. Returns the others."""
        count = min(STEP, len(timers))
        records = np.zeros(count, TIMER_DTYPE)
        for name in ("due_ms", "ref", "epoch", "owner"):
            records[name] = getattr(timers, name)[:count]
        self._count(records)
        return timers.part(count, len(timers))

    def _count(self, records: Array) -> None:
        before = int(self._counts.sum())
        native_wheel.forecast(
            self._store, records, self._wheel.tick_ms, self._until, self._seen, self._counts
        )
        counted = int(self._counts.sum()) - before
        assert counted == np.count_nonzero(records["due_ms"] >= 0), "each pending timer counts once"

    @property
    def due(self) -> list[Due]:
        """For each of the moments, in the order in which they were given."""
        sums = [list(accumulate(kind)) for kind in self._counts[:, :-1].tolist()]
        by_moment = dict(zip(self._until.tolist(), map(Due, *sums), strict=True))
        return [by_moment[moment] for moment in self._wanted]

    @property
    def gone(self) -> int:
        """All timers of what is gone."""
        return int(self._counts[2].sum())


class WheelPicture:
    """The wheel as it is when the picture is begun, and what is due when; see docs/protocol.md, WHEEL_OK."""

    def __init__(
        self, store: Any, wheel: TimerWheel, now_ms: int, horizons_ms: Sequence[int] | None = None
    ) -> None:
        """``horizons_ms``: from now; None: those of ``FORECAST``."""
        horizons = FORECAST if horizons_ms is None else [(label_of(one), one) for one in horizons_ms]
        self.now_ms = now_ms
        self._tick_ms, self._levels = wheel.tick_ms, wheel.picture()
        self._until = [(label, min(now_ms + horizon, MAX_TIME_MS)) for label, horizon in horizons]
        self._count = DueCount(store, wheel, [until_ms for _, until_ms in self._until])

    def step(self) -> bool:
        """Does a piece of the work. Returns whether there is more."""
        return self._count.step()

    def whole(self) -> dict[str, Any]:
        """All at once."""
        while self.step():
            pass
        return self.body

    @property
    def body(self) -> dict[str, Any]:
        """What was counted, once it is done."""
        forecast = [
            {
                "label": label,
                "until_ms": until_ms,
                "timers": due.messages + due.leases,
                "messages": due.messages,
                "leases": due.leases,
            }
            for (label, until_ms), due in zip(self._until, self._count.due, strict=True)
        ]
        return {
            "tick_ms": self._tick_ms,
            "now_ms": self.now_ms,
            "levels": self._levels,
            "forecast": forecast,
            "gone": self._count.gone,
        }


def label_of(duration_ms: int) -> str:
    """``90 s``, ``1 d``: in the largest unit that it is a whole number of."""
    unit, unit_ms = next((unit for unit in _UNITS if duration_ms and duration_ms % unit[1] == 0), _UNITS[-1])
    return f"{duration_ms // unit_ms} {unit}"
