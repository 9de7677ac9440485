"""The figures by which the code is measured as a house stay within their bounds; a bound may only be lowered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.run.figures import House, look

ROOT = Path(__file__).resolve().parents[2]

PUBLISHED_BY_HAND = 6
TWINS = 117
LINES_PER_ASSERTION = 279

MAY_TAKE_POSITIONS = {
    "KafkaGroup": "tests and nodes name its place by one tuple",
    "KafkaLog": "tests and nodes name its place by one tuple",
    "Place": "what a page needs is one tuple",
    "Push": "public: tickwheel.testing.Push",
    "Relay": "public: tickwheel.outbox.Relay",
    "Subscription": "public: its attributes are, and it is made in one place",
    "TickwheelBroker": "public: tickwheel.dramatiq and tickwheel.taskiq",
}


@pytest.fixture(scope="module")
def house() -> House:
    return look()


def test_no_call_is_so_long_that_its_arguments_can_be_mixed_up(house: House) -> None:
    assert house.long_calls == []


def test_long_constructors_take_keywords(house: House) -> None:
    public = set(
        re.findall(r"^name tickwheel\.(\w+)$", (ROOT / "tests/recorded/names.txt").read_text(), re.M)
    )
    found = {line.rpartition(" ")[2] for line in house.constructors}
    assert found - public - MAY_TAKE_POSITIONS.keys() == set()
    assert MAY_TAKE_POSITIONS.keys() - found == set(), "exceptions that are no longer needed"


def test_changes_are_published_at_few_places(house: House) -> None:
    assert len(house.published_by_hand) <= PUBLISHED_BY_HAND


def test_nouns_are_written_once(house: House) -> None:
    assert len(house.twins()) <= TWINS


def test_the_engine_asserts_what_it_relies_on(house: House) -> None:
    assert house.lines_per_assertion("timerlog") <= LINES_PER_ASSERTION
