"""The timer wheel at its edges: block boundaries, jumps, crowds, long cascades, full disks, damaged chains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel_native.wheel import LAST_DUE_MS
from timerlog.errors import BadTime, DiskFull
from timerlog.wheel.timers import Timers
from timerlog.wheel.wheel import CASCADE_BUDGET, CROWD_LIMIT, WALK_LIMIT, DamagedWheel, TimerWheel

START_MS = 1_750_000_000_123
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS
BLOCK_MS = [1 << 12, 1 << 24, 1 << 36]
LIMIT = 10_000


@pytest.fixture
def wheel() -> Iterator[TimerWheel]:
    wheel = TimerWheel(None, START_MS)
    yield wheel
    wheel.close()


def link(wheel: TimerWheel, due_ms: object, first_ref: int = 0, owner: int = 0) -> None:
    due = np.atleast_1d(np.asarray(due_ms, np.int64))
    ref = np.arange(first_ref, first_ref + len(due), dtype=np.uint64)
    wheel.link(due, ref, np.zeros(len(due), np.uint32), np.full(len(due), owner, np.uint32))


def drain(wheel: TimerWheel, now_ms: int, limit: int = LIMIT) -> list[tuple[int, int]]:
    """(due, ref) of everything that is due, in the order of delivery."""
    result: list[tuple[int, int]] = []
    while True:
        due = wheel.turn(now_ms, limit)
        if due is not None:
            assert 0 < len(due) <= limit
            result += zip(due.due_ms.tolist(), due.ref.tolist(), strict=True)
        if not wheel.more:
            return result


# -- on time, never early --------------------------------------------------------------------------------


@pytest.mark.promise("R14", "R34")
@pytest.mark.parametrize("width_ms", [1, *BLOCK_MS])
@pytest.mark.parametrize("blocks_ahead", [1, 2, 3])
@pytest.mark.parametrize("off_ms", [-1, 0, 1])
def test_fires_at_its_millisecond_around_block_boundaries(
    wheel: TimerWheel, width_ms: int, blocks_ahead: int, off_ms: int
) -> None:
    due_ms = max((START_MS // width_ms + blocks_ahead) * width_ms + off_ms, START_MS + 1)
    link(wheel, due_ms, first_ref=7)
    assert drain(wheel, due_ms - 1) == []
    assert wheel.pending == 1
    assert drain(wheel, due_ms) == [(due_ms, 7)]
    assert wheel.pending == 0
    assert wheel.tick_ms == due_ms


@pytest.mark.promise("R21")
def test_every_millisecond_across_a_block_boundary(wheel: TimerWheel) -> None:
    first_ms = (START_MS // 4096 + 3) * 4096 - 50
    due = np.arange(first_ms, first_ms + 100).repeat(3)
    link(wheel, due)
    for now_ms in range(first_ms, first_ms + 100):
        ref = 3 * (now_ms - first_ms)
        assert drain(wheel, now_ms) == [(now_ms, ref), (now_ms, ref + 1), (now_ms, ref + 2)]


def test_what_is_overdue_becomes_the_next_tick(wheel: TimerWheel) -> None:
    link(wheel, [START_MS - DAY_MS, START_MS, 0])
    assert drain(wheel, START_MS) == []
    assert drain(wheel, START_MS + 1) == [(START_MS + 1, 0), (START_MS + 1, 1), (START_MS + 1, 2)]


@pytest.mark.promise("R18")
def test_order_is_due_then_owner_then_reference(wheel: TimerWheel) -> None:
    due_ms = START_MS + 10_000
    wheel.link(
        np.array([due_ms, due_ms, due_ms, due_ms - 1, due_ms], np.int64),
        np.array([5, 9, 2, 8, 2], np.uint64),
        np.array([0, 0, 1, 0, 0], np.uint32),
        np.array([1, 0, 0, 3, 0], np.uint32),
    )
    due = wheel.turn(due_ms, LIMIT)
    assert due is not None
    fields = (due.due_ms, due.owner, due.ref, due.epoch)
    assert list(zip(*(field.tolist() for field in fields), strict=True)) == [
        (due_ms - 1, 3, 8, 0),
        (due_ms, 0, 2, 0),
        (due_ms, 0, 2, 1),
        (due_ms, 0, 9, 0),
        (due_ms, 1, 5, 0),
    ]


def test_random_order_inside_a_full_slot(wheel: TimerWheel) -> None:
    due_ms = START_MS + 100
    refs = np.random.default_rng(3).permutation(9_000).astype(np.uint64)
    wheel.link(np.full(9_000, due_ms), refs, np.zeros(9_000, np.uint32), np.zeros(9_000, np.uint32))
    assert [ref for _, ref in drain(wheel, due_ms)] == list(range(9_000))


# -- sleeping and jumping --------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_ms", [1, 5_000, DAY_MS, 400 * YEAR_MS])
def test_sleeps_from_event_to_event(wheel: TimerWheel, delay_ms: int) -> None:
    due_ms = START_MS + delay_ms
    link(wheel, due_ms)
    wake_ups = 0
    while wheel.pending:
        now_ms = wheel.next_event_ms()
        assert now_ms is not None
        wake_ups += 1
        got = drain(wheel, now_ms)
    assert got == [(due_ms, 0)]
    assert wake_ups <= 4, "one for each level that it moves down, and one to fire"
    assert wheel.next_event_ms() is None


@pytest.mark.parametrize("away_ms", [DAY_MS, 30 * DAY_MS, 7 * YEAR_MS])
def test_after_a_long_pause_everything_comes_in_order(wheel: TimerWheel, away_ms: int) -> None:
    due = np.random.default_rng(1).integers(START_MS + 1, START_MS + away_ms, 5_000)
    link(wheel, due)
    expected = sorted((int(due_ms), ref) for ref, due_ms in enumerate(due))
    assert drain(wheel, START_MS + away_ms, limit=100) == expected
    assert wheel.tick_ms == START_MS + away_ms


def test_the_year_9999(wheel: TimerWheel) -> None:
    last_ms = 253_402_300_799_999
    link(wheel, [last_ms, last_ms - 1])
    assert drain(wheel, last_ms - 2) == []
    assert drain(wheel, last_ms) == [(last_ms - 1, 1), (last_ms, 0)]


def test_a_time_beyond_the_wheel_is_refused_whole(wheel: TimerWheel) -> None:
    with pytest.raises(BadTime):
        link(wheel, [START_MS + 1, LAST_DUE_MS + 1])
    assert wheel.pending == 0
    link(wheel, LAST_DUE_MS)
    assert drain(wheel, LAST_DUE_MS) == [(LAST_DUE_MS, 0)]


def test_a_clock_that_jumps_back_fires_nothing_twice(wheel: TimerWheel) -> None:
    link(wheel, [START_MS + 10, START_MS + 2_000])
    assert drain(wheel, START_MS + 1_000) == [(START_MS + 10, 0)]
    assert wheel.turn(START_MS - DAY_MS, LIMIT) is None
    assert not wheel.more
    assert wheel.tick_ms == START_MS + 1_000
    assert drain(wheel, START_MS + 2_000) == [(START_MS + 2_000, 1)]


def test_advance_lets_new_timers_start_on_the_lowest_level(wheel: TimerWheel) -> None:
    now_ms = START_MS + 3 * DAY_MS
    wheel.advance(now_ms)
    assert wheel.tick_ms == now_ms
    link(wheel, now_ms + 500)
    assert [level["timers"] for level in wheel.picture()] == [1, 0, 0, 0]


def test_advance_stops_before_what_is_due(wheel: TimerWheel) -> None:
    link(wheel, START_MS + 10)
    wheel.advance(START_MS + 1_000)
    assert wheel.tick_ms == START_MS + 9
    assert drain(wheel, START_MS + 1_000) == [(START_MS + 10, 0)]


# -- cascades --------------------------------------------------------------------------------------------


def test_a_cascade_runs_ahead_of_time(wheel: TimerWheel) -> None:
    block_ms = (START_MS // 4096 + 2) * 4096
    link(wheel, np.arange(block_ms, block_ms + 4096))
    assert wheel.next_event_ms() == block_ms - 1024
    drain(wheel, block_ms - 1024)
    assert [level["timers"] for level in wheel.picture()] == [4096, 0, 0, 0]


def test_a_long_cascade_is_done_in_pieces(wheel: TimerWheel) -> None:
    count = 3 * CASCADE_BUDGET + 1
    block_ms = (START_MS // 4096 + 2) * 4096
    link(wheel, block_ms + np.arange(count) % 4096)
    moved = []
    while wheel.turn(block_ms, LIMIT) is None:
        moved.append(int(wheel._wheel["relinks"]))
        assert wheel.tick_ms < block_ms
        assert wheel.next_event_ms() == wheel.tick_ms
    assert moved == [CASCADE_BUDGET, 2 * CASCADE_BUDGET, 3 * CASCADE_BUDGET]


def test_timers_before_the_block_do_not_wait_for_its_cascade(wheel: TimerWheel) -> None:
    block_ms = (START_MS // 4096 + 2) * 4096
    link(wheel, block_ms + np.arange(3 * CASCADE_BUDGET) % 4096)
    link(wheel, block_ms - 500, first_ref=10**6)
    due = wheel.turn(block_ms - 500, LIMIT)
    assert due is not None
    assert due.ref.tolist() == [10**6]
    assert wheel.more


@pytest.mark.promise("R15")
def test_at_most_one_move_a_level(wheel: TimerWheel) -> None:
    due = START_MS + np.random.default_rng(2).integers(1, 10 * YEAR_MS, 2_000)
    link(wheel, due)
    assert len(drain(wheel, START_MS + 10 * YEAR_MS)) == 2_000
    assert int(wheel._wheel["relinks"]) <= 3 * 2_000


# -- crowds ----------------------------------------------------------------------------------------------


@pytest.mark.promise("R5", "R35")
def test_a_million_in_one_millisecond_do_not_hold_up_the_next(wheel: TimerWheel) -> None:
    count = 1_000_000
    due_ms = START_MS + 3_000
    link(wheel, np.full(count, due_ms))
    link(wheel, [due_ms + 1, due_ms + 2], first_ref=count)
    later_at, refs = -1, []
    turns = 0
    while wheel.pending:
        due = wheel.turn(due_ms + 2, LIMIT)
        turns += 1
        if due is None:
            continue
        assert len(due) <= LIMIT
        if due.due_ms[0] > due_ms:
            later_at = turns
            assert due.ref.tolist() == [count, count + 1]
        else:
            refs.append(due.ref)
    assert later_at <= 2 + count // WALK_LIMIT
    assert len(refs) == count // LIMIT
    assert np.array_equal(np.concatenate(refs), np.arange(count, dtype=np.uint64))
    assert wheel.turn(due_ms + 2, LIMIT) is None
    assert not wheel.more


def test_a_mixed_up_crowd_is_put_in_order(wheel: TimerWheel) -> None:
    count = CROWD_LIMIT + 1
    due_ms = START_MS + 100
    refs = np.random.default_rng(5).permutation(count).astype(np.uint64)
    owners = (refs % 3).astype(np.uint32)
    wheel.link(np.full(count, due_ms), refs, np.zeros(count, np.uint32), owners)
    parts = []
    while wheel.pending:
        part = wheel.turn(due_ms, 5_000)
        if part is not None:
            parts.append(part)
    keys = [key for part in parts for key in zip(part.owner.tolist(), part.ref.tolist(), strict=True)]
    assert keys == sorted(zip(owners.tolist(), refs.tolist(), strict=True))


def test_more_crowds_than_the_table_holds(wheel: TimerWheel) -> None:
    crowds, each = 150, 20
    wheel.crowd_limit = 10
    link(wheel, START_MS + 1 + np.arange(crowds * each) // each)
    got = drain(wheel, START_MS + DAY_MS)
    assert sorted(got) == [(START_MS + 1 + i // each, i) for i in range(crowds * each)]
    assert wheel.tick_ms == wheel.drained_ms == START_MS + DAY_MS


def test_while_a_crowd_drains_drained_ms_stays_before_it(wheel: TimerWheel) -> None:
    link(wheel, np.full(30, START_MS + 5))
    wheel.crowd_limit = 10
    now_ms = START_MS + 100
    while wheel.pending > 10:
        wheel.turn(now_ms, 10)
    assert wheel.tick_ms == now_ms
    assert wheel.drained_ms == START_MS + 4
    assert wheel.next_event_ms() == now_ms
    drain(wheel, now_ms)
    assert wheel.drained_ms == now_ms


# -- space -----------------------------------------------------------------------------------------------


def test_the_log_is_as_large_as_the_peak(wheel: TimerWheel) -> None:
    rng = np.random.default_rng(4)
    now_ms, peak = START_MS, 0
    for _ in range(200):
        link(wheel, now_ms + rng.integers(1, 20_000, 500))
        peak = max(peak, wheel.pending)
        now_ms += 700
        drain(wheel, now_ms)
    assert int(wheel._wheel["tail"]) <= peak


def test_a_full_disk_links_nothing_and_turning_goes_on(
    wheel: TimerWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    link(wheel, START_MS + 5_000 + np.arange(100))
    before = wheel._wheel.tobytes()

    def refuse(_bytes: int) -> None:
        raise DiskFull("the disk is full")

    monkeypatch.setattr(wheel.timer_log.region, "ensure", refuse)
    with pytest.raises(DiskFull):
        link(wheel, np.full(100_000, START_MS + 7_000))
    assert wheel._wheel.tobytes() == before
    # Cascades need no space.
    assert len(drain(wheel, START_MS + DAY_MS)) == 100
    monkeypatch.undo()
    link(wheel, np.full(100_000, START_MS + 2 * DAY_MS))
    assert len(drain(wheel, START_MS + 2 * DAY_MS)) == 100_000


@pytest.mark.promise("R48")
def test_files_start_empty_and_give_space_back(tmp_path: Path) -> None:
    for _ in range(2):
        wheel = TimerWheel(tmp_path, START_MS)
        assert wheel.pending == 0
        assert wheel.next_event_ms() is None
        link(wheel, START_MS + np.arange(1_000_000) % 50_000)
        full_bytes = wheel.disk_bytes()
        assert full_bytes >= 32_000_000
        assert wheel.free_space() == 0, "timers are pending"
        assert len(drain(wheel, START_MS + 50_000)) == 1_000_000
        assert wheel.free_space() >= 32_000_000
        assert wheel.disk_bytes() < full_bytes - 31_000_000
        link(wheel, START_MS + 50_001)
        assert drain(wheel, START_MS + 60_000) == [(START_MS + 50_001, 0)]
        link(wheel, START_MS + DAY_MS)
        wheel.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["timer.log", "timer.wheel"]


def test_arrays_of_different_length_are_refused(wheel: TimerWheel) -> None:
    one, two = np.zeros(1, np.uint32), np.zeros(2, np.uint32)
    with pytest.raises(ValueError, match="same length"):
        wheel.link(np.full(2, START_MS), np.zeros(2, np.uint64), one, two)


# -- damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, 101, 1 << 40, (1 << 64) - 1])
def test_a_wrong_position_is_an_error(wheel: TimerWheel, wrong: int) -> None:
    link(wheel, np.full(100, START_MS + 5_000))
    wheel.timer_log.records(100)["prev_pos"][50] = wrong
    with pytest.raises(DamagedWheel):
        drain(wheel, START_MS + 5_000)


def test_a_chain_that_bites_its_tail_is_an_error(wheel: TimerWheel) -> None:
    link(wheel, np.full(100, START_MS + 100))
    wheel.timer_log.records(100)["prev_pos"][50] = 99
    with pytest.raises(DamagedWheel):
        drain(wheel, START_MS + 100)


def test_a_pending_record_on_the_free_list_is_an_error(wheel: TimerWheel) -> None:
    link(wheel, [START_MS + 100, START_MS + DAY_MS])
    drain(wheel, START_MS + 100)
    wheel._wheel["free_list"]["heads"][0] = 2
    with pytest.raises(DamagedWheel):
        link(wheel, START_MS + 200)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 199),
            st.sampled_from(["due_ms", "prev_pos"]),
            st.one_of(
                st.integers(0, 210), st.integers(START_MS, START_MS + DAY_MS), st.integers(0, (1 << 63) - 1)
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_damage_in_the_log_ends_in_an_error_or_in_the_right_count(
    damage: list[tuple[int, str, int]],
) -> None:
    wheel = TimerWheel(None, START_MS)
    link(wheel, START_MS + 1 + np.arange(200) % 5 * 3_000)
    records = wheel.timer_log.records(200)
    for index, field, value in damage:
        records[field][index] = value
    try:
        assert len(drain(wheel, START_MS + DAY_MS)) == 200
    except DamagedWheel:
        pass
    finally:
        wheel.close()


# -- looking ---------------------------------------------------------------------------------------------


def test_picture_and_what_is_about_due(wheel: TimerWheel) -> None:
    link(wheel, START_MS + np.array([10, 20, 20, 30 * 60_000, 50 * DAY_MS, 20 * YEAR_MS]))
    picture = wheel.picture()
    assert [level["level"] for level in picture] == [0, 1, 2, 3]
    assert [level["slot_ms"] for level in picture] == [1, 4096, 1 << 24, 1 << 36]
    assert [level["timers"] for level in picture] == [3, 1, 1, 1]
    assert [level["slots_occupied"] for level in picture] == [2, 1, 1, 1]
    assert all(len(level["heat"]) == 64 and sum(level["heat"]) == level["timers"] for level in picture)
    assert picture[0]["heat"][0] == 3
    due = [wheel.about_due(START_MS + ahead) for ahead in (0, 15, 20, HOUR_MS, 60 * DAY_MS, 30 * YEAR_MS)]
    assert due == [0, 1, 3, 4, 5, 6]


def test_timers_are_cut_without_copying() -> None:
    timers = Timers.room(10)
    part = timers.part(2, 5)
    assert len(part) == 3
    assert part.ref.base is timers.ref
