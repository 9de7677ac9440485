"""The byte layout of the wheel's two files, and the C functions that work on it (``native/wheel.h`` explains
both).

``NativeCore`` is what the broker uses; ``tests.twins.wheel_twin.TwinCore`` does the same in plain Python.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from tickwheel_native import wheel
from tickwheel_native.arrays import dtype_of
from tickwheel_native.wheel import LAST_DUE_MS
from timerlog.errors import BadTime, StoreError
from timerlog.files.mapped_file import Region
from timerlog.wheel.timer_log import TimerLog
from timerlog.wheel.timers import Timers

WHEEL_DTYPE = dtype_of("tw_wheel")


class DamagedWheel(StoreError):
    """The timer wheel contradicts itself."""

    code = "damaged_wheel"
    advice = (
        "Restart the broker: the wheel is rebuilt from the CommitLog. Please report it if it happens again."
    )


class Core(Protocol):
    """What happens on the memory of a wheel, without files, crowds' arrays or growing."""

    def __init__(self, wheel_region: Region, tick_ms: int) -> None: ...
    def room(self, log: TimerLog) -> int: ...
    def link(self, log: TimerLog, timers: Timers) -> int: ...
    def turn(
        self, log: TimerLog, target_ms: int, into: Timers, budget: int, crowd_limit: int
    ) -> tuple[int, bool]: ...
    def walk(self, log: TimerLog, index: int, into: Timers, limit: int) -> int: ...
    def next_event(self) -> int: ...


def view(wheel_region: Region) -> npt.NDArray[np.void]:
    """The wheel as a one-item structured array over the region's memory."""
    return wheel_region.array(WHEEL_DTYPE, 0, 1)


def check(result: int) -> int:
    """Turns an error code into an exception."""
    if result == wheel.BAD_TIME:
        raise BadTime(f"a due time is after {LAST_DUE_MS}; nothing was linked")
    if result < 0:
        raise DamagedWheel(f"the timer wheel is damaged ({result})")
    return result


class NativeCore:
    """The functions of ``native/wheel.h``; errors are exceptions."""

    def __init__(self, wheel_region: Region, tick_ms: int) -> None:
        self._wheel = wheel.new(wheel_region.pointer, tick_ms)

    def room(self, log: TimerLog) -> int:
        """How many timers can be linked before the log must grow."""
        return wheel.room(self._wheel, log.capacity)

    def link(self, log: TimerLog, timers: Timers) -> int:
        """Links timers; returns how many the log had room for."""
        columns = timers.due_ms, timers.ref, timers.epoch, timers.owner
        return check(wheel.link(self._wheel, log.pointer, log.capacity, *columns))

    def turn(
        self, log: TimerLog, target_ms: int, into: Timers, budget: int, crowd_limit: int
    ) -> tuple[int, bool]:
        """Collects what is due at ``target_ms`` into ``into``. Returns how many, and whether work is left."""
        columns = into.due_ms, into.ref, into.epoch, into.owner
        count, more = wheel.turn(self._wheel, log.pointer, target_ms, *columns, budget, crowd_limit)
        return check(count), more

    def walk(self, log: TimerLog, index: int, into: Timers, limit: int) -> int:
        """Takes up to ``limit`` timers off crowd ``index``, the last items of ``into`` first. Returns how many."""
        return check(
            wheel.walk(
                wheel=self._wheel,
                log=log.pointer,
                crowd=index,
                ref=into.ref,
                epoch=into.epoch,
                owner=into.owner,
                limit=limit,
            )
        )

    def next_event(self) -> int:
        """The earliest tick at which ``turn`` has something to do, or ``NEVER``."""
        return wheel.next_event(self._wheel)
