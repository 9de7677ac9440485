"""What a reader sees, and that names of topics are looked at only where his rights depend on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.run.cases import table
from tickwheel.arrow.predicates import Predicate
from tickwheel.errors import Forbidden
from tickwheel.protocol.grants import Granted, parse_grants
from tickwheel_flight.rights import Sight
from timerlog.readers.describe import Offline


class Topics:
    """Counts how often it is gone through."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.walks = 0

    def __iter__(self) -> Any:
        self.walks += 1
        return (SimpleNamespace(name=name) for name in self.names)


def sight(topics: Topics, grants: tuple[str, ...] | None, *filters: Predicate) -> Sight:
    offline = cast(Offline, SimpleNamespace(description=SimpleNamespace(topics=topics)))
    granted = Granted(None if grants is None else parse_grants(grants))
    return Sight(granted, offline, filters)


@table(
    ("grants", "columns", "walks"),
    [
        (None, ("id", "body"), 0),
        (("query:*", "consume:*"), ("id", "body"), 0),
        (("query:*",), ("id", "key"), 0),
        (("query:*",), ("id", "body"), 1),
        (("query:a",), ("id", "key"), 1),
    ],
)
def test_names_are_looked_at_where_rights_depend_on_them(
    grants: tuple[str, ...] | None, columns: tuple[str, ...], walks: int
) -> None:
    topics = Topics("b", "a")
    seen = sight(topics, grants)
    hidden = grants is not None and "consume:*" not in grants
    expected = tuple(name for name in columns if not (hidden and name == "body"))
    assert seen.columns(columns, are_chosen=False) == expected
    sees_all = grants is None or "query:*" in grants
    assert seen.predicates == ([] if sees_all else [Predicate("topic", "is_in", ["a"])])
    assert topics.walks == walks


def test_the_first_topic_whose_bodies_are_hidden_is_named() -> None:
    topics = Topics("c", "b", "a")
    with pytest.raises(Forbidden, match="'b' may not be consumed"):
        sight(topics, ("query:*", "consume:a")).columns(("body",), are_chosen=True)
    passing = sight(topics, ("query:*", "consume:a"), Predicate("topic", "equal", "a"))
    assert passing.columns(("body",), are_chosen=True) == ("body",)
