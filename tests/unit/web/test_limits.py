"""Limits of what may be held open at a time."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tickwheel_web.limits import MAX_POLLS_PER_TOKEN, MAX_STREAMS, Limit, limits_of
from tickwheel_web.problems import Refused, answer_to


def test_so_many_of_each_key() -> None:
    limit = Limit("polls", per_key=2)
    with limit.hold("a"), limit.hold("b"):
        with limit.hold("a"):
            with pytest.raises(Refused, match=r"This token has 2 polls at this moment"), limit.hold("a"):
                pytest.fail("it was refused")
            with limit.hold("b"):
                assert len(limit) == 4
        with limit.hold("a"):
            assert len(limit) == 3
    assert len(limit) == 0


def test_so_many_in_all() -> None:
    limit = Limit("streams", in_all=2)
    told = pytest.raises(Refused, match=r"There are 2 streams at this moment")
    with limit.hold("a"), limit.hold("b"), told, limit.hold("c"):
        pytest.fail("it was refused")
    with limit.hold("c"):
        assert len(limit) == 1


def test_the_place_of_one_that_failed_is_free_again() -> None:
    limit = Limit("polls", per_key=1)
    for _ in range(3):
        with pytest.raises(RuntimeError), limit.hold("a"):
            raise RuntimeError
    assert len(limit) == 0


def test_nothing_is_remembered_of_keys_that_hold_nothing() -> None:
    limit = Limit("polls", per_key=1)
    for key in range(100):
        with limit.hold(key), pytest.raises(Refused), limit.hold(key):
            pytest.fail("it was refused")
    assert not limit._held


def test_a_refusal_says_when_to_come_back() -> None:
    limit = Limit("polls", per_key=1)
    with limit.hold("a"), pytest.raises(Refused) as refused, limit.hold("a"):
        pytest.fail("it was refused")
    answer = answer_to(refused.value)
    assert (answer.status_code, refused.value.code) == (429, "too_many_polls")
    assert answer.headers["retry-after"] == "1"
    assert b'"retryable":true' in answer.body


def test_the_limits_of_an_application() -> None:
    limits = limits_of()
    with ExitStack() as stack:
        for _ in range(MAX_POLLS_PER_TOKEN):
            stack.enter_context(limits.polls.hold("a"))
        for number in range(MAX_STREAMS):
            stack.enter_context(limits.streams.hold(number))
        stack.enter_context(limits.polls.hold("b"))
        for limit in (limits.polls, limits.streams):
            with pytest.raises(Refused):
                stack.enter_context(limit.hold("a"))
