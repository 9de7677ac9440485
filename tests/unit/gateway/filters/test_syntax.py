"""How a filter in SQL is read, and what is refused."""

from __future__ import annotations

import contextlib
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rocketmq.filter_pairs import KEYWORDS, NAMES, REFUSED_NUMBERS, SYMBOLS
from tests.support.run.cases import table
from tickwheel_gateway.filters.expressions import MAX_BYTES, FilterType, compile_filter
from tickwheel_gateway.filters.operators import MAX_DEPTH
from tickwheel_gateway.filters.syntax import parse
from tickwheel_gateway.filters.tree import Number, Ordered, Width
from tickwheel_gateway.wire.codes import Code, Refused

WORDS = st.sampled_from(
    (*KEYWORDS, *SYMBOLS, *NAMES, *REFUSED_NUMBERS, "5", "5.5", "'x'", "''", "--", "/*", "*/", "\n")
)
MOST_S = 5.0
"""Far more than any takes; what takes the square of its length takes longer."""


@table(
    ("text", "same"),
    [
        ("a = 1 OR b = 2 AND c = 3", "(a = 1) OR ((b = 2) AND (c = 3))"),
        ("a = 1 AND b = 2 OR c = 3", "((a = 1) AND (b = 2)) OR (c = 3)"),
        ("NOT a = 1", "(NOT a) = 1"),
        ("NOT NOT a", "NOT (NOT a)"),
        ("a = b > 1", "a = (b > 1)"),
        ("a = b IN ('x') = TRUE", "(a = (b IN ('x'))) = TRUE"),
        ("a = 1 = TRUE", "(a = 1) = TRUE"),
        ("a <> b IS NULL", "(a <> b) IS NULL"),
        ("a <> b", "(NOT (a = b))"),
        ("a IS NOT NULL", "NOT (a IS NULL)"),
        ("a IS NULL IS NULL", "(a IS NULL) IS NULL"),
        ("a CONTAINS 'x' CONTAINS 'y'", "(a CONTAINS 'x') CONTAINS 'y'"),
        ("a BETWEEN 1 AND 2 AND b", "(a BETWEEN 1 AND 2) AND b"),
        ("- a < 1", "(-a) < 1"),
        ("+a IN ('x')", "a IN ('x')"),
        ("((a)) = + 1", "a=1"),
        ("a in('x')oR nOt b", "a IN ('x') OR NOT b"),
        ("a = 5L", "a = 5"),
        ("a = 5. AND b = .5", "a = 5.0 AND b = 0.5"),
        ("a = 1e3", "a = 1000.0"),
        # Comments; a line comment without a line end is two minus signs.
        ("a -- b\n= /* ' */ 1 /***/", "a = 1"),
        ("a = -- b\r1", "a = 1"),
        ("a < --5", "a < - (- 5)"),
        # What follows a complete condition.
        ("a = 1) OR b = 2", "a = 1"),
        ("a = 1 b = 'open", "a = 1"),
        ("a LIKE 'x'", "a"),
        ("a IS NULL < 1", "a IS NULL"),
        ("a = 0L", "a = 0"),
        ("a = 007", "a = 0"),
        ("a = 1 -- no line end", "a = 1"),
    ],
)
def test_read_alike(text: str, same: str) -> None:
    assert parse(text) == parse(same)


