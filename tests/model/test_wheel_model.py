"""The timer wheel against a heap, and the C code against its plain-Python twin, byte for byte."""

from __future__ import annotations

import heapq
from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.twins.wheel_twin import TwinTimerWheel
from tickwheel_native.wheel import LAST_DUE_MS
from timerlog.wheel.timers import Timers
from timerlog.wheel.wheel import TimerWheel

LEVEL_1_MS, LEVEL_2_MS, LEVEL_3_MS = 1 << 12, 1 << 24, 1 << 36
EDGES_MS = [1024, LEVEL_1_MS, 60_000, LEVEL_2_MS, 3_600_000, LEVEL_3_MS, 250_000_000_000_000]

Timer = tuple[int, int, int, int]


def near(edges_ms: list[int]) -> st.SearchStrategy[int]:
    """Durations just before, at and after the places where blocks and leads begin, and some between."""
    close = st.builds(
        lambda edge, factor, off: max(0, edge * factor + off),
        st.sampled_from(edges_ms),
        st.integers(0, 3),
        st.integers(-2, 2),
    )
    between = st.sampled_from(edges_ms).flatmap(lambda edge: st.integers(0, edge))
    return st.one_of(st.integers(0, 20), close, between)


delays_ms = near(EDGES_MS)
YEAR_9999_MS = 253_402_300_799_999
block_ends_ms = [LEVEL_1_MS - 1, LEVEL_2_MS - 1, LEVEL_3_MS - 1]
starts_ms = st.one_of(st.sampled_from([0, *block_ends_ms, YEAR_9999_MS]), st.integers(0, 4 * 10**12))


def as_tuples(timers: Timers) -> list[Timer]:
    columns = (timers.due_ms, timers.owner, timers.ref, timers.epoch)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def memory(wheel: TimerWheel) -> tuple[bytes, bytes]:
    used = int(wheel._wheel["tail"]) * 32
    return wheel._wheel.tobytes(), wheel.timer_log.region.array(np.uint8, 0, used).tobytes()


