"""The hierarchical timer wheel: which timers are due at which millisecond.

A worked example. The real wheel has four levels of 4,096-slot blocks (a slot of level 0 is 1 ms, of level 1 4.1 s, of
level 2 4.7 h, of level 3 2.2 years). To fit on a page, this one has blocks of 4 slots (slot widths 1, 4 and 16 ms)
and opens the next block 1 ms ahead. `5:a` is timer a, due at tick 5; `|` ends a block; empty slots are dots.

At tick 0 we link a (due 2), b (due 5), c (due 6), d (due 11) and e (due 21)::

    tick 0    level 0   . . a .                   block 0 is open: ticks 0 to 3
              level 1   . bc d .                  slots of 4 ms: 5 and 6 are in slot 1, 11 is in slot 2
              level 2   . e . .                   slots of 16 ms: 21 is in slot 1

    tick 2    level 0   . . . .                   a is collected; nothing else moved
              level 1   . bc d .
              level 2   . e . .

    tick 3    level 0   . . . . | . b c .         4 is 1 ms away: its block is opened ahead of time, and the
              level 1   . . d .                   cascade moves b and c down. A timer linked now for tick 7 goes
              level 2   . e . .                   straight to level 0.

    tick 6    level 0   . b c .                   b was collected at 5, c at 6; the ring is reused: this block
              level 1   . . d .                   lies where block 2 will lie when it is opened at tick 7
              level 2   . e . .

    tick 7    level 0   . . . . | . . . d
    tick 11   level 0   . . . .                   d is collected. The next occupied slot is found with the bitmaps:
              level 1   . . . .                   level 2, slot 1. Nothing happens at ticks 12, 13 and 14.
              level 2   . e . .

    tick 15   level 0   . . . . | . . . .         16 is 1 ms away: opening level 1's block 1 (ticks 16 to 31)
              level 1   . . . . | . e . .         moves e to level 1, slot 5 ...
              level 2   . . . .
    tick 19   level 0   . . . . | . e . .         ... and, 1 ms before tick 20, to level 0.
    tick 21   level 0   . . . .                   e is collected: it moved twice, at most once a level.

The wheel is derived state. It starts empty, and its owner links every pending timer again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from native import ffi, lib
from timerlog.errors import BadTime, StoreError
from timerlog.region import Region

Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]

LEVELS = 4
BLOCK_BITS = 12
SLOTS = 8192
TIMER_BYTES = 32
HEAT_CELLS = 64
LAST_DUE_MS = (4096 << 36) - 1
CROWD_LIMIT = 16_384
"""A millisecond with more timers than this is drained in chunks, between which other timers get their turn."""
CASCADE_BUDGET = 65_536
"""Timers that one turn moves between levels at most: about 2 ms of work."""
WALK_LIMIT = 65_536
"""Timers of a crowd that one turn takes off the wheel at most."""
LOG_RESERVE_BYTES = 64 << 30
SLOT_DTYPE = np.dtype([("number", "<i8"), ("count", "<u8"), ("heads", "<u8", 6)])


class DamagedWheel(StoreError):
    """The timer wheel contradicts itself."""

    code = "damaged_wheel"
    advice = "Restart the broker: the wheel is rebuilt from the CommitLog. Please report it if it comes back."


@dataclass(frozen=True, slots=True)
class Timers:
    """Timers that became due, as four arrays of the same length, ordered by due time, owner and reference."""

    due_ms: Int64Array
    ref: UInt64Array
    epoch: UInt32Array
    owner: UInt32Array

    def __len__(self) -> int:
        return len(self.ref)

    def part(self, start: int, end: int) -> Timers:
        """Items ``start`` to ``end``, without copying."""
        return Timers(
            self.due_ms[start:end], self.ref[start:end], self.epoch[start:end], self.owner[start:end]
        )

    @staticmethod
    def empty(count: int) -> Timers:
        """Room for ``count`` timers; the contents are undefined."""
        return Timers(
            np.empty(count, np.int64),
            np.empty(count, np.uint64),
            np.empty(count, np.uint32),
            np.empty(count, np.uint32),
        )


class Crowd:
    """More timers of one millisecond than one turn hands out: first taken off the wheel, then handed out, both in
    bounded pieces."""

    def __init__(self, due_ms: int, count: int) -> None:
        self.timers = Timers.empty(count)
        self.timers.due_ms.fill(due_ms)
        self.on_wheel = count
        self._next = 0

    @property
    def left(self) -> int:
        """Timers not handed out yet."""
        return len(self.timers) - self._next

    def order(self) -> None:
        """Sorts by owner and reference, if the crowd is not in that order already. A merge sort: cheap when it
        consists of a few runs."""
        t = self.timers
        same_owner = bool(np.all(t.owner == t.owner[0]))
        if same_owner and bool(np.all(t.ref[:-1] < t.ref[1:])):
            return
        order = np.argsort(t.ref, kind="stable") if same_owner else np.lexsort((t.epoch, t.ref, t.owner))
        self.timers = Timers(t.due_ms, t.ref[order], t.epoch[order], t.owner[order])

    def hand_out(self, limit: int) -> Timers:
        part = self.timers.part(self._next, min(self._next + limit, len(self.timers)))
        self._next += len(part)
        return part


def _check(result: int) -> int:
    if result == lib.TW_WHEEL_BAD_TIME:
        raise BadTime(f"a due time is after {LAST_DUE_MS}; nothing was linked")
    if result < 0:
        raise DamagedWheel(f"the timer wheel is damaged ({result})")
    return result


class TimerWheel:
    """Pending timers, in memory mapped from ``timer.wheel`` and ``timer.log`` in ``directory`` (None: no files).

    Always starts empty, at ``tick_ms``. All times are milliseconds since 1970 in UTC.
    """

    def __init__(self, directory: Path | None, tick_ms: int) -> None:
        self._wheel_region = Region(self._fresh(directory, "timer.wheel"), int(lib.tw_wheel_bytes()))
        self._wheel_region.ensure(int(lib.tw_wheel_bytes()))
        self._log_region = Region(self._fresh(directory, "timer.log"), LOG_RESERVE_BYTES)
        self._wheel: Any = ffi.cast("tw_wheel *", self._wheel_region.pointer)
        self._log: Any = ffi.cast("tw_timer *", self._log_region.pointer)
        self._more = ffi.new("int32_t *")
        self._out = ffi.new("tw_timers *")
        self._crowds: deque[Crowd] = deque()
        self._crowd_is_next = True
        lib.tw_wheel_init(self._wheel, tick_ms)

    @staticmethod
    def _fresh(directory: Path | None, name: str) -> Path | None:
        if directory is None:
            return None
        (directory / name).unlink(missing_ok=True)
        return directory / name

    # -- linking -----------------------------------------------------------------------------------------------

    def link(self, due_ms: Int64Array, ref: UInt64Array, epoch: UInt32Array, owner: UInt32Array) -> None:
        """Adds timers. A due time that has passed becomes the next tick.

        Raises ``DiskFull`` or ``BadTime``; then nothing was linked."""
        due_ms = np.ascontiguousarray(due_ms, np.int64)
        ref = np.ascontiguousarray(ref, np.uint64)
        epoch = np.ascontiguousarray(epoch, np.uint32)
        owner = np.ascontiguousarray(owner, np.uint32)
        count = len(due_ms)
        if not len(ref) == len(epoch) == len(owner) == count:
            raise ValueError("the four arrays must have the same length")
        if count == 0:
            return
        self._make_room(count)
        linked = lib.tw_wheel_link(
            self._wheel,
            self._log,
            self._log_capacity,
            ffi.from_buffer("int64_t[]", due_ms),
            ffi.from_buffer("uint64_t[]", ref),
            ffi.from_buffer("uint32_t[]", epoch),
            ffi.from_buffer("uint32_t[]", owner),
            count,
        )
        if _check(linked) != count:
            raise DamagedWheel(f"only {linked} of {count} timers were linked")

    @property
    def _log_capacity(self) -> int:
        return self._log_region.allocated_bytes // TIMER_BYTES

    def _make_room(self, count: int) -> None:
        missing = count - int(lib.tw_wheel_room(self._wheel, self._log_capacity))
        if missing > 0:
            self._log_region.ensure((self._log_capacity + missing) * TIMER_BYTES)

    # -- turning -----------------------------------------------------------------------------------------------

    def turn(self, now_ms: int, limit: int) -> Timers | None:
        """Up to ``limit`` timers that are due at ``now_ms``, or None. A bounded amount of work: look at ``more``
        to know whether to call again at once. A crowded millisecond alternates with the timers after it."""
        self._walk_crowd()
        if self._crowd_is_next:
            due = self._from_crowd(limit) or self._from_wheel(now_ms, limit)
        else:
            due = self._from_wheel(now_ms, limit) or self._from_crowd(limit)
        self._crowd_is_next = not self._crowd_is_next
        return due

    def advance(self, now_ms: int) -> None:
        """Moves the tick towards ``now_ms`` as far as nothing is due. Worth a call before linking after a pause:
        timers due soon then start on the level where they are collected."""
        self._turn(now_ms, Timers.empty(0), 0)

    def _turn(self, now_ms: int, into: Timers, budget: int) -> int:
        out = self._out
        out.due_ms = ffi.from_buffer("int64_t[]", into.due_ms)
        out.ref = ffi.from_buffer("uint64_t[]", into.ref)
        out.epoch = ffi.from_buffer("uint32_t[]", into.epoch)
        out.owner = ffi.from_buffer("uint32_t[]", into.owner)
        out.capacity = len(into)
        crowds_before = self._wheel.crowds
        count = _check(
            lib.tw_wheel_turn(self._wheel, self._log, now_ms, out, budget, CROWD_LIMIT, self._more)
        )
        for index in range(crowds_before, self._wheel.crowds):
            chain = self._wheel.crowd[index]
            self._crowds.append(Crowd(chain.number, chain.count))
        return count

    def _from_wheel(self, now_ms: int, limit: int) -> Timers | None:
        if lib.tw_wheel_next_event(self._wheel) > now_ms and not self._wheel.crowds:
            self._turn(now_ms, Timers.empty(0), 0)
            return None
        room = Timers.empty(limit)
        count = self._turn(now_ms, room, CASCADE_BUDGET)
        return room.part(0, count) if count else None

    def _walk_crowd(self) -> None:
        """Takes a piece of the oldest crowd that is still on the wheel off it. The table of crowds on the wheel
        holds exactly the last ones of ``_crowds``."""
        crowd = next((crowd for crowd in self._crowds if crowd.on_wheel), None)
        if crowd is None:
            return
        timers = crowd.timers
        crowd.on_wheel -= _check(
            lib.tw_wheel_walk(
                self._wheel,
                self._log,
                0,
                ffi.from_buffer("uint64_t[]", timers.ref),
                ffi.from_buffer("uint32_t[]", timers.epoch),
                ffi.from_buffer("uint32_t[]", timers.owner),
                WALK_LIMIT,
            )
        )
        if crowd.on_wheel == 0:
            crowd.order()

    def _from_crowd(self, limit: int) -> Timers | None:
        if not self._crowds or self._crowds[0].on_wheel:
            return None
        crowd = self._crowds[0]
        part = crowd.hand_out(limit)
        if crowd.left == 0:
            self._crowds.popleft()
        return part

    # -- looking -----------------------------------------------------------------------------------------------

    @property
    def more(self) -> bool:
        """Whether the next ``turn`` has work, even if the time is still the same."""
        return bool(self._more[0]) or bool(self._crowds)

    @property
    def tick_ms(self) -> int:
        """Everything due up to here was handed out, except crowds that are still being drained."""
        return int(self._wheel.tick)

    @property
    def drained_ms(self) -> int:
        """Everything due up to here was handed out."""
        return self.tick_ms if not self._crowds else int(self._crowds[0].timers.due_ms[0]) - 1

    @property
    def pending(self) -> int:
        """Timers linked and not handed out."""
        off_the_wheel = sum(crowd.left - crowd.on_wheel for crowd in self._crowds)
        return int(self._wheel.pending) + off_the_wheel

    def next_event_ms(self) -> int | None:
        """The earliest moment at which ``turn`` has something to do; ``tick_ms`` (the past) when there is work
        already; None when the wheel is empty."""
        if self._crowds:
            return self.tick_ms
        event = int(lib.tw_wheel_next_event(self._wheel))
        return None if event == lib.TW_WHEEL_NEVER else event

    def picture(self) -> list[dict[str, Any]]:
        """For each level: ``level``, ``slot_ms``, ``slots_occupied``, ``timers`` and ``heat``, the timers in each
        64th of the ring, starting at the present."""
        return [self._level_picture(level) for level in range(LEVELS)]

    def _level_picture(self, level: int) -> dict[str, Any]:
        counts = self._slots(level)["count"]
        from_now = np.roll(counts, -((self.tick_ms >> BLOCK_BITS * level) % SLOTS))
        return {
            "level": level,
            "slot_ms": 1 << BLOCK_BITS * level,
            "slots_occupied": int(np.count_nonzero(counts)),
            "timers": int(counts.sum()),
            "heat": from_now.reshape(HEAT_CELLS, -1).sum(axis=1).tolist(),
        }

    def forecast(self, now_ms: int, horizons_ms: Sequence[int]) -> list[int]:
        """How many timers are due within each horizon after ``now_ms``. From slot counts: inside a slot, due times
        are taken to be spread evenly."""
        spans = [self._spans(level) for level in range(LEVELS)]
        start = np.concatenate([s[0] for s in spans])
        width = np.concatenate([s[1] for s in spans])
        count = np.concatenate([s[2] for s in spans])
        overdue = sum(crowd.left for crowd in self._crowds)
        result = []
        for horizon_ms in horizons_ms:
            share = np.clip((now_ms + horizon_ms + 1 - start) / width, 0.0, 1.0)
            result.append(overdue + round(float((share * count).sum())))
        return result

    def _spans(self, level: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Start, width and timers of each occupied slot; a cascade counts as the slot that it empties."""
        slots = self._slots(level)
        slots = slots[slots["count"] > 0]
        start, count = slots["number"], slots["count"]
        if level > 0:
            chain = self._wheel.cascade[level - 1]
            start, count = np.append(start, chain.number), np.append(count, np.uint64(chain.count))
        return start << BLOCK_BITS * level, np.full(len(start), float(1 << BLOCK_BITS * level)), count

    def _slots(self, level: int) -> npt.NDArray[Any]:
        offset = int(lib.tw_wheel_bytes()) - (LEVELS - level) * SLOTS * SLOT_DTYPE.itemsize
        return self._wheel_region.array(SLOT_DTYPE, offset, SLOTS)

    def disk_bytes(self) -> int:
        """What the two files occupy."""
        return self._wheel_region.disk_bytes() + self._log_region.disk_bytes()

    def close(self) -> None:
        """Unmaps the files. The wheel cannot be used afterwards."""
        self._wheel_region.close()
        self._log_region.close()
