"""The filter by tags."""

from __future__ import annotations

import pytest

from tests.support.run.cases import table
from tickwheel_gateway.filters.expressions import FilterType, compile_filter
from tickwheel_gateway.wire.codes import Code, Refused


@table(
    ("text", "wanted", "unwanted"),
    [
        ("", [None, "a", "*"], []),
        ("*", [None, "a", "*"], []),
        ("a", ["a"], [None, "b", "A", "", "aa"]),
        ("a||b", ["a", "b"], [None, "a||b", "c"]),
        (" a || b\t||\n", ["a", "b"], [None, " a ", ""]),
        ("||a", ["a"], [None, ""]),
        ("a|b", ["a|b"], ["a", "b"]),
        ("a|||b", ["a", "|b"], ["b"]),
        (" a b ", ["a b"], ["a", "b"]),
        ("\xa0a", ["\xa0a"], ["a"]),  # Java's trim leaves it
        # As in RocketMQ: `*` is a tag unless it stands alone, and blanks are neither all nor a tag.
        (" * ", ["*"], [None, "a"]),
        ("a || *", ["a", "*"], [None, "b"]),
        (" ", [], [None, "", " ", "a"]),
        (" || ", [], [None, "", " ", "a"]),
    ],
)
def test_tags(text: str, wanted: list[str | None], unwanted: list[str | None]) -> None:
    made = compile_filter(FilterType.TAG, text)
    assert [tag for tag in (*wanted, *unwanted) if made.matches(tag, {})] == wanted


@table("text", ["||", "||||", "a" * 20_000])
def test_refused(text: str) -> None:
    with pytest.raises(Refused) as caught:
        compile_filter(FilterType.TAG, text)
    assert caught.value.code is Code.ILLEGAL_FILTER_EXPRESSION


@table("unknown", [0, 3, -1])
def test_a_type_that_is_not_known_is_tag(unknown: int) -> None:
    assert compile_filter(unknown, "a = 1").matches("a = 1", {})
