"""The byte layout of the wheel's two files, and the C functions that work on it (``native/wheel.h`` explains
both).

``NativeCore`` is what the broker uses; ``tests.twins.wheel_twin.TwinCore`` does the same in plain Python.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tickwheel_native import ffi, lib
from timerlog.errors import BadTime, StoreError
from timerlog.files.mapped_file import Region
from timerlog.wheel.timer_log import TimerLog
from timerlog.wheel.timers import Timers

LEVELS = 4
BLOCK_BITS = 12
SLOTS = 8192
STRANDS = 6
CROWDS = 64
NEVER = (1 << 63) - 1
LAST_DUE_MS = (4096 << 36) - 1

CHAIN_DTYPE = np.dtype([("number", "<i8"), ("count", "<u8"), ("heads", "<u8", STRANDS)])
WHEEL_DTYPE = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("crowds", "<u4"),
        ("tick", "<i8"),
        ("open", "<i8", LEVELS - 1),
        ("pending", "<u8"),
        ("level_timers", "<u8", LEVELS),
        ("tail", "<u8"),
        ("relinks", "<u8"),
        ("reserved0", "<u8", 3),
        ("free_list", CHAIN_DTYPE),
        ("cascade", CHAIN_DTYPE, LEVELS - 1),
        ("crowd", CHAIN_DTYPE, CROWDS),
        ("summary", "<u8", (LEVELS, SLOTS // 4096)),
        ("occupied", "<u8", (LEVELS, SLOTS // 64)),
        ("reserved1", "<u8", 456),
        ("slots", CHAIN_DTYPE, (LEVELS, SLOTS)),
    ]
)


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
    if result == lib.TW_WHEEL_BAD_TIME:
        raise BadTime(f"a due time is after {LAST_DUE_MS}; nothing was linked")
    if result < 0:
        raise DamagedWheel(f"the timer wheel is damaged ({result})")
    return result


class NativeCore:
    """The functions of ``native/wheel.h``; errors are exceptions."""

    def __init__(self, wheel_region: Region, tick_ms: int) -> None:
        self._wheel: Any = ffi.cast("tw_wheel *", wheel_region.pointer)
        self._more = ffi.new("int32_t *")
        self._out = ffi.new("tw_timers *")
        lib.tw_wheel_init(self._wheel, tick_ms)

    def room(self, log: TimerLog) -> int:
        """How many timers can be linked before the log must grow."""
        return int(lib.tw_wheel_room(self._wheel, log.capacity))

    def link(self, log: TimerLog, timers: Timers) -> int:
        """Links timers; returns how many the log had room for."""
        linked = lib.tw_wheel_link(
            self._wheel,
            ffi.cast("tw_timer *", log.pointer),
            log.capacity,
            ffi.from_buffer("int64_t[]", timers.due_ms),
            ffi.from_buffer("uint64_t[]", timers.ref),
            ffi.from_buffer("uint32_t[]", timers.epoch),
            ffi.from_buffer("uint32_t[]", timers.owner),
            len(timers),
        )
        return check(linked)

    def turn(
        self, log: TimerLog, target_ms: int, into: Timers, budget: int, crowd_limit: int
    ) -> tuple[int, bool]:
        """Collects what is due at ``target_ms`` into ``into``. Returns how many, and whether work is left."""
        out = self._out
        out.due_ms = ffi.from_buffer("int64_t[]", into.due_ms)
        out.ref = ffi.from_buffer("uint64_t[]", into.ref)
        out.epoch = ffi.from_buffer("uint32_t[]", into.epoch)
        out.owner = ffi.from_buffer("uint32_t[]", into.owner)
        out.capacity = len(into)
        records = ffi.cast("tw_timer *", log.pointer)
        count = lib.tw_wheel_turn(self._wheel, records, target_ms, out, budget, crowd_limit, self._more)
        return check(count), bool(self._more[0])

    def walk(self, log: TimerLog, index: int, into: Timers, limit: int) -> int:
        """Takes up to ``limit`` timers off crowd ``index``, the last items of ``into`` first. Returns how
        many."""
        walked = lib.tw_wheel_walk(
            self._wheel,
            ffi.cast("tw_timer *", log.pointer),
            index,
            ffi.from_buffer("uint64_t[]", into.ref),
            ffi.from_buffer("uint32_t[]", into.epoch),
            ffi.from_buffer("uint32_t[]", into.owner),
            limit,
        )
        return check(walked)

    def next_event(self) -> int:
        """The earliest tick at which ``turn`` has something to do, or ``NEVER``."""
        return int(lib.tw_wheel_next_event(self._wheel))
