"""Bulk repair without Spark: when which message is due, and what answers count as."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel import RedeliverResult, RescheduleResult
from tickwheel.spark.repair import MAX_STEPS, step_bounds, step_times_ms, verdict


@given(st.integers(0, 10**9), st.integers(1, 10**10), st.integers(0, 10**7))
def test_a_spread_is_even_and_stays_inside(first_ms: int, spread_ms: int, messages: int) -> None:
    times = step_times_ms(first_ms, spread_ms, messages)
    bounds = step_bounds(messages, len(times))
    assert times[0] == first_ms
    assert times[-1] < first_ms + spread_ms
    assert len(times) <= MAX_STEPS
    gaps = [late - early for early, late in itertools.pairwise([*times, first_ms + spread_ms])]
    assert max(gaps) - min(gaps) <= 1
    assert (bounds[0], bounds[-1]) == (0, messages)
    sizes = [late - early for early, late in itertools.pairwise(bounds)]
    assert max(sizes) - min(sizes) <= 1


def test_one_time_for_all_without_a_spread() -> None:
    assert step_times_ms(7, 0, 1_000) == [7]
    assert step_bounds(1_000, 1) == [0, 1_000]
    assert step_times_ms(7, 100, 4) == [7, 32, 57, 82]


@pytest.mark.parametrize(
    ("answers", "counted"),
    [
        (["rescheduled"], "done"),
        (["already_delivered"], "already_delivered"),
        (["already_delivered", "redelivered", "waiting"], "done"),
        (["already_delivered", "waiting"], "already_delivered"),
        (["already_delivered", "already_acked"], "already_delivered"),
        (["already_acked"], "already_acked"),
        (["already_cancelled"], "rejected"),
        (["expired"], "rejected"),
        (["not_found"], "not_found"),
    ],
)
def test_each_message_counts_once(answers: list[str], counted: str) -> None:
    assert verdict(answers) == counted


def test_every_answer_counts_as_something() -> None:
    for answer in (*RescheduleResult, *RedeliverResult):
        assert verdict([str(answer)])
