"""C and twin count what is due alike, whatever timers and rows say."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.native.native_pair import NOW_MS, Pair
from tests.support.run.profile import examples

times = st.integers(NOW_MS - 3, NOW_MS + 3)
timer = st.tuples(
    st.one_of(times, st.just(-1)), st.one_of(st.integers(0, 9), st.just(1 << 63)), st.integers(0, 2),
    st.one_of(st.integers(0, 5), st.just((1 << 32) - 1)),
)  # fmt: skip
row = st.fixed_dictionaries(
    {
        "state": st.integers(0, 6), "version": st.integers(0, 2), "topic_id": st.integers(0, 5),
        "topic_seq": st.integers(0, 5), "deliver_at_ms": times,
    }
)  # fmt: skip
delivery = st.fixed_dictionaries(
    {"state": st.integers(0, 4), "epoch": st.integers(0, 2), "time_ms": times, "flags": st.integers(0, 63)}
)


@given(
    timers=st.lists(timer, max_size=40),
    rows=st.lists(row, min_size=8, max_size=8),
    deliveries=st.lists(delivery, min_size=6, max_size=6),
    arrivals=st.lists(st.integers(0, 8), min_size=6, max_size=6),
    until_ms=st.sets(times, max_size=4).map(sorted),
    tick=times,
    first=st.integers(1, 4),
    spread_ms=st.integers(0, 4),
)
@settings(max_examples=examples(60), deadline=None)
def test_they_count_alike(
    timers: list[tuple[int, int, int, int]],
    rows: list[dict[str, int]],
    deliveries: list[dict[str, int]],
    arrivals: list[int],
    until_ms: list[int],
    tick: int,
    first: int,
    spread_ms: int,
) -> None:
    pair = Pair()
    pair.set(next_id=9, first_id=first)
    for side in pair.sides:
        side.topics[1]["spread_ms"] = spread_ms
        for number, fields in enumerate(rows, 1):
            for name, value in fields.items():
                side.rows[number][name] = value
        for group_id in (1, 2, 3):
            side.groups[group_id]["high_seq"], side.groups[group_id]["floor_seq"] = 6, 1
            for seq, fields in enumerate(deliveries):
                for name, value in fields.items():
                    side.deliveries[group_id][seq][name] = value
        for topic_id in (1, 2):
            for seq, message_id in enumerate(arrivals):
                side.arrivals[topic_id][seq]["id"] = message_id
    messages, leases, gone = pair.call("forecast", timers, tick, until_ms, 1, 8)
    assert sum(messages) + sum(leases) + sum(gone) == sum(due >= 0 for due, *_ in timers)
