"""Waits double between their bounds, whatever the settings and however often a message came."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwheel.outbox.messages.backoff import LATEST_NS, NS_A_MS, wait_bounds_ns
from tickwheel.outbox.messages.settings import MessageSettings

EPOCHS = range(201)
NOW_NS = 1_900_000_000 * 10**9
spans = st.integers(1, 10**15) | st.integers(1, 100_000)


@pytest.mark.promise("V28")
def test_the_documents_table() -> None:
    settings = MessageSettings(ack_wait_ms=30_000, min_backoff_ms=30_000, max_backoff_ms=3_600_000)
    seconds = [
        tuple(one / 1e9 for one in wait_bounds_ns(settings, epoch)) for epoch in (0, 1, 2, 3, 7, 8, 200)
    ]
    assert seconds == [(30, 30), (30, 30), (40, 80), (80, 160), (1280, 2560), (2400, 3600), (2400, 3600)]


@pytest.mark.promise("V29")
@given(ack_wait=spans, low=st.none() | spans, high=st.just(0) | spans)
def test_every_wait_is_inside_of_the_bounds(ack_wait: int, low: int | None, high: int) -> None:
    settings = MessageSettings(ack_wait_ms=ack_wait, min_backoff_ms=low, max_backoff_ms=high)
    bounds = [wait_bounds_ns(settings, epoch) for epoch in EPOCHS]
    # 73 years stand for ever: later times would not fit their column.
    least = min(ack_wait * NS_A_MS, 1 << 61)
    most = min(max(high, ack_wait) * NS_A_MS if high else 1 << 61, 1 << 61)
    assert all(least <= shortest <= longest <= most for shortest, longest in bounds)
    assert NOW_NS + max(longest for _, longest in bounds) <= LATEST_NS
    assert bounds[0] == bounds[1] == (least, least)
    for before, after in pairwise(bounds):
        assert before[0] <= after[0]
        assert before[1] <= after[1]


@given(ack_wait=st.integers(1, 10**6), epoch=st.integers(2, 20))
def test_what_failed_together_is_spread(ack_wait: int, epoch: int) -> None:
    settings = MessageSettings(ack_wait_ms=ack_wait, max_backoff_ms=0)
    shortest, longest = wait_bounds_ns(settings, epoch)
    middle = ack_wait * NS_A_MS << (epoch - 1)
    assert shortest <= middle <= longest
    assert longest - shortest >= middle // 2
