"""``wheel.c`` and ``forecast.c``: the timer wheel, and counting what is due on it."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tickwheel_native._native import ffi, lib
from tickwheel_native.arrays import Int64s, Store, UInt32s, UInt64s, int64s, uint32s, uint64s
from tickwheel_native.memory import Address

LEVELS: Final = lib.TW_LEVELS
BLOCK_BITS: Final = lib.TW_BLOCK_BITS
SLOTS: Final = lib.TW_SLOTS
#: By level: how long before its first tick a block is opened.
LEADS_MS: Final = (lib.TW_LEAD_0_MS, lib.TW_LEAD_1_MS, lib.TW_LEAD_2_MS)
STRANDS: Final = lib.TW_STRANDS
CROWDS: Final = lib.TW_CROWDS
NEVER: Final = lib.TW_WHEEL_NEVER
LAST_DUE_MS: Final = lib.TW_WHEEL_LAST_DUE_MS
#: What a function returns instead of a number when a due time is after LAST_DUE_MS.
BAD_TIME: Final = lib.TW_WHEEL_BAD_TIME

#: A ``tw_wheel``, and a ``tw_seen``.
Wheel: TypeAlias = Any
Seen: TypeAlias = Any


def new(base: Address, tick: int) -> Wheel:
    """An empty wheel in zeroed memory."""
    wheel = ffi.cast("tw_wheel *", base)
    lib.tw_wheel_init(wheel, tick)
    return wheel


def room(wheel: Wheel, log_capacity: int) -> int:
    """How many more timers the log has room for."""
    return lib.tw_wheel_room(wheel, log_capacity)


def link(
    wheel: Wheel,
    log: Address,
    log_capacity: int,
    due_ms: Int64s,
    ref: UInt64s,
    epoch: UInt32s,
    owner: UInt32s,
) -> int:
    """Links timers; returns how many, or an error."""
    columns = int64s(due_ms), uint64s(ref), uint32s(epoch), uint32s(owner)
    return lib.tw_wheel_link(wheel, _timers(log), log_capacity, *columns, len(ref))


def turn(
    wheel: Wheel, log: Address, target: int, due_ms: Int64s, ref: UInt64s, epoch: UInt32s, owner: UInt32s,
    budget: int, crowd_limit: int,
) -> tuple[int, bool]:  # fmt: skip
    """Collects what is due: (how many or an error, whether work is left)."""
    columns = int64s(due_ms), uint64s(ref), uint32s(epoch), uint32s(owner)
    into, more = ffi.new("tw_timers *", (*columns, len(ref))), ffi.new("int32_t *")
    count = lib.tw_wheel_turn(wheel, _timers(log), target, into, budget, crowd_limit, more)
    return count, bool(more[0])


def walk(
    wheel: Wheel, log: Address, crowd: int, ref: UInt64s, epoch: UInt32s, owner: UInt32s, limit: int
) -> int:
    """Takes timers off a crowd, into the last places first; returns how many, or an error."""
    into = uint64s(ref), uint32s(epoch), uint32s(owner)
    return lib.tw_wheel_walk(wheel, _timers(log), crowd, *into, limit)


def next_event(wheel: Wheel) -> int:
    """The earliest tick at which ``turn`` has something to do, or NEVER."""
    return lib.tw_wheel_next_event(wheel)


def new_seen(bits: UInt64s, first_id: int, messages: int) -> Seen:
    """A bit for each of some messages, so that each is counted once. The array must stay."""
    return ffi.new("tw_seen *", (uint64s(bits), first_id, messages))


def forecast(
    store: Store, records: npt.NDArray[np.void], tick: int, until_ms: Int64s, seen: Seen, counts: UInt64s
) -> None:
    """Counts records of a TimerLog by when they are due."""
    timers, until = _timers(ffi.from_buffer(records)), (int64s(until_ms), len(until_ms))
    lib.tw_forecast(store, timers, len(records), tick, *until, seen, uint64s(counts))


def _timers(log: Address) -> Any:
    return ffi.cast("tw_timer *", log)
