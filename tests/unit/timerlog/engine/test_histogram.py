"""Histograms: bounds are inclusive, nothing is lost, one by one or all at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timerlog.tables.lateness import LATENESS_MS, Histogram

bounds = st.lists(st.integers(-50, 50), min_size=1, max_size=10, unique=True).map(sorted)
values = st.lists(st.integers(-60, 60), max_size=50)


@given(bounds, values)
def test_each_value_counts_below_the_first_bound_that_it_does_not_pass(
    bounds: list[int], values: list[int]
) -> None:
    histogram = Histogram(bounds)
    histogram.observe_all(np.array(values, np.int64))
    cumulative = histogram.counts.cumsum().tolist()
    assert cumulative[:-1] == [sum(value <= bound for value in values) for bound in bounds]
    assert (histogram.count, histogram.sum) == (len(values), sum(values))


@given(bounds, values)
def test_one_by_one_is_the_same_as_all_at_once(bounds: list[int], values: list[int]) -> None:
    one_by_one, at_once = Histogram(bounds), Histogram(bounds)
    for value in values:
        one_by_one.observe(value)
    for part in np.array_split(np.array(values, np.int64), 3):
        at_once.observe_all(part)
    assert (one_by_one.counts == at_once.counts).all()
    assert one_by_one.sum == at_once.sum


def test_the_bounds_of_lateness_rise() -> None:
    assert list(LATENESS_MS) == sorted(set(LATENESS_MS))
