"""Histograms: bounds are inclusive and nothing is lost."""

from __future__ import annotations

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
    for value in values:
        histogram.observe(value)
    cumulative = histogram.counts.cumsum().tolist()
    assert cumulative[:-1] == [sum(value <= bound for value in values) for bound in bounds]
    assert (histogram.count, histogram.sum) == (len(values), sum(values))


def test_the_bounds_of_lateness_rise() -> None:
    assert list(LATENESS_MS) == sorted(set(LATENESS_MS))
