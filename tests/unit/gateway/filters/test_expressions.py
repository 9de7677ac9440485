"""Which messages a filter in SQL wants; and the filters that are kept."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rocketmq.filter_pairs import NAMES, VALUES, Pair, stored
from tests.support.run.cases import table
from tickwheel_gateway.filters import conversions, expressions, syntax, tags, tokens
from tickwheel_gateway.filters.expressions import MAX_BYTES, Filters, FilterType, compile_filter
from tickwheel_gateway.wire.codes import Code, Refused

KNOWN_DIVERGENCES: dict[str, str] = {}
"""Expressions that RocketMQ answers otherwise, each with the reason. One that is no longer needed fails too."""
PAIRS = list(stored())
TAKEN = sorted({pair.expression for pair in PAIRS if pair.answer != "E"})


def wants(text: str, tag: str | None = None, **properties: str) -> bool:
    return compile_filter(FilterType.SQL, text).matches(tag, properties)


def answer(pair: Pair) -> str:
    properties = dict(pair.properties)
    tag = properties.pop("TAGS", None)
    try:
        return "T" if compile_filter(FilterType.SQL, pair.expression).matches(tag, properties) else "F"
    except Refused:
        return "E"


def test_as_rocketmq_itself() -> None:
    assert len(PAIRS) == 20_000
    different = [pair for pair in PAIRS if answer(pair) != pair.answer]
    assert [pair for pair in different if pair.expression not in KNOWN_DIVERGENCES] == []
    assert {pair.expression for pair in different} == set(KNOWN_DIVERGENCES)


@table(
    ("text", "value", "wanted"),
    [
        # A text becomes what it is compared with.
        *[("a = 5", "5", True), ("a = 5", "+05", True), ("a = 5", "5.0", False), ("a <> 5", "5.5", False)],
        *[("a <> 5", "6", True), ("5 < a", "6", True), ("a >= -5", "-5", True)],
        *[("a > 5", "3000000000", False)],
        *[("a > 2147483648", "3000000000", True), ("a < 2147483648", "5", True)],
        *[("a > 5.0", "3000000000", True)],
        *[("a = 5.0", "5", True), ("a > 5.5", " 6 ", True), ("a > 5.5", "0x1p3", True)],
        *[("a > 5.5", "NaN", True)],
        *[("a = TRUE", "tRuE", True), ("a = TRUE", "yes", False), ("a = FALSE", "yes", True)],
        *[("TRUE = a", "true", False)],
        *[("a = '5'", "5", True), ("a = '5'", "05", False), ("a = a", "x", True), ("a < a", "x", False)],
        *[("a <= a", "5", True), ("a = 'it''s'", "it's", True), ("a = ''", "", True)],
        *[("a BETWEEN 1 AND 5", "5", True), ("a BETWEEN 1 AND 5", "6", False)],
        *[("a NOT BETWEEN 1 AND 5", "6", True)],
        *[("a NOT BETWEEN 5 AND 1", "3", True), ("a BETWEEN 1 AND 5", "x", False)],
        *[("5 BETWEEN 1 AND a", "5", True)],
        *[("a IN ('x', 'y')", "y", True), ("a IN ('x', 'y')", "Y", False), ("a NOT IN ('x')", "y", True)],
        *[("a CONTAINS 'b'", "abc", True), ("a STARTSWITH 'ab'", "abc", True)],
        *[("a ENDSWITH 'bc'", "abc", True)],
        *[("a NOT CONTAINS 'b'", "abc", False), ("a NOT STARTSWITH 'b'", "abc", True)],
        *[("a NOT ENDSWITH 'b'", "b", False)],
        *[("a CONTAINS ''", "abc", False), ("a NOT CONTAINS ''", "abc", False)],
        *[("'abc' CONTAINS 'b'", "", True)],
        # A name as a condition is false where the property is there, whatever it says.
        *[("a", "true", False), ("NOT a", "true", True), ("NOT a = 1", "2", False)],
        *[("NOT a = TRUE", "2", True)],
        *[("NOT (a = 1)", "2", True), ("NOT a CONTAINS 'x'", "y", False), ("-a IS NULL", "5", True)],
        # Conditions among other values.
        *[("(a = 1) = TRUE", "1", True), ("a = (a = 'true')", "true", True), ("(a = 1) = 1", "1", False)],
        *[("(a = '1') = 'true'", "1", False), ("5 > 3", "", True), ("1 = TRUE", "", False)],
        *[("'true' = TRUE", "", True)],
        *[("9007199254740993 = 9007199254740992.0", "", True), ("TRUE", "", True)],
        *[("NULL IS NULL", "", True)],
        # What fails makes the whole fail, unless it is not evaluated.
        *[("a > 5 OR TRUE", "x", False), ("TRUE OR a > 5", "x", True), ("NOT (FALSE AND a > 5)", "x", True)],
        *[("NULL OR a > 5", "x", False), ("NOT (a > 5)", "x", False), ("(a > 5) CONTAINS ''", "x", False)],
        *[("NOT ((a > 5) CONTAINS '')", "x", True), ("- (a > 5) IS NULL", "x", False)],
        *[("- (a > 5) IS NULL", "6", True)],
        *[("b < - (a > 5) IS NULL", "x", True), ("b > a IS NULL", "x", True)],
        *[("(b > a) IS NULL", "x", True)],
    ],
)
def test_with_a_property(text: str, value: str, wanted: bool) -> None:
    assert wants(text, a=value) is wanted


@table(
    ("text", "truth"),
    [
        *[("a = 1", None), ("1 = a", False), ("a <> 1", None), ("1 <> a", True), ("a = b", True)],
        *[("a = c", None)],
        *[("c = a", False), ("a > 1", None), ("1 > a", None), ("a < b", None), ("a < c", None)],
        *[("c < a", None)],
        *[("a BETWEEN 1 AND 2", None), ("a NOT BETWEEN 1 AND 2", None), ("a IN ('x')", None)],
        *[("a NOT IN ('x')", None)],
        *[("a IS NULL", True), ("a IS NOT NULL", False), ("c IS NULL", False), ("c IS NOT NULL", True)],
        *[("a CONTAINS 'x'", False), ("a NOT CONTAINS 'x'", False), ("a NOT STARTSWITH 'x'", False)],
        *[("a NOT ENDSWITH 'x'", False), ("a", None), ("NOT a", None), ("c", False), ("NOT c", True)],
        *[("NULL AND TRUE", None), ("NULL AND FALSE", False), ("FALSE AND NULL", False)],
        *[("NULL AND NULL", None)],
        *[("NULL OR TRUE", True), ("TRUE OR NULL", True), ("NULL OR FALSE", None), ("FALSE OR NULL", None)],
        *[("NOT NULL", None), ("TRUE AND TRUE AND NULL", None), ("NULL AND TRUE AND FALSE", False)],
        *[("NULL OR FALSE OR TRUE", True), ("-NULL = a", True), ("-'x' < 5", None), ("a = TRUE", None)],
        *[("TRUE = a", False)],
    ],
)
def test_three_truths(text: str, truth: bool | None) -> None:
    """Neither ``a`` nor ``b`` is there, and ``c`` is ``x``: whether it is true, and whether it is unknown."""
    assert wants(text, c="x") is (truth is True)
    assert wants(f"({text}) IS NULL", c="x") is (truth is None)


def test_tags_are_the_tag() -> None:
    assert wants("TAGS = 't'", "t")
    assert wants("TAGS IS NULL AND tags IS NULL")
    assert not wants("TAGS = 't'", "T")
    assert wants(
        "KEYS CONTAINS 'k2' AND UNIQ_KEY = 'id' AND __SHARDINGKEY = 'g'",
        KEYS="k1 k2",
        UNIQ_KEY="id",
        __SHARDINGKEY="g",
    )


@given(
    st.sampled_from(TAKEN),
    st.none() | st.text(),
    st.dictionaries(st.sampled_from(NAMES), st.text() | st.sampled_from(VALUES)),
)
def test_matching_never_raises(text: str, tag: str | None, properties: dict[str, str]) -> None:
    assert compile_filter(FilterType.SQL, text).matches(tag, properties) in {True, False}


def test_filters_are_kept() -> None:
    filters = Filters(most=2)
    first = filters.get(FilterType.SQL, "a")
    assert filters.get(FilterType.TAG, "a") is not first
    assert filters.get(FilterType.SQL, "a") is first
    filters.get(FilterType.SQL, "b")  # in place of the tag
    assert filters.get(FilterType.SQL, "a") is first
    assert len(filters) == 2
    filters.get(FilterType.SQL, "c")
    filters.get(FilterType.SQL, "d")
    assert filters.get(FilterType.SQL, "a") is not first


def test_refusals_are_kept_and_said_alike() -> None:
    filters = Filters()
    texts = []
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            filters.get(FilterType.SQL, "a =")
        assert caught.value.code is Code.ILLEGAL_FILTER_EXPRESSION
        texts.append(caught.value.text)
    assert len(filters) == 1
    assert (
        texts[0]
        == texts[1]
        == "illegal filter expression: the end at character 4 is not what should be there"
    )


def test_long_texts_leave_less_room() -> None:
    filters = Filters(most_characters=40_000)
    for letter in "abc":
        filters.get(FilterType.TAG, letter * MAX_BYTES)
    assert len(filters) == 2
    with pytest.raises(Refused):
        filters.get(FilterType.TAG, "a" * (MAX_BYTES + 1))
    assert len(filters) == 2


@table("module", [conversions, expressions, syntax, tags, tokens])
def test_examples(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.failed == 0
    assert found.attempted > 0
