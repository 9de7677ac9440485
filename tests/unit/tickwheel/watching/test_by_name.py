"""How late each topic and group was: in steps, across deleted topics, gaps and restarts."""

from __future__ import annotations

from tests.support.run.totals import totals_of
from tickwheel.stats import Figures, GroupFigures, Histogram, TopicFigures
from tickwheel.watching import by_name
from tickwheel.watching.between import DELIVERED, REACHED
from tickwheel.watching.by_name import LatenessByName

BOUNDS = [0.001, 0.01]
START_MS = 1_900_000_000_000
Late = list[int]


def topic(name: str, number: int, late: Late, groups: dict[str, Late] | None = None) -> TopicFigures:
    parts = [
        GroupFigures(
            name=group,
            group_id=10 * number + place,
            delivered=0,
            acked=0,
            leased=0,
            backlog=0,
            subscribers=0,
            topic_id=number,
            redelivered=0,
            lateness=counts,
        )
        for place, (group, counts) in enumerate((groups or {}).items())
    ]
    return TopicFigures(
        name=name,
        topic_id=number,
        messages=0,
        scheduled=0,
        ready=0,
        cancelled=0,
        purged=0,
        lateness=late,
        groups=parts,
    )


def figures(seconds: float, *topics: TopicFigures, started_ms: int = 0) -> Figures:
    histograms = {name: Histogram(BOUNDS, [0, 0, 0], 0.0) for name in (REACHED, DELIVERED)}
    now_ms = START_MS + int(seconds * 1_000)
    return Figures(now_ms, started_ms, totals_of(topics), histograms=histograms, topics=list(topics))


def told(late: LatenessByName, of: str = REACHED, span_s: float = 3_600) -> dict[tuple[str, str], Late]:
    return {(row.topic, row.group): row.histogram.counts for row in late.rows(span_s, of)}


def test_what_came_since_the_first_sample() -> None:
    late = LatenessByName(gap_ms=15_000)
    assert told(late) == {}
    late.add(figures(0, topic("a", 1, [5, 5, 5], {"g": [1, 0, 0]})))
    assert told(late) == {}
    late.add(figures(5, topic("a", 1, [6, 5, 9], {"g": [1, 7, 0]}), topic("b", 2, [0, 1, 0])))
    assert told(late) == {("a", ""): [1, 0, 4], ("b", ""): [0, 1, 0]}
    assert told(late, DELIVERED) == {("a", "g"): [0, 7, 0]}
    assert [row.topic for row in late.rows(60, REACHED)] == ["a", "b"], "the latest one first"


def test_a_topic_that_is_deleted_and_made_anew_loses_nothing() -> None:
    late = LatenessByName(gap_ms=15_000)
    late.add(figures(0, topic("a", 1, [])))
    late.add(figures(5, topic("a", 1, [0, 4, 0])))
    late.add(figures(10))
    assert told(late) == {("a", ""): [0, 4, 0]}
    late.add(figures(15, topic("a", 2, [0, 3, 0])))
    assert told(late) == {("a", ""): [0, 7, 0]}
    late.add(figures(20, topic("a", 3, [1, 0, 0])))
    assert told(late) == {("a", ""): [1, 7, 0]}


def test_gaps_and_restarts_are_left_out() -> None:
    late = LatenessByName(gap_ms=15_000)
    late.add(figures(0, topic("a", 1, [1, 0, 0])))
    late.add(figures(5, topic("a", 1, [2, 0, 0])))
    late.add(figures(500, topic("a", 1, [90, 0, 0])))
    late.add(figures(505, topic("a", 1, [91, 0, 0])))
    late.add(figures(510, topic("a", 1, [3, 0, 0]), started_ms=1))
    late.add(figures(515, topic("a", 1, [7, 0, 0]), started_ms=1))
    assert told(late) == {("a", ""): [6, 0, 0]}
    late.add(figures(400, topic("a", 1, [9, 0, 0]), started_ms=1))
    assert told(late) == {("a", ""): [6, 0, 0]}


def test_old_steps_are_forgotten() -> None:
    late = LatenessByName(gap_ms=15_000, step_s=10, steps=6)
    for number in range(100):
        late.add(figures(5 * number, topic("a", 1, [number, 0, 0])))
    assert told(late, span_s=20) == {("a", ""): [5, 0, 0]}
    assert told(late, span_s=86_400) == {("a", ""): [13, 0, 0]}


def test_of_very_many_names_those_with_the_most_are_kept() -> None:
    late = LatenessByName(gap_ms=15_000, step_s=5)
    count = 2 * by_name.MAX_NAMES
    late.add(figures(0))
    late.add(figures(5, *(topic(f"t-{number}", number, [number, 0, 0]) for number in range(1, count))))
    found = told(late)
    assert len(found) == by_name.MAX_NAMES
    assert (f"t-{count - 1}", "") in found