@table(
    "text",
    [
        *["", " ", "-- a\n", "/* a */", "AND", "a =", "= 1", "a = = 1", "a AND", "OR a", "(a", "a = ("],
        *["()", "NOT", "a NOT"],
        *["a != 1", "a == 1", "a ? 1", "a = 1 ?", 'a = "x"', "a = 'x", "a /* b", "a # b", "é = 1"],
        *["a.b = 1", "K > 1 \xa0"],
        *["a = 1 IS", "a IS 1", "a IS NOT 1", "a NOT = 1", "a NOT NULL", "a NOT LIKE 'x'", "a\x0b= 1"],
        # NULL is compared by IS only.
        *["a = NULL", "NULL = a", "a <> NULL", "a = (NULL)", "a = + NULL", "a < NULL"],
        *["a BETWEEN 1 AND NULL"],
        # Order is for numbers.
        *["a > 'x'", "'x' > a", "a > TRUE", "TRUE < 1", "a > (b = 1)", "NOT a > 1", "a > 1 > 2"],
        *["a BETWEEN 'x' AND 'y'", "a BETWEEN TRUE AND 2", "a NOT BETWEEN 1 AND 'x'", "'x' BETWEEN 1 AND 2"],
        *["(a = 1) BETWEEN 1 AND 2", "a BETWEEN 1", "a BETWEEN 1 OR 2", "a BETWEEN (b = 1) AND 2"],
        *["a BETWEEN 2 AND 1", "a BETWEEN 1.5 AND 1", "a BETWEEN 5 AND 1.5", "1 BETWEEN 3000000000 AND 5"],
        # IN is for names and texts.
        *["5 IN ('x')", "'x' IN ('x')", "-a IN ('x')", "NOT a IN ('x')", "(a = 1) IN ('x')"],
        *["a IN ('x') IN ('x')"],
        *["a IN ()", "a IN 'x'", "a IN (1)", "a IN (b)", "a IN ('x',)", "a IN ('x' 'y')", "a IN ('x'"],
        *["a IN (TRUE)"],
        *["a CONTAINS b", "a CONTAINS 1", "a CONTAINS", "a CONTAINS ('x')", "CONTAINS 'x'"],
        *["a STARTSWITH NULL"],
        # A value is no condition.
        *["5", "'x'", "-5", "-a", "5.5", "a AND 5", "5 OR a", "NOT 5", "NOT 'x'", "NOT -a", "(5)"],
        *["a = 1 AND 'x'"],
        # TRUE at the left of another kind of literal.
        *["TRUE = 1", "FALSE = 'x'", "TRUE <> 5.5"],
        # Numbers out of range.
        *["a = 9223372036854775808", "a = -9223372036854775808", "a = 0.0", "a = 0e1", "a = 1e309"],
        *["a = 1e-400"],
        *["a = " + "1" * 5_000],
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(Refused) as caught:
        compile_filter(FilterType.SQL, text)
    assert caught.value.code is Code.ILLEGAL_FILTER_EXPRESSION
    assert caught.value.text.startswith("illegal filter expression: ")


@table(
    "text",
    [
        *["TRUE", "FALSE", "NULL", "NOT NULL", "a", "(a)", "+a", "$a", "_", "a1$", "notx", "inn"],
        *["TRUE = FALSE", "1 = TRUE"],
        *["a = - NULL", "NULL IS NULL", "5 IS NOT NULL", "a NOT BETWEEN 2 AND 1", "a BETWEEN -1 AND -2"],
        *["5 > 3"],
        *["a BETWEEN b AND 1", "'x' = 1", "'x' = 'y'", "5 CONTAINS 'x'", "NOT a CONTAINS 'x'"],
        *["(a = 1) = (b = 2)"],
        *["a = ''", "a = ''''", "a IN ('it''s', '')", "a = 9223372036854775807", "-'x' < 1", "- (a = 1) < 1"],
    ],
)
def test_taken(text: str) -> None:
    compile_filter(FilterType.SQL, text)


@table(
    ("text", "number"),
    [
        ("0", Number(0, Width.INT)),
        ("2147483647L", Number(2**31 - 1, Width.INT)),
        ("2147483648", Number(2**31, Width.LONG)),
        ("9223372036854775807l", Number(2**63 - 1, Width.LONG)),
        ("5.", Number(5.0, Width.DOUBLE)),
        (".5e+1", Number(5.0, Width.DOUBLE)),
        ("007e0", Number(7.0, Width.DOUBLE)),
    ],
)
def test_numbers(text: str, number: Number) -> None:
    read = parse(f"a > {text}")
    assert isinstance(read, Ordered)
    assert read.right == number


@table(
    ("before", "after"),
    [
        ("(", ")"),
        ("NOT ", ""),
        ("NOT (", ")"),
        ("- ", " = 1"),
        ("+", ""),
        ("(b OR ", ")"),
        ("", " IS NULL"),
        ("", " = b"),
    ],
)
def test_depth(before: str, after: str) -> None:
    """Each of these is one deeper, or two: half of what is allowed is well, and twice that is refused."""
    once = after if after == " = 1" else ""
    many = "" if once else after
    compile_filter(FilterType.SQL, before * (MAX_DEPTH // 2 - 1) + "a" + many * (MAX_DEPTH // 2 - 1) + once)
    with pytest.raises(Refused, match=f"more than {MAX_DEPTH}"):
        compile_filter(FilterType.SQL, before * (MAX_DEPTH * 2) + "a" + many * (MAX_DEPTH * 2) + once)


def test_the_longest_row_is_not_deep() -> None:
    text = "a = 1" + " OR a = 1" * ((MAX_BYTES - 5) // 9)
    assert compile_filter(FilterType.SQL, text).matches(None, {"a": "1"})
    with pytest.raises(Refused, match="bytes"):
        compile_filter(FilterType.SQL, text + " OR a = 1")
    with pytest.raises(Refused, match="bytes"):
        compile_filter(FilterType.SQL, "a = '" + "é" * (MAX_BYTES // 2) + "'")


@table(
    "part",
    [
        *["(", "NOT ", "-", "+", "--", "/*", "/**/", "--\n", "'", "''", "a''", "0", "1", ".", "1.", "1e"],
        *[" OR a", " AND a=1"],
        *["=a", " IS NULL", " CONTAINS 'x'", ",'x'", "*", " ", "a", "NOT (", "-(", "a BETWEEN "],
        *["a IN (", "\x00", "é"],
    ],
)
@table("head", ["", "a", "a = ", "a = '", "a IN ('x'", "/*", "a = 1."])
def test_hostile(head: str, part: str) -> None:
    """The longest of each kind: neither the recursion limit nor much time."""
    text = head + part * ((MAX_BYTES - 10) // len(part.encode()))
    started = time.process_time()
    for tail in ("", "'", ")", "*/"):
        with contextlib.suppress(Refused):
            compile_filter(FilterType.SQL, text + tail).matches("t", {"a": "1"})
    assert time.process_time() - started < MOST_S


def test_conditions_inside_between_are_evaluated_once() -> None:
    text = "a IS NULL OR " + "- (" * 20 + "a > 5" + ") BETWEEN 1 AND 2" * 20
    started = time.process_time()
    assert not compile_filter(FilterType.SQL, text).matches(None, {"a": "6"})
    assert time.process_time() - started < MOST_S


def test_the_deepest_needs_few_frames() -> None:
    """However deep the one who asks stands already."""
    limit = sys.getrecursionlimit()
    text = "(b = 2 OR " * 31 + "a = 1" + ")" * 31

    def deeper(frames: int) -> bool:
        if frames:
            return deeper(frames - 1)
        return compile_filter(FilterType.SQL, text).matches(None, {"a": "1"})

    assert deeper(limit // 2)


@given(
    st.text(max_size=60)
    | st.lists(WORDS, max_size=12).map(" ".join)
    | st.lists(WORDS, max_size=12).map("".join)
)
def test_anything_is_refused_or_a_filter_that_never_raises(text: str) -> None:
    for filter_type in FilterType:
        try:
            made = compile_filter(filter_type, text)
        except Refused:
            continue
        assert made.matches(None, {"a": "x", "b": "5"}) in {True, False}
