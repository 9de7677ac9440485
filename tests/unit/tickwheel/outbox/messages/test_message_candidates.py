"""Lower numbers first, inside of them the longest waiting, and a share for those who would never be first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel.outbox.messages.candidates import RESERVED_SHARE, Candidate, Candidates, PassedOver, choose

rows = st.lists(st.tuples(st.integers(-3, 6), st.integers(0, 50)), max_size=60)


def make(some: list[tuple[int, int]]) -> list[Candidate]:
    """Candidates as the table returns them: each priority's ordered by time."""
    made = [Candidate(number, priority, time_next, 0) for number, (priority, time_next) in enumerate(some)]
    return sorted(made, key=lambda one: (one.priority, one.time_next, one.id))


def lanes_of(some: list[Candidate], limit: int) -> dict[int, list[Candidate]]:
    """Each priority's first, in order, as they are read."""
    lanes: dict[int, list[Candidate]] = {}
    for one in some:
        lane = lanes.setdefault(one.priority, [])
        if len(lane) < limit:
            lane.append(one)
    return lanes


@pytest.mark.promise("V21", "V84")
def test_lower_numbers_first_and_then_the_longest_waiting() -> None:
    candidates = Candidates()
    candidates.replace(make([(5, 1), (1, 9), (5, 0), (1, 3)]))
    assert [one[1:3] for one in candidates.take(3)] == [(1, 3), (1, 9), (5, 0)]
    assert len(candidates) == 1
    candidates.replace([])
    assert candidates.take(5) == []


@given(rows, st.integers(0, RESERVED_SHARE))
def test_everything_comes_once_in_order(some: list[tuple[int, int]], turn: int) -> None:
    candidates = Candidates(turn)
    waiting = make(some)
    candidates.replace(waiting)
    for number in range(turn + 1, turn + 1 + len(some)):
        (one,) = candidates.take(1)
        by_age = min(waiting, key=lambda each: (each.time_next, each.priority, each.id))
        if number % RESERVED_SHARE == 0:
            assert one.time_next == by_age.time_next
        else:
            assert one.priority == min(each.priority for each in waiting)
        waiting.remove(one)
    assert waiting == []
    assert len(candidates) == 0


def test_nothing_starves_while_better_ones_keep_coming() -> None:
    """A hub looks again all the time, and finds new messages of the lowest number each time."""
    candidates = Candidates()
    old = [Candidate(f"old {number}", 99, number, 0) for number in range(10)]
    delivered: list[object] = []
    for round_ in range(200):
        new = [Candidate(f"{round_} {number}", 1, 1_000 + round_, 0) for number in range(20)]
        chosen, cut = choose({1: new[:4], 99: old[:4]} if old else {1: new[:4]}, 99 if old else 1, 4)
        candidates.replace(chosen, cut)
        for one in candidates.take(2):
            delivered.append(one.id)
            if one in old:
                old.remove(one)
    olds = [index for index, one in enumerate(delivered) if str(one).startswith("old")]
    assert olds == [RESERVED_SHARE * (index + 1) - 1 for index in range(10)]


def test_those_behind_locked_ones_have_their_share_while_better_ones_keep_coming() -> None:
    """What others have locked takes one turn each, however soon it is tried again."""
    locked = [Candidate(f"locked {number}", 99, number, 0) for number in range(30)]
    free, better = Candidate("free", 99, 1_000, 0), [Candidate("better", 1, 2_000, 0)] * 1_000
    candidates, passed, now_s, taken = Candidates(), PassedOver(), 0.0, list[object]()
    while not taken or taken[-1] != "free":
        assert len(taken) <= 1_000, "it starves"
        if not len(candidates):
            limit = 2 * (1 + len(passed))
            lanes = {1: better[:limit], 99: [*locked, free][:limit]}
            chosen, cut = choose(lanes, 99, limit, len(passed))
            candidates.replace(passed.rest(chosen, now_s), cut)
        now_s += 1.0  # all that was passed over may be tried again
        (one,) = candidates.take(1)
        taken.append(one.id)
        passed.add([one] if one in locked else [], now_s)
    assert len(taken) == RESERVED_SHARE * (len(locked) + 1)


def test_a_priority_of_which_there_is_more_is_not_overtaken() -> None:
    candidates = Candidates()
    candidates.replace(make([(1, 1), (1, 2), (5, 0)]), cut={1})
    assert [one.priority for one in candidates.take(10)] == [1, 1]
    assert len(candidates) == 0


@given(rows.filter(bool), st.integers(1, 20))
def test_what_is_chosen_is_bounded_and_right(some: list[tuple[int, int]], limit: int) -> None:
    waiting = make(some)
    oldest = min(waiting, key=lambda one: (one.time_next, one.priority))
    chosen, cut = choose(lanes_of(waiting, limit), oldest.priority, limit)
    assert len(set(chosen)) == len(chosen) <= max(limit, 2)
    assert any(one.time_next == oldest.time_next for one in chosen)
    assert chosen[0] == waiting[0]
    candidates = Candidates()
    candidates.replace(chosen, cut)
    taken = candidates.take(limit)
    assert taken
    # Until the first reserved turn, it is the order in which the table would have them.
    assert taken[: RESERVED_SHARE - 1] == waiting[: len(taken)][: RESERVED_SHARE - 1]


@given(rows.filter(bool), st.integers(1, 8))
def test_all_is_delivered_by_looking_again_and_again(some: list[tuple[int, int]], limit: int) -> None:
    waiting = make(some)
    candidates = Candidates()
    seen: Counter[object] = Counter()
    for _ in range(len(some)):
        if not waiting:
            break
        oldest = min(waiting, key=lambda one: (one.time_next, one.priority))
        candidates.replace(*choose(lanes_of(waiting, limit), oldest.priority, limit))
        taken = candidates.take(limit)
        assert taken, "a look that finds something brings something"
        seen.update(one.id for one in taken)
        waiting = [one for one in waiting if one not in taken]
    assert seen == dict.fromkeys(range(len(some)), 1)
