"""An answer of HTTP says what an object of the client does, with the types of the object."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from tickwheel._moments import length, moment, moment_or_none
from tickwheel_web.answers import Answer, answer


class Part(msgspec.Struct, frozen=True):
    name: str


class Found(msgspec.Struct, frozen=True):
    id: int
    created_ms: int
    ended_ms: int
    seen_ms: int | None
    wait_ms: int
    error: str
    parts: list[Part]

    created = moment("created_ms")
    ended = moment_or_none("ended_ms")
    seen = moment_or_none("seen_ms", none=None)
    wait = length("wait_ms")

    @property
    def delays(self) -> list[timedelta]:
        return [self.wait, timedelta(hours=1)]


@answer(Part, fields=("name",))
class ShownPart(Answer, frozen=True):
    """A part."""


@answer(
    Found,
    fields=("id", "topic", "created_at", "ended_at", "seen", "wait", "delays", "why", "parts", "count"),
    nullable=("why", "wait"),
    sources={"why": "error"},
    kinds={"parts": list[ShownPart]},
    computed={"count": (int, lambda found: len(found.parts))},
    given={"topic": str},
)
class Shown(Answer, frozen=True):
    """An answer."""


AT_MS = 1_935_000_060_000
AT = "2031-04-26T20:01:00Z"


def shown(found: Found) -> object:
    return msgspec.json.decode(msgspec.json.encode(Shown.of(found, topic="t")))


def test_an_object_with_everything() -> None:
    found = Found(7, AT_MS, AT_MS, AT_MS, 1_500, "no", [Part("a"), Part("b")])
    assert shown(found) == {
        "id": "7",
        "topic": "t",
        "created_at": AT,
        "ended_at": AT,
        "seen": AT,
        "wait": "1500ms",
        "delays": ["1500ms", "1h"],
        "why": "no",
        "parts": [{"name": "a"}, {"name": "b"}],
        "count": 2,
    }


def test_what_is_empty_or_zero_is_null_only_where_it_may_be() -> None:
    assert shown(Found(0, 0, 0, 0, 0, "", [])) == {
        "id": "0",
        "topic": "t",
        "created_at": "1970-01-01T00:00:00Z",
        "ended_at": None,
        "seen": "1970-01-01T00:00:00Z",
        "wait": None,
        "delays": ["0ms", "1h"],
        "why": None,
        "parts": [],
        "count": 0,
    }
    assert Found(0, 0, 0, None, 0, "", []).seen is None


def test_a_field_that_the_object_lacks() -> None:
    with pytest.raises(TypeError, match="Found has no 'colour'"):
        answer(Found, fields=("id", "colour"))


def test_properties_tell_what_they_are() -> None:
    found = Found(0, AT_MS, 0, None, 90_000, "", [])
    assert (found.created, found.wait) == (datetime(2031, 4, 26, 20, 1, tzinfo=UTC), timedelta(seconds=90))
    assert Found.created.__doc__ == "``created_ms`` as a datetime."
