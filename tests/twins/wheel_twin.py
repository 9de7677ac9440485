"""The timer wheel in plain Python: what ``native/wheel.c`` does, over the same bytes.

It is the definition that tests hold the C code to: after the same calls, both have written the same bytes. It
is a few hundred times slower, and has no error codes: on a damaged wheel it raises ``DamagedWheel`` itself.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from tickwheel_native.wheel import BLOCK_BITS, CROWDS, LAST_DUE_MS, LEVELS, NEVER, SLOTS, STRANDS
from timerlog.errors import BadTime
from timerlog.files.mapped_file import Region
from timerlog.wheel.native_core import DamagedWheel, view
from timerlog.wheel.timer_log import RESERVE_BYTES, TIMER_DTYPE, TimerLog
from timerlog.wheel.timers import Timers
from timerlog.wheel.wheel import TimerWheel

OPEN_LEVELS = LEVELS - 1
LEAD_MS = (1024, 60 * 1000, 60 * 60 * 1000)
FREE = -1


def block_of(level: int, due_ms: int) -> int:
    """The number of the block of 4,096 slots that a time lies in."""
    return due_ms >> BLOCK_BITS * (level + 1)


def block_start(level: int, block: int) -> int:
    """The first tick of a block."""
    return block << BLOCK_BITS * (level + 1)


class Chain:
    """One slot, cascade, crowd or free list: the positions of its records, in strands."""

    def __init__(self, chain: Any, records: npt.NDArray[Any], wheel: Any) -> None:
        self.chain = chain
        self.records = records
        self.wheel = wheel

    @property
    def count(self) -> int:
        return int(self.chain["count"])

    @property
    def number(self) -> int:
        return int(self.chain["number"])

    def push(self, position: int) -> None:
        strand = self.count % STRANDS
        previous = self.chain["heads"][strand] if self.count >= STRANDS else 0
        self.records["prev_pos"][position - 1] = previous
        self.chain["heads"][strand] = position
        self.chain["count"] += 1

    def pop(self) -> int:
        newest = self.count - 1
        position = self.checked(int(self.chain["heads"][newest % STRANDS]))
        previous = int(self.records["prev_pos"][position - 1])
        if newest >= STRANDS:
            self.chain["heads"][newest % STRANDS] = self.checked(previous)
        elif previous != 0:
            raise DamagedWheel("a chain does not end where its count says")
        self.chain["count"] = newest
        return position

    def checked(self, position: int) -> int:
        if not 1 <= position <= int(self.wheel["tail"]):
            raise DamagedWheel(f"position {position} is outside the log")
        return position


class TwinCore:
    """The same functions as ``timerlog.wheel.native_core.NativeCore``, with the same effect on the memory."""

    def __init__(self, wheel_region: Region, tick_ms: int) -> None:
        self.wheel = view(wheel_region)[0]
        self.wheel["magic"] = b"TWWHEEL1"
        self.wheel["version"] = 1
        self.tick = tick_ms
        for level in range(OPEN_LEVELS):
            self.wheel["open"][level] = block_of(level, tick_ms + LEAD_MS[level])

    @property
    def tick(self) -> int:
        return int(self.wheel["tick"])

    @tick.setter
    def tick(self, tick_ms: int) -> None:
        self.wheel["tick"] = tick_ms

    def use(self, log: TimerLog) -> None:
        """Looks at the log's records; the region can be another one after ``free_space``."""
        self.records = log.region.array(TIMER_DTYPE, 0, RESERVE_BYTES // TIMER_DTYPE.itemsize)

    def chain(self, chain: Any) -> Chain:
        return Chain(chain, self.records, self.wheel)

    def cascade(self, level: int) -> Chain:
        return self.chain(self.wheel["cascade"][level])

    # -- slots --

    def mark(self, level: int, index: int, occupied: bool) -> None:
        word, half = index // 64, index // 4096
        bits = int(self.wheel["occupied"][level][word])
        bits = bits | 1 << index % 64 if occupied else bits & ~(1 << index % 64)
        self.wheel["occupied"][level][word] = bits
        words = int(self.wheel["summary"][level][half])
        words = words | 1 << word % 64 if bits else words & ~(1 << word % 64)
        self.wheel["summary"][level][half] = words

    def next_occupied(self, level: int, start: int) -> int:
        """The number of the first occupied slot at or after ``start``, going once round the ring."""
        bits = int.from_bytes(self.wheel["occupied"][level].tobytes(), "little")
        start %= SLOTS
        around = (bits | bits << SLOTS) >> start
        if around == 0:
            return NEVER
        first = (around & -around).bit_length() - 1
        return int(self.wheel["slots"][level][(start + first) % SLOTS]["number"])

    def detach(self, level: int, number: int, into: Any) -> None:
        slot = self.wheel["slots"][level][number % SLOTS]
        for field in ("number", "count", "heads"):
            into[field] = slot[field]
        self.wheel["level_timers"][level] -= slot["count"]
        slot["count"] = 0
        self.mark(level, number % SLOTS, occupied=False)

    def put(self, position: int, due_ms: int) -> None:
        fitting = (k for k in range(OPEN_LEVELS) if block_of(k, due_ms) <= int(self.wheel["open"][k]))
        level = next(fitting, OPEN_LEVELS)
        number = due_ms >> BLOCK_BITS * level
        slot = self.chain(self.wheel["slots"][level][number % SLOTS])
        if slot.count == 0:
            slot.chain["number"] = number
            self.mark(level, number % SLOTS, occupied=True)
        elif slot.number != number:
            raise DamagedWheel("two slots fall together")
        slot.push(position)
        self.wheel["level_timers"][level] += 1

    # -- linking --

    def room(self, log: TimerLog) -> int:
        return int(self.wheel["free_list"]["count"]) + log.capacity - int(self.wheel["tail"])

    def link(self, log: TimerLog, timers: Timers) -> int:
        self.use(log)
        if max(timers.due_ms.tolist(), default=0) > LAST_DUE_MS:
            raise BadTime("a due time is too far away")
        if int(self.wheel["pending"]) == 0:
            self.wheel["tail"] = 0
            self.wheel["free_list"]["count"] = 0
        linked = min(len(timers), self.room(log))
        for i in range(linked):
            position = self.take_free()
            due_ms = max(int(timers.due_ms[i]), self.tick + 1)
            record = self.records[position - 1]
            record["due_ms"], record["ref"] = due_ms, timers.ref[i]
            record["epoch"], record["owner"] = timers.epoch[i], timers.owner[i]
            self.put(position, due_ms)
            self.wheel["pending"] += 1
        return linked

    def take_free(self) -> int:
        free_list = self.chain(self.wheel["free_list"])
        if free_list.count == 0:
            self.wheel["tail"] += 1
            return int(self.wheel["tail"])
        position = free_list.pop()
        if self.records["due_ms"][position - 1] != FREE:
            raise DamagedWheel("a pending timer is on the free list")
        return position

    def free(self, position: int) -> None:
        self.records["due_ms"][position - 1] = FREE
        self.chain(self.wheel["free_list"]).push(position)

    # -- turning --

    def open_blocks(self) -> None:
        """Opens blocks up to the lead. Empty ones open at once; one with timers starts a cascade, or waits
        for the cascade into the same level to finish."""
        opened = self.wheel["open"]
        for level in reversed(range(OPEN_LEVELS)):
            wanted = block_of(level, self.tick + LEAD_MS[level])
            if level + 1 < OPEN_LEVELS:
                wanted = min(wanted, (int(opened[level + 1]) + 1) * 4096 - 1)
            if wanted <= opened[level]:
                continue
            filled = self.next_occupied(level + 1, int(opened[level]) + 1)
            if filled > wanted:
                opened[level] = wanted
            elif self.cascade(level).count == 0:
                self.detach(level + 1, filled, self.wheel["cascade"][level])
                opened[level] = filled
            else:
                opened[level] = filled - 1

    def next_barrier(self) -> int:
        """How far the tick may go before a block has to be opened or a cascade has to end."""
        barriers = [NEVER]
        for level in range(OPEN_LEVELS):
            if self.cascade(level).count:
                barriers.append(block_start(level, self.cascade(level).number) - 1)
            filled = self.next_occupied(level + 1, int(self.wheel["open"][level]) + 1)
            if filled != NEVER:
                start = block_start(level, filled)
                opens = start - LEAD_MS[level]
                barriers.append(opens if opens > self.tick else start - 1)
        return min(barriers)

    def run_cascade(self, level: int, budget: int) -> int:
        """Moves up to ``budget`` timers down; returns how much of the budget is left."""
        chain = self.cascade(level)
        while chain.count and budget:
            position = chain.pop()
            due_ms = int(self.records["due_ms"][position - 1])
            if block_of(level, due_ms) != chain.number:
                raise DamagedWheel("a timer is in the wrong slot")
            self.put(position, due_ms)
            self.wheel["relinks"] += 1
            budget -= 1
        return budget

    def take(self, chain: Chain) -> tuple[int, int, int]:
        """Owner, ref and epoch of the chain's newest timer, whose record becomes free."""
        position = chain.pop()
        record = self.records[position - 1]
        if record["due_ms"] != chain.number:
            raise DamagedWheel("a timer is in the wrong slot")
        timer = (int(record["owner"]), int(record["ref"]), int(record["epoch"]))
        self.free(position)
        self.wheel["pending"] -= 1
        return timer

    def take_slot(self, tick: int, into: Timers, at: int) -> None:
        slot = self.chain(self.wheel["slots"][0][tick % SLOTS])
        self.wheel["level_timers"][0] -= slot.count
        taken = sorted(self.take(slot) for _ in range(slot.count))
        self.mark(0, tick % SLOTS, occupied=False)
        for i, (owner, ref, epoch) in enumerate(taken, start=at):
            into.due_ms[i] = tick
            into.owner[i], into.ref[i], into.epoch[i] = owner, ref, epoch

    def collect(self, limit_ms: int, into: Timers, at: int, crowd_limit: int) -> tuple[int, bool]:
        """Collects slots up to ``limit_ms``. Returns how many items of ``into`` are used, and whether it had
        to stop before."""
        while True:
            due_ms = self.next_occupied(0, self.tick + 1)
            if due_ms > limit_ms:
                break
            if due_ms <= self.tick:
                raise DamagedWheel("a slot of the past is occupied")
            count = int(self.wheel["slots"][0][due_ms % SLOTS]["count"])
            if not 0 < count <= int(self.wheel["pending"]):
                raise DamagedWheel("a slot has a wrong count")
            crowds = int(self.wheel["crowds"])
            crowded = count > crowd_limit or count > len(into)
            no_room = crowds == CROWDS if crowded else count > len(into) - at
            if len(into) == 0 or no_room:
                self.tick = due_ms - 1
                return at, True
            if crowded:
                self.detach(0, due_ms, self.wheel["crowd"][crowds])
                self.wheel["crowds"] = crowds + 1
            else:
                self.take_slot(due_ms, into, at)
                at += count
            self.tick = due_ms
        self.tick = max(self.tick, limit_ms)
        return at, False

    def blocking_cascade(self) -> int | None:
        """The lowest level whose cascade must end before the tick can move."""
        for level in range(OPEN_LEVELS):
            cascade = self.cascade(level)
            if cascade.count and block_start(level, cascade.number) <= self.tick + 1:
                return level
        return None

    def is_cascading(self) -> bool:
        return bool(self.wheel["cascade"]["count"].any())

    def turn(
        self, log: TimerLog, target_ms: int, into: Timers, budget: int, crowd_limit: int
    ) -> tuple[int, bool]:
        self.use(log)
        target_ms = min(target_ms, LAST_DUE_MS)
        collected, full = 0, False
        while self.tick < target_ms and not full:
            before = self.tick
            self.open_blocks()
            level = self.blocking_cascade()
            if level is not None:
                if budget == 0:
                    break
                budget = self.run_cascade(level, budget)
                continue
            limit_ms = min(target_ms, self.next_barrier())
            collected, full = self.collect(limit_ms, into, collected, crowd_limit)
            if self.tick == before and not full:
                raise DamagedWheel("the tick does not move")
        self.open_blocks()
        for level in range(OPEN_LEVELS):
            budget = self.run_cascade(level, budget)
        more = full or self.tick < target_ms or int(self.wheel["crowds"]) > 0 or self.is_cascading()
        return collected, more

    def walk(self, log: TimerLog, index: int, into: Timers, limit: int) -> int:
        self.use(log)
        crowds = int(self.wheel["crowds"])
        if index >= crowds:
            return 0
        crowd = self.chain(self.wheel["crowd"][index])
        walked = min(crowd.count, limit)
        for _ in range(walked):
            owner, ref, epoch = self.take(crowd)
            into.owner[crowd.count], into.ref[crowd.count], into.epoch[crowd.count] = owner, ref, epoch
        if crowd.count == 0:
            self.wheel["crowds"] = crowds - 1
            later = self.wheel["crowd"][index + 1 : crowds].copy()
            self.wheel["crowd"][index : crowds - 1] = later
        return walked

    def next_event(self) -> int:
        if int(self.wheel["crowds"]) > 0 or self.is_cascading():
            return self.tick
        events = [self.next_occupied(0, self.tick + 1)]
        for level in range(OPEN_LEVELS):
            filled = self.next_occupied(level + 1, int(self.wheel["open"][level]) + 1)
            if filled != NEVER:
                events.append(block_start(level, filled) - LEAD_MS[level])
        return max(min(events), self.tick)


class TwinTimerWheel(TimerWheel):
    """A ``TimerWheel`` on the plain-Python functions."""

    core_type = TwinCore
