"""Due times on the wheel: never early, none forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tickwheel.outbox.schedule import DueTimes

NOW_NS = 1_900_000_000 * 10**9
DAY_NS = 86_400 * 10**9


def test_nothing_is_due_at_first() -> None:
    times = DueTimes(NOW_NS)
    assert times.next_ns() is None
    assert not times.take(NOW_NS + DAY_NS)
    times.close()


@given(
    st.lists(
        st.integers(0, 10 * 10**9) | st.integers(0, 400 * DAY_NS) | st.integers(-DAY_NS, 0), max_size=30
    ),
    st.booleans(),
)
def test_who_sleeps_until_the_next_is_woken_for_each_and_never_early(offsets: list[int], twice: bool) -> None:
    times = DueTimes(NOW_NS)
    for offset in offsets * (1 + twice):
        times.add(NOW_NS + offset)
    now = NOW_NS
    woken = []
    for _ in range(500):
        at = times.next_ns()
        if at is None:
            break
        now = max(now, at)
        if times.take(now):
            woken.append(now)
    assert times.next_ns() is None
    for offset in offsets:
        due = NOW_NS + offset
        # Not more than two milliseconds late: the tick after, for times that had passed.
        assert any(due <= one <= max(due, NOW_NS) + 2_000_000 for one in woken)
    for one in woken:
        assert any(NOW_NS + offset <= one < max(offset, 0) + NOW_NS + 3_000_000 for offset in offsets)
    times.close()


def test_a_time_of_the_same_millisecond_counts_again_after_it_was_taken() -> None:
    times = DueTimes(NOW_NS)
    due = NOW_NS + 5_000_000
    times.add(due)
    times.add(due)
    assert not times.take(due - 1_000_000)
    assert times.take(due)
    assert not times.take(due)
    times.add(due)  # more of that millisecond came: they are due in the next
    assert times.next_ns() == due + 1_000_000
    assert times.take(due + 1_000_000)
    times.close()


def test_many_and_far_times() -> None:
    times = DueTimes(NOW_NS)
    for number in range(10_000):
        times.add(NOW_NS + 1_000_000_000 + number * 1_000_000)
    times.add((1 << 63) - 1)
    times.add(1 << 80)
    assert times.take(NOW_NS + 20 * 10**9)
    assert not times.take(NOW_NS + 20 * 10**9)
    assert times.next_ns() is not None
    times.close()
