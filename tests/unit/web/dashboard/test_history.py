"""The ring of figures: what happened between two moments, what is not known, and what it costs."""

from __future__ import annotations

import pytest

from tests.support.run.totals import totals_of
from tickwheel.stats import Figures, GroupFigures, Histogram, TopicFigures
from tickwheel.watching.between import REACHED
from tickwheel_web.dashboard.figures.history import History

START_MS = 1_900_000_000_000
BOUNDS = [0.0, 0.001, 0.01]


def figures(
    seconds: float, sent: int, late: list[int], started_ms: int = 0, bounds: list[float] | None = None
) -> Figures:
    topic = TopicFigures(
        name="orders", topic_id=1, messages=sent, scheduled=0, ready=sent, cancelled=0, purged=0
    )
    return Figures(
        START_MS + int(seconds * 1_000),
        started_ms,
        totals_of([topic]),
        histograms={REACHED: Histogram(bounds or BOUNDS, late, 0.0)},
        topics=[topic],
    )


def test_nothing_is_known_at_first() -> None:
    history = History()
    assert history.lately(60) is None
    assert history.last_ms is None
    assert [point.between for point in history.points(60, 3, START_MS)] == [None] * 3
    history.add(figures(0, 0, [0, 0, 0, 0]))
    assert history.lately(60) is None


def test_what_happened_lately() -> None:
    history = History()
    for number in range(20):
        history.add(figures(5 * number, 10 * number, [number, 0, 0, number]))
    found = history.lately(60)
    assert found is not None
    assert (found.seconds, found.grown.sent, found.last.sent) == (60.0, 120.0, 190.0)
    assert found.lateness[REACHED].counts == [12, 0, 0, 12]
    assert found.lateness[REACHED].quantile(0.99) == float("inf")


def test_a_gap_is_a_gap() -> None:
    history = History()
    for number in [*range(13), *range(37, 49)]:
        history.add(figures(5 * number, number, [0] * 4))
    points = history.points(240, 8, START_MS + 240_000)
    assert [point.between is not None for point in points] == [
        True,
        True,
        False,
        False,
        False,
        False,
        False,
        True,
    ]
    found = history.lately(3_600)
    assert found is not None
    assert found.seconds == 55.0


def test_a_broker_that_was_started_anew_is_a_gap() -> None:
    history = History()
    for number in range(6):
        history.add(figures(5 * number, 100, [number] * 4))
    for number in range(6, 12):
        history.add(figures(5 * number, 100, [0] * 4, started_ms=7))
    assert history.lately(60) is None
    known = [point.between is not None for point in history.points(50, 5, START_MS + 55_000)]
    assert known == [True, True, False, True, True]


def test_the_ring_forgets_the_oldest() -> None:
    history = History(samples=10)
    for number in range(25):
        history.add(figures(5 * number, number, [0] * 4))
    assert len(history) == 10
    found = history.lately(3_600)
    assert found is not None
    assert found.seconds == 45.0
    assert found.grown.sent == 9


def test_a_clock_that_was_set_back() -> None:
    history = History()
    history.add(figures(100, 1, [0] * 4))
    history.add(figures(99, 2, [0] * 4))
    assert len(history) == 1
    history.add(figures(10, 3, [0] * 4))
    assert history.last_ms == START_MS + 10_000


def test_other_buckets_are_another_history() -> None:
    history = History()
    history.add(figures(0, 1, [0] * 4))
    history.add(figures(5, 2, [0, 0], bounds=[1.0]))
    assert len(history) == 1


@pytest.mark.parametrize("count", [1, 7, 120])
def test_points_cover_the_time_until_now(count: int) -> None:
    points = History().points(3_600, count, START_MS)
    assert len(points) == count
    assert points[-1].until_ms == START_MS
    assert points[0].since_ms == START_MS - 3_600_000 // count * count


def test_groups_are_added_up_and_shards_are_not() -> None:
    group = GroupFigures(
        name="g",
        group_id=1,
        delivered=5,
        acked=3,
        leased=2,
        backlog=4,
        subscribers=1,
        dead=1,
        topic_id=1,
        redelivered=0,
    )
    whole = TopicFigures(
        name="orders", topic_id=1, messages=10, scheduled=2, ready=8, cancelled=0, purged=0, groups=[group]
    )
    shard = TopicFigures(
        name="orders/-80",
        topic_id=2,
        messages=10,
        scheduled=2,
        ready=8,
        cancelled=0,
        purged=0,
        shard_of="orders",
        groups=[group],
    )
    history = History()
    for seconds in (0, 5):
        topics = [whole, shard]
        history.add(
            Figures(
                START_MS + seconds * 1_000, 0, totals_of(topics), topics=topics, gauges={"due_backlog": 3}
            )
        )
    found = history.lately(60)
    assert found is not None
    assert (found.last.sent, found.last.in_flight, found.last.due_backlog) == (10.0, 2.0, 3.0)
