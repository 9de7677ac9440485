"""What is told of a broker out of its figures."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.run.totals import totals_of
from tickwheel.stats import EndpointState, Figures, Forecast, GroupFigures, Histogram, TopicFigures, Wheel
from tickwheel.watching.activity import Activities
from tickwheel.watching.attention import remarks
from tickwheel.watching.between import REACHED, Between, between, sample_of
from tickwheel.watching.coming import HORIZONS, coming
from tickwheel.watching.numbers import disk_share

BOUNDS = [0.001, 0.01]


def group(delivered: int = 0, **more: Any) -> GroupFigures:
    given = {"name": "g", "group_id": 5, "topic_id": 1, "delivered": delivered, "subscribers": 1}
    nothing = dict.fromkeys(GroupFigures.__struct_fields__, 0) | {"endpoint_state": None}
    return GroupFigures(**(nothing | given | more))


def figures(now_ms: int = 1_000, sent: int = 0, late: list[int] | None = None, **more: Any) -> Figures:
    topics = [
        TopicFigures(
            name="orders",
            topic_id=1,
            messages=sent,
            scheduled=0,
            ready=sent,
            cancelled=0,
            purged=0,
            groups=more.pop("groups", []),
        )
    ]
    histograms = {REACHED: Histogram(more.pop("bounds", BOUNDS), late or [0, 0, 0], 0.0)}
    return Figures(
        now_ms, more.pop("started_ms", 0), totals_of(topics), histograms=histograms, topics=topics, **more
    )


def texts(found: Figures) -> list[str]:
    return [one.text for one in remarks(found, None)]


def compared(before: Figures, now: Figures) -> Between | None:
    return between(sample_of(before), sample_of(now))


def test_what_happened_between() -> None:
    found = compared(figures(1_000, 5, [1, 0, 0]), figures(3_000, 25, [1, 98, 2]))
    assert found is not None
    assert (found.seconds, found.per_s("sent"), found.last.sent) == (2.0, 10.0, 25.0)
    assert [found.quantile(share, REACHED) for share in (0.5, 0.98, 0.999)] == [0.01, 0.01, float("inf")]
    assert found.quantile(0.5) is None, "lateness ends with the first delivery to a consumer"


@pytest.mark.parametrize(
    "now", [figures(1_000), figures(900), figures(2_000, started_ms=1_500)], ids=["same", "back", "anew"]
)
def test_what_cannot_be_compared(now: Figures) -> None:
    assert compared(figures(1_000), now) is None
    assert between(None, sample_of(now)) is None


def test_lateness_in_other_buckets_is_not_known() -> None:
    found = compared(figures(1_000), figures(2_000, bounds=[0.5, 1.0]))
    assert found is not None
    assert found.quantile(0.5, REACHED) is None


def test_a_topic_that_was_made_anew_has_no_rate() -> None:
    before, now = figures(1_000, 50, groups=[group(50)]), figures(2_000, 60, groups=[group(55)])
    lately = Activities(now, before)
    assert lately.of_topic("orders")[:2] == (10.0, 5.0)
    assert lately.of_group("orders", "g")[1] == 5.0
    topics = [
        TopicFigures(name="orders", topic_id=2, messages=3, scheduled=0, ready=3, cancelled=0, purged=0)
    ]
    anew = Figures(2_000, 0, totals_of(topics), topics=topics)
    assert Activities(anew, before).of_topic("orders")[:] == (None, None, None)


def test_an_endpoint_that_fails_lacks_no_consumer() -> None:
    """While its circuit is open nobody takes its messages: more workers would not help."""

    def of(state: EndpointState | None) -> list[str]:
        waiting = group(name="push.shop", backlog=17, subscribers=0, endpoint_state=state)
        return texts(figures(now_ms=1_935_000_060_000, groups=[waiting]))

    at = {"since_ms": 1_935_000_000_000, "next_ms": 1_935_000_600_000}
    assert of(None) == ["has no consumer; 17 messages wait."]
    assert of(EndpointState(name="failing", reason="HTTP 503", **at)) == [
        "failing: HTTP 503 since 20:00, next try 20:10 UTC; 17 messages wait."
    ]
    assert of(EndpointState(name="not_served", reason="port 9 is not allowed")) == [
        "not served: port 9 is not allowed; 17 messages wait."
    ]
    assert of(EndpointState(name="paused")) == ["paused; 17 messages wait."]
    assert of(EndpointState(name="delivering")) == [], "its room is used up for a moment"


def test_a_disk_that_fills_needs_attention() -> None:
    def with_disk(free: int) -> Figures:
        return figures(gauges={"disk_size_bytes": 1_000, "disk_free_bytes": free})

    assert texts(with_disk(200)) == []
    assert texts(with_disk(190)) == ["The disk of the data directory is 81% full."]
    assert disk_share(figures()) is None
    assert texts(figures()) == []


def test_schedules_that_did_not_fire_need_attention() -> None:
    assert texts(figures(gauges={"schedules_in_trouble": 0})) == []
    (text,) = texts(figures(gauges={"schedules_in_trouble": 2}))
    assert text == "2 schedules have not sent what was due; the list of schedules says why."


def test_the_worst_comes_first() -> None:
    found = figures(
        gauges={"oldest_overdue_seconds": 7.0, "sync_running_seconds": 2.0},
        counters={"clock_set_back": 1, "messages_damaged": 1, "full_disk_waits": 3},
        groups=[group(backlog=4, subscribers=0)],
    )
    tones = [one.tone for one in remarks(found, None)]
    assert tones == ["bad"] * 4 + ["warn"] * 2
    assert remarks(found, None)[-1].name == "orders / g"


def test_more_dead_letters_need_attention() -> None:
    before, now = figures(1_000, groups=[group(dead=3)]), figures(121_000, groups=[group(dead=5)])
    (remark,) = remarks(now, compared(before, now))
    assert remark.text == "2 more dead letters within the last 2 minutes."


def test_what_comes_due_is_counted_once() -> None:
    forecast = [Forecast("", 0, timers=9, messages=messages) for messages in (1, 3, 3, 8)]
    wheel = Wheel(now_ms=0, tick_ms=0, levels=[], forecast=forecast)
    found = coming(wheel, 10)
    assert [one.messages for one in found] == [1, 2, 0, 5, 2]
    assert [one.label for one in found] == [*HORIZONS, "later"]