class WheelMachine(RuleBasedStateMachine):
    """Links, turns and jumps on both wheels at once, with a heap as the oracle."""

    @initialize(
        start_ms=starts_ms,
        cascade_budget=st.sampled_from([1, 3, 65_536]),
        crowd_limit=st.sampled_from([1, 7, 16_384]),
        walk_limit=st.sampled_from([1, 5, 65_536]),
    )
    def start(self, start_ms: int, cascade_budget: int, crowd_limit: int, walk_limit: int) -> None:
        self.wheel = TimerWheel(None, start_ms)
        self.twin = TwinTimerWheel(None, start_ms)
        for wheel in (self.wheel, self.twin):
            wheel.cascade_budget = cascade_budget
            wheel.crowd_limit = crowd_limit
            wheel.walk_limit = walk_limit
        self.now_ms = self.latest_ms = start_ms
        self.next_ref = 0
        self.heap: list[Timer] = []
        self.crowded = False

    def teardown(self) -> None:
        if hasattr(self, "wheel"):
            self.wheel.close()
            self.twin.close()

    @rule(
        delays=st.lists(st.tuples(delays_ms, st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=12),
        copies=st.sampled_from([1, 1, 1, 3, 9]),
    )
    def link(self, delays: list[tuple[int, int, int]], copies: int) -> None:
        timers = []
        for delay_ms, owner, epoch in delays * copies:
            due_ms = min(self.now_ms + delay_ms, LAST_DUE_MS)
            timers.append((due_ms, owner, self.next_ref, epoch))
            self.next_ref += 1
        self.link_all(timers)

    @rule(ago_ms=st.lists(st.integers(0, 10_000), min_size=1, max_size=5))
    def link_overdue(self, ago_ms: list[int]) -> None:
        timers = [(max(0, self.now_ms - ago), 0, self.next_ref + i, 0) for i, ago in enumerate(ago_ms)]
        self.next_ref += len(timers)
        self.link_all(timers)

    def link_all(self, timers: list[Timer]) -> None:
        due, owner, ref, epoch = (list(column) for column in zip(*timers, strict=True))
        arrays = (
            np.array(due, np.int64),
            np.array(ref, np.uint64),
            np.array(epoch, np.uint32),
            np.array(owner, np.uint32),
        )
        for timer in timers:
            heapq.heappush(self.heap, (max(timer[0], self.wheel.tick_ms + 1), *timer[1:]))
        self.wheel.link(*arrays)
        self.twin.link(*arrays)

    @rule(passed_ms=near(EDGES_MS[:-1]))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms = min(self.now_ms + passed_ms, LAST_DUE_MS - LEVEL_3_MS)

    @rule(back_ms=st.integers(1, 100_000))
    def clock_jumps_back(self, back_ms: int) -> None:
        self.now_ms = max(0, self.now_ms - back_ms)

    @rule()
    def until_the_next_event(self) -> None:
        event_ms = self.wheel.next_event_ms()
        if event_ms is not None:
            self.now_ms = max(self.now_ms, event_ms)

    @rule(limit=st.sampled_from([1, 2, 5, 1000]))
    def turn(self, limit: int) -> None:
        self.turn_once(limit)

    def turn_once(self, limit: int) -> None:
        largest = max(Counter(timer[0] for timer in self.heap).values(), default=0)
        self.crowded |= largest > min(limit, self.wheel.crowd_limit)
        # What became due stays due when the clock jumps back.
        self.latest_ms = max(self.latest_ms, self.now_ms)
        timers, expected = self.wheel.turn(self.now_ms, limit), self.twin.turn(self.now_ms, limit)
        assert (timers is None) == (expected is None)
        if timers is None or expected is None:
            return
        got = as_tuples(timers)
        assert got == as_tuples(expected)
        assert 0 < len(got) <= limit
        assert got == sorted(got)
        assert got[-1][0] <= self.latest_ms, "a timer fired early"
        self.take(got)

    def take(self, got: list[Timer]) -> None:
        if not self.crowded:
            assert got == [heapq.heappop(self.heap) for _ in got]
            return
        # Crowds alternate with later ticks, but each tick's timers come in their order.
        for due_ms in {timer[0] for timer in got}:
            of_tick = sorted(timer for timer in self.heap if timer[0] == due_ms)
            taken = [timer for timer in got if timer[0] == due_ms]
            assert taken == of_tick[: len(taken)]
        left = Counter(self.heap)
        left.subtract(got)
        self.heap = list(left.elements())
        heapq.heapify(self.heap)

    @rule(limit=st.sampled_from([1, 3, 1000]))
    def turn_until_done(self, limit: int) -> None:
        for _ in range(20 * self.wheel.pending + 20):
            self.turn_once(limit)
            if not self.wheel.more:
                break
        assert not self.wheel.more
        self.crowded = False
        assert all(timer[0] > self.now_ms for timer in self.heap), "a due timer was left behind"
        assert self.wheel.tick_ms >= self.now_ms
        assert self.wheel.drained_ms == self.wheel.tick_ms
        event_ms = self.wheel.next_event_ms()
        assert event_ms is None or event_ms > self.wheel.tick_ms, "it would not sleep"

    @rule()
    def advance(self) -> None:
        pending = self.wheel.pending
        self.wheel.advance(self.now_ms)
        self.twin.advance(self.now_ms)
        assert self.wheel.pending == pending

    @invariant()
    def agrees_with_the_heap(self) -> None:
        assert self.wheel.pending == len(self.heap)
        event_ms = self.wheel.next_event_ms()
        if self.heap:
            assert event_ms is not None
            assert event_ms <= max(self.heap[0][0], self.wheel.tick_ms), "it would sleep too long"
        else:
            assert event_ms is None
        assert self.wheel.about_due(2 * LAST_DUE_MS) == len(self.heap)

    @invariant()
    def agrees_with_the_twin(self) -> None:
        assert self.wheel.next_event_ms() == self.twin.next_event_ms()
        assert self.wheel.more == self.twin.more
        assert self.wheel.pending == self.twin.pending
        assert memory(self.wheel) == memory(self.twin)


TestWheelModel = WheelMachine.TestCase
TestWheelModel.settings = settings(stateful_step_count=25, deadline=None)
