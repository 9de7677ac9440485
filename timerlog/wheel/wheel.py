"""The hierarchical timer wheel: which timers are due at which millisecond.

Hierarchical timing wheels are scheme 7 of G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels: Data
Structures for the Efficient Implementation of a Timer Facility" (SOSP 1987). Two rules are of this wheel: a block is
opened, and its timers moved down, *before* its first tick (in the paper, at that tick), so that no tick waits for a
cascade; and the work of a turn is bounded, so that a crowded tick does not hold up the others.

A worked example. The real wheel has four levels of 4,096-slot blocks: a slot of level 0 is 1 ms wide, of
level 1 4.1 s, of level 2 4.7 h, of level 3 2.2 years. To fit on a page, this one has blocks of 4 slots, 1, 4
and 16 ms wide, and opens a block 1 ms before its first tick. A dot is an empty slot; `|` separates the
current block from the next one, which is only shown while it is open.

At tick 0 we link a (due 2), b (due 5), c (due 6), d (due 11) and e (due 21)::

    tick 0     level 0   . . a .              the current block: ticks 0 to 3
               level 1   . bc d .             slots of 4 ms: 4 to 7 and 8 to 11
               level 2   . e . .              slots of 16 ms: 16 to 31

    tick 2     level 0   . . . .              a is collected; nothing else moves
               level 1   . bc d .
               level 2   . e . .

    tick 3     level 0   . . . . | . b c .    Tick 4 is 1 ms away, so its block is opened: the
               level 1   . . d .              cascade moves b and c down. A timer for tick 7 that is
               level 2   . e . .              linked now goes straight to level 0.

    tick 6     level 0   . . . .              b was collected at tick 5, c at 6
               level 1   . . d .
               level 2   . e . .

    tick 7     level 0   . . . . | . . . d    the block of ticks 8 to 11 is opened
               level 1   . . . .
               level 2   . e . .

    tick 11    level 0   . . . . | . . . .    d is collected. The block of ticks 12 to 15 opens; it is
               level 1   . . . .              empty. The next occupied slot is e's: there is nothing to
               level 2   . e . .              do until tick 15, and the owner sleeps.

    tick 15    level 0   . . . . | . . . .    Tick 16 is 1 ms away: level 1's block of ticks 16 to 31
               level 1   . . . . | . e . .    is opened, and e moves there
               level 2   . . . .

    tick 19    level 0   . . . . | . e . .    ... and 1 ms before tick 20 to level 0:
               level 1   . . . .              at most one move a level, and always before it is due
               level 2   . . . .

    tick 21    level 0   . . . .              e is collected
               level 1   . . . .
               level 2   . . . .

The ring of a level has room for two blocks: a block opens where the one before the current was. A tick never
waits for a cascade, unless the clock jumps: then the wheel goes from event to event, not from tick to tick.

The wheel is derived state. It starts empty, and its owner links every pending timer again.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tickwheel_native.wheel import BLOCK_BITS, LEVELS, NEVER, SLOTS
from timerlog.files.held_space import Lender
from timerlog.files.mapped_file import Region
from timerlog.layout import Int64Array, UInt32Array, UInt64Array
from timerlog.wheel.native_core import WHEEL_DTYPE, Core, DamagedWheel, NativeCore, view
from timerlog.wheel.timer_log import TimerLog
from timerlog.wheel.timers import Crowd, Timers

__all__ = ["DamagedWheel", "TimerWheel", "Timers"]

HEAT_CELLS = 64
CROWD_LIMIT = 16_384
"""A millisecond with more timers is drained in chunks, between which other timers get their turn."""
CASCADE_BUDGET = 16_384
"""How many timers one turn moves between levels at most: less than a millisecond of work."""
WALK_LIMIT = 16_384
"""How many timers of a crowd one turn takes off the wheel at most."""

_NO_ROOM = Timers.room(0)


class TimerWheel:
    """Pending timers, in memory mapped from ``timer.wheel`` and ``timer.log`` in ``directory`` (None: no
    files).

    Always starts empty, at ``tick_ms``. All times are milliseconds since 1970 in UTC.
    """

    core_type: ClassVar[type[Core]] = NativeCore
    crowd_limit = CROWD_LIMIT
    cascade_budget = CASCADE_BUDGET
    walk_limit = WALK_LIMIT

    def __init__(self, directory: Path | None, tick_ms: int, lender: Lender | None = None) -> None:
        self._directory = directory
        self._wheel_region = Region.fresh(self._file("timer.wheel"), WHEEL_DTYPE.itemsize, lender)
        try:
            self._wheel_region.ensure(WHEEL_DTYPE.itemsize)
            #: Read by what counts timers; only the wheel writes into it.
            self.timer_log = TimerLog(self._file("timer.log"), lender)
        except BaseException:
            self._wheel_region.close()
            raise
        self._core = self.core_type(self._wheel_region, tick_ms)
        self._wheel = view(self._wheel_region)[0]
        self._crowds: deque[Crowd] = deque()
        self._crowd_is_next = True
        self._more = False
        self.resets = 0
        """How often the records of the TimerLog became others all at once."""

    def _file(self, name: str) -> Path | None:
        return None if self._directory is None else self._directory / name

    # -- linking --

    def link(self, due_ms: Int64Array, ref: UInt64Array, epoch: UInt32Array, owner: UInt32Array) -> None:
        """Adds timers. A due time that has passed becomes the next tick.

        Raises ``DiskFull`` or ``BadTime``; then nothing was linked."""
        timers = Timers(
            np.ascontiguousarray(due_ms, np.int64),
            np.ascontiguousarray(ref, np.uint64),
            np.ascontiguousarray(epoch, np.uint32),
            np.ascontiguousarray(owner, np.uint32),
        )
        if not len(timers.due_ms) == len(timers.epoch) == len(timers.owner) == len(timers):
            raise ValueError("the four arrays must have the same length")
        if len(timers) == 0:
            return
        pending, missing = int(self._wheel["pending"]), len(timers) - self.room
        if missing > 0:
            self.timer_log.make_room(missing)
        linked = self._core.link(self.timer_log, timers)
        if linked != len(timers):
            raise DamagedWheel(f"only {linked} of {len(timers)} timers were linked")
        assert int(self._wheel["pending"]) == pending + linked, "what is linked is pending"

    # -- turning --

    def turn(self, now_ms: int, limit: int) -> Timers | None:
        """Up to ``limit`` (at least 1) timers that are due at ``now_ms``, ordered by due time, owner and
        reference; None when there are none. Does a bounded amount of work: ``more`` tells whether to call
        again at once, which can also be so after None. The timers of a crowded millisecond come in order too,
        but take turns with later timers."""
        self._walk_crowd()
        self._more = False
        if self._crowd_is_next:
            due = self._from_crowd(limit) or self._from_wheel(now_ms, limit)
        else:
            due = self._from_wheel(now_ms, limit) or self._from_crowd(limit)
        self._crowd_is_next = not self._crowd_is_next
        assert due is None or 0 < len(due) <= limit, "a turn hands out some, and not more than it may"
        assert due is None or due.due_ms[-1] <= max(now_ms, self.tick_ms), "no timer fires before its time"
        return due

    def advance(self, now_ms: int) -> None:
        """Moves the tick towards ``now_ms`` as far as nothing is due. Worth a call before linking after a
        pause: timers due soon then start on the level where they are collected."""
        collected = self._turn(now_ms, _NO_ROOM, budget=0)
        assert collected == 0, "who only moves the tick takes nothing"

    def _turn(self, now_ms: int, into: Timers, budget: int) -> int:
        crowds_before, tick_ms = int(self._wheel["crowds"]), self.tick_ms
        count, self._more = self._core.turn(self.timer_log, now_ms, into, budget, self.crowd_limit)
        assert tick_ms <= self.tick_ms <= max(tick_ms, now_ms), "the tick goes on, and not beyond now"
        crowds = int(self._wheel["crowds"])
        if crowds > crowds_before:
            for chain in self._wheel["crowd"][crowds_before:crowds]:
                self._crowds.append(Crowd(int(chain["number"]), int(chain["count"])))
            on_wheel = sum(crowd.on_wheel > 0 for crowd in self._crowds)
            assert on_wheel == crowds, "each crowd of the wheel is known here"
        return count

    def _from_wheel(self, now_ms: int, limit: int) -> Timers | None:
        if self._core.next_event() > max(now_ms, self.tick_ms):
            self.advance(now_ms)
            return None
        room = Timers.room(limit)
        count = self._turn(now_ms, room, self.cascade_budget)
        return room.part(0, count) if count else None

    def _walk_crowd(self) -> None:
        """Takes a piece of the oldest crowd that is still on the wheel off it. It is crowd 0 of the wheel: a
        crowd leaves the wheel's table when its last timer is taken."""
        crowd = next((crowd for crowd in self._crowds if crowd.on_wheel), None)
        if crowd is None:
            return
        chain, before = self._wheel["crowd"][0], crowd.on_wheel
        assert (chain["number"], chain["count"]) == (crowd.due_ms, before), "the wheel's oldest crowd is this"
        crowd.on_wheel -= self._core.walk(self.timer_log, 0, crowd.timers, self.walk_limit)
        assert 0 <= crowd.on_wheel < before, "a walk takes some, and at most all"
        if crowd.on_wheel == 0:
            crowd.order()

    def _from_crowd(self, limit: int) -> Timers | None:
        if not self._crowds or self._crowds[0].on_wheel:
            return None
        crowd = self._crowds[0]
        part = crowd.hand_out(limit)
        if crowd.left == 0:
            self._crowds.popleft()
        self._more = True  # The slots were not looked at.
        return part

    # -- looking --

    @property
    def more(self) -> bool:
        """Whether ``turn`` has work left that does not have to wait for time to pass."""
        return self._more or bool(self._crowds)

    @property
    def tick_ms(self) -> int:
        """Everything due up to here was handed out, except crowds that are still being drained."""
        return int(self._wheel["tick"])

    @property
    def drained_ms(self) -> int:
        """Everything due up to here was handed out."""
        return self._crowds[0].due_ms - 1 if self._crowds else self.tick_ms

    @property
    def pending(self) -> int:
        """Timers linked and not handed out."""
        taken_off = sum(crowd.left - crowd.on_wheel for crowd in self._crowds)
        return int(self._wheel["pending"]) + taken_off

    def next_event_ms(self) -> int | None:
        """The earliest moment at which ``turn`` has something to do; ``tick_ms`` (the past) when there is
        work already; None when the wheel is empty."""
        if self._crowds:
            return self.tick_ms
        event = self._core.next_event()
        return None if event == NEVER else event

    def oldest_due_ms(self, now_ms: int) -> int | None:
        """The earliest time that has passed and whose timers were not all handed out; None if there is none."""
        if self._crowds:
            return self._crowds[0].due_ms
        event = self.next_event_ms()
        return event if event is not None and event <= now_ms else None

    def picture(self) -> list[dict[str, Any]]:
        """For each level: ``level``, ``slot_ms``, ``slots_occupied``, ``timers`` and ``heat``, the timers in
        each 64th of the ring, starting at the present."""
        return [self._level_picture(level) for level in range(LEVELS)]

    def _level_picture(self, level: int) -> dict[str, Any]:
        counts = self._wheel["slots"][level]["count"]
        assert counts.sum() == self._wheel["level_timers"][level], "a level counts its timers"
        from_now = np.roll(counts, -((self.tick_ms >> BLOCK_BITS * level) % SLOTS))
        return {
            "level": level,
            "slot_ms": 1 << BLOCK_BITS * level,
            "slots_occupied": int(np.count_nonzero(counts)),
            "timers": int(counts.sum()),
            "heat": from_now.reshape(HEAT_CELLS, -1).sum(axis=1).tolist(),
        }

    def about_due(self, now_ms: int) -> int:
        """How many timers are due and were not handed out, counted by slot: exact unless the wheel is seconds behind;
        inside a slot that ``now_ms`` cuts then, due times are taken to be spread evenly."""
        spans = [self._spans(level) for level in range(LEVELS)]
        start, width, count = (np.concatenate(column) for column in zip(*spans, strict=True))
        share = np.clip((now_ms + 1 - start) / width, 0.0, 1.0)
        return sum(crowd.left for crowd in self._crowds) + round(float((share * count).sum()))

    def _spans(self, level: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Start, width and timers of each occupied slot; a cascade counts as the slot that it empties."""
        slots = self._wheel["slots"][level]
        if level > 0:
            slots = np.append(slots, self._wheel["cascade"][level - 1])
        slots = slots[slots["count"] > 0]
        slot_ms = 1 << BLOCK_BITS * level
        return slots["number"] * slot_ms, np.full(len(slots), float(slot_ms)), slots["count"]

    @property
    def used_records(self) -> int:
        """Every timer that is on the wheel is in one of so many records of the TimerLog; others of them are free."""
        return int(self._wheel["tail"])

    def crowded(self) -> list[Timers]:
        """The timers that are off the wheel already and were not handed out."""
        return [crowd.waiting() for crowd in self._crowds]

    # -- space --

    @property
    def room(self) -> int:
        """How many timers can be linked before the log must grow."""
        assert self.used_records <= self.timer_log.capacity, "each record that was used has its place"
        return self._core.room(self.timer_log)

    def disk_bytes(self) -> int:
        """What the two files occupy."""
        return self._wheel_region.disk_bytes() + self.timer_log.disk_bytes()

    def free_space(self) -> int:
        """Gives the log's space back if it is large and nothing is pending. Returns how many bytes. Otherwise
        the log keeps the size that it needed for the largest number of timers that were ever pending."""
        if int(self._wheel["pending"]) > 0 or not self.timer_log.is_large:
            return 0
        assert int(self._wheel["crowds"]) == 0, "no crowd refers to space that is given back"
        self.resets += 1
        freed = self.timer_log.start_anew()
        self._wheel["tail"] = 0
        self._wheel["free_list"]["count"] = 0
        return freed

    def reset(self, tick_ms: int) -> None:
        """Forgets all timers and stands at ``tick_ms``. It keeps its space: on a full disk it might not get it back."""
        self.resets += 1
        self._wheel_region.array(np.uint8, 0, WHEEL_DTYPE.itemsize)[:] = 0
        self._core = self.core_type(self._wheel_region, tick_ms)
        self._crowds.clear()
        self._crowd_is_next = True
        self._more = False

    def close(self) -> None:
        """Unmaps the files. The wheel cannot be used afterwards."""
        self._wheel_region.close()
        self.timer_log.close()
