"""The figures by which the code is measured as a house stay within their bounds; a bound may only be lowered."""

from __future__ import annotations

import ast

import pytest

from tests.support.run.figures import House, look, look_at

PUBLISHED_BY_HAND = 6
TWINS = 22
LINES_PER_ASSERTION = 60

MAY_TAKE_POSITIONS = {
    "broker/tickwheel_broker/sharedlog/kafka/group.py KafkaGroup": "one tuple names its place",
    "broker/tickwheel_broker/sharedlog/kafka/log.py KafkaLog": "one tuple names its place",
    "web/tickwheel_web/dashboard/place.py Place": "one tuple has what a page needs",
    "tickwheel/client/client.py Client": "public",
    "tickwheel/client/consumer/subscription.py Subscription": "public",
    "tickwheel/dramatiq/broker.py TickwheelBroker": "public",
    "tickwheel/outbox/relay/relay.py Relay": "public",
    "tickwheel/taskiq/broker.py TickwheelBroker": "public",
    "tickwheel/testing/push.py Push": "public",
}

OFFENCES = """
class Part:
    def __init__(self, a, b, c, *, d=1, e=2): pass
class Wrong(Exception):
    def __init__(self, a, b, c, d, e): pass
class Left:
    a: int; b: int; c: int; d: int; e: int; f: int
class Right:
    a: int; b: int; c: int; d: int; e: int; f: int; g: int; h: int
make(1, 2, 3, 4, 5, 6, 7)
lib.tw_make(1, 2, 3, 4, 5, 6, 7)
self._publish()
assert True
"""


@pytest.fixture(scope="module")
def house() -> House:
    return look()


def test_no_call_is_so_long_that_its_arguments_can_be_mixed_up(house: House) -> None:
    assert house.long_calls == []


def test_long_constructors_take_keywords(house: House) -> None:
    assert set(house.constructors) == MAY_TAKE_POSITIONS.keys()


def test_changes_are_published_at_few_places(house: House) -> None:
    assert len(house.published_by_hand) <= PUBLISHED_BY_HAND


def test_nouns_are_written_once(house: House) -> None:
    assert len(house.twins()) <= TWINS


def test_the_engine_asserts_what_it_relies_on(house: House) -> None:
    assert house.lines_per_assertion("timerlog") <= LINES_PER_ASSERTION


def test_offences_are_found() -> None:
    planted = House()
    look_at(planted, "broker", "broker/planted.py", ast.parse(OFFENCES))
    assert planted.long_calls == ["broker/planted.py:10 make"]
    assert planted.constructors == ["broker/planted.py Part"]
    assert len(planted.published_by_hand) == 1
    assert planted.twins() == ["broker/planted.py:Left broker/planted.py:Right"]
    assert planted.assertions["broker"] == 1
