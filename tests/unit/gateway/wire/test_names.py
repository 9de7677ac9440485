"""Names of RocketMQ and of Tickwheel."""

from __future__ import annotations

import doctest
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.run.cases import table
from tickwheel.protocol.limits import NAME_PATTERN
from tickwheel_gateway.wire import handles, messages, names
from tickwheel_gateway.wire.codes import Code, Refused
from tickwheel_gateway.wire.names import group_of, theirs, topic_of

THEIRS = st.from_regex(re.compile(r"[%A-Za-z0-9_-]{1,40}"), fullmatch=True)
FORBIDDEN = ("rmq%", "%%_", "%%-")


@table("module", [handles, messages, names])
def test_examples_in_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@given(THEIRS.filter(lambda name: not name.startswith(FORBIDDEN)))
def test_there_and_back(name: str) -> None:
    assert NAME_PATTERN.fullmatch(topic_of(name))
    assert topic_of(name) == group_of(name)
    assert theirs(topic_of(name)) == name


@given(THEIRS, THEIRS)
def test_two_names_never_become_one(one: str, other: str) -> None:
    if not (one.startswith(FORBIDDEN) or other.startswith(FORBIDDEN)):
        assert (topic_of(one) == topic_of(other)) == (one == other)


@given(st.from_regex(re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}"), fullmatch=True))
def test_topics_of_other_programs_can_be_reached(name: str) -> None:
    if not name.startswith("rmq."):
        assert topic_of(theirs(name)) == name


@table(
    "name",
    ["", " ", "a b", "a.b", "ä", "a|b", "a\n", "rmq%x", "%%_x", "%%-", "x" * 256],
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(Refused) as topic:
        topic_of(name)
    assert topic.value.code == Code.ILLEGAL_TOPIC
    with pytest.raises(Refused) as group:
        group_of(name)
    assert group.value.code == Code.ILLEGAL_CONSUMER_GROUP


def test_the_longest() -> None:
    assert len(topic_of("x" * 114)) == 114
    assert len(group_of("x" * 128)) == 128
    assert len(group_of("%" + "x" * 124)) == 128
    for name in ("x" * 115, "x" * 128, "%" + "x" * 111):
        with pytest.raises(Refused):
            topic_of(name)
    for name in ("x" * 129, "%" + "x" * 125):
        with pytest.raises(Refused):
            group_of(name)
