"""What topics had minute by minute: what is counted, what is not known, and how much is kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest

from tests.support.run.totals import totals_of
from tickwheel.stats import Figures, GroupFigures, TopicFigures
from tickwheel_web.dashboard.figures import traffic
from tickwheel_web.dashboard.figures.traffic import STEPS, Counts, Minute, Traffic

START_MS = 1_900_000_020_000 // 60_000 * 60_000
ORDERS, MAILS = 1, 2


class Topic(NamedTuple):
    """What the broker says of one."""

    topic_id: int
    messages: int = 0
    groups: Sequence[tuple[int, int, int]] = ()
    """Id, delivered, backlog."""
    shard_of: str = ""


class Watched:
    """The ring, and a clock for both sides."""

    def __init__(self) -> None:
        self.traffic = Traffic(gap_ms=15_000, clock_s=lambda: self.now_s)
        self.now_s = 0.0
        self.started_ms = 0

    def sample(self, at_s: float, *topics: Topic) -> None:
        self.now_s = at_s
        found = [
            TopicFigures(
                f"topic-{one.topic_id}",
                one.topic_id,
                one.messages,
                *(0, 0, 0, 0),
                shard_of=one.shard_of,
                groups=[
                    GroupFigures(
                        name=f"group-{number}",
                        group_id=number,
                        topic_id=one.topic_id,
                        delivered=delivered,
                        backlog=backlog,
                        acked=0,
                        leased=0,
                        subscribers=0,
                        redelivered=0,
                    )
                    for number, delivered, backlog in one.groups
                ],
            )
            for one in topics
        ]
        now_ms = START_MS + int(at_s * 1_000)
        self.traffic.add(Figures(now_ms, self.started_ms, totals_of(found), topics=found))

    def known(self, topic_id: int = ORDERS) -> list[tuple[int, Counts]]:
        """Minutes since the start, and what they had."""
        return [
            (int(one.since.timestamp() * 1_000 - START_MS) // 60_000, one.counts)
            for one in self.traffic.minutes(topic_id)
            if one.counts is not None
        ]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_one_sample_tells_nothing(watched: Watched) -> None:
    assert watched.traffic.minutes(ORDERS) == []
    watched.sample(0, Topic(ORDERS, 7))
    assert watched.traffic.minutes(ORDERS) == []


def test_what_came_is_counted_in_its_minute(watched: Watched) -> None:
    """What a sample has more than the one before; of the backlog, which grows and shrinks, the most."""
    backlogs = [0, 5, 90, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    for number, backlog in enumerate(backlogs):
        groups = [(1, 2 * number, backlog), (2, number, 1)]
        watched.sample(5 * number, Topic(ORDERS, 10 * number, groups), Topic(MAILS, 4))
    assert watched.known() == [(0, Counts(110, 33, 91)), (1, Counts(20, 6, 3))]
    assert watched.known(MAILS) == [(0, Counts()), (1, Counts())], "nothing is known as nothing"
    minute = watched.traffic.minutes(ORDERS)[-2]
    assert (minute.seen_s, minute.per_s("sent"), minute.per_s("delivered")) == (55.0, 2.0, 0.6)


def test_an_hour_is_told_the_oldest_minute_first(watched: Watched) -> None:
    for number in range(12 * 70):
        watched.sample(5 * number, Topic(ORDERS, number))
    minutes = watched.traffic.minutes(ORDERS)
    assert len(minutes) == STEPS == 60
    assert {(two.since - one.since).total_seconds() for one, two in pairwise(minutes)} == {60}
    assert watched.known() == [(number, Counts(12)) for number in range(10, 70)]


def test_what_was_not_sampled_is_not_known(watched: Watched) -> None:
    """Also the time since the last sample, and what came meanwhile."""
    for at_s in (0, 5, 10, 130, 135):
        watched.sample(at_s, Topic(ORDERS, at_s))
    assert watched.known() == [(0, Counts(10)), (2, Counts(5))]
    minutes = watched.traffic.minutes(ORDERS)
    assert minutes[-2] == Minute(minutes[-2].since, 0.0, None)
    assert minutes[-2].per_s("sent") is None
    watched.now_s += 600
    assert [one.counts for one in watched.traffic.minutes(ORDERS)[-10:]] == [None] * 10
    assert len(watched.known()) == 2
    watched.now_s += 7_200
    assert watched.traffic.minutes(ORDERS) == []


def test_a_broker_that_was_started_anew(watched: Watched) -> None:
    """Between the two nothing is known; a counter that is smaller takes nothing off."""
    watched.sample(0, Topic(ORDERS, 100))
    watched.sample(5, Topic(ORDERS, 110))
    watched.started_ms = 1
    watched.sample(10, Topic(ORDERS, 500))
    watched.sample(15, Topic(ORDERS, 90))
    watched.sample(20, Topic(ORDERS, 97))
    assert watched.known() == [(0, Counts(17))]


def test_topics_and_groups_that_are_new_had_all_of_it_since(watched: Watched) -> None:
    watched.sample(0)
    watched.sample(5, Topic(ORDERS, 3, [(1, 2, 1)]))
    watched.sample(10, Topic(ORDERS, 3, [(1, 2, 1), (2, 3, 0)]))
    watched.sample(15, Topic(ORDERS, 3, [(2, 3, 0)]))
    assert watched.known() == [(0, Counts(3, 5, 1))]


def test_shards_are_counted_with_their_topic(watched: Watched) -> None:
    for number in range(2):
        watched.sample(5 * number, Topic(ORDERS, 8 * number), Topic(MAILS, 4 * number, shard_of="orders"))
    assert (watched.known(), watched.known(MAILS)) == ([(0, Counts(8))], [(0, Counts())])


def test_a_clock_that_was_set_back(watched: Watched) -> None:
    for at_s in (300, 305, 10, 15, 20):
        watched.sample(at_s, Topic(ORDERS, 1_000 + at_s))
    assert watched.known() == [(0, Counts(10))]


def test_of_very_many_topics_the_busiest_are_kept(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the others nothing is known, which is not the same as nothing."""
    monkeypatch.setattr(traffic, "MAX_TOPICS", 3)
    for number in range(13):
        topics = [Topic(one, number * one, [(one, 0, 50 - one)]) for one in range(10)]
        watched.sample(5 * number, *topics)
    assert watched.known(9) == [(0, Counts(99, 0, 41)), (1, Counts(9, 0, 41))]
    assert watched.known(2) == [(1, Counts(2, 0, 48))], "the minute that is not over has all"
    assert watched.known(77) == [(1, Counts())]
