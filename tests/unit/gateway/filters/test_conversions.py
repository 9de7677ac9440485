"""What Java reads out of texts."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.run.cases import table
from tickwheel_gateway.filters.conversions import (
    NotConvertible,
    double_key,
    to_boolean,
    to_double,
    to_integer,
)

LONG = "9223372036854775807"


@table(
    ("text", "bits", "value"),
    [
        *[("5", 32, 5), ("+5", 32, 5), ("-5", 32, -5), ("-0", 32, 0), ("007", 32, 7)],
        *[("2147483647", 32, 2**31 - 1), ("-2147483648", 32, -(2**31)), ("2147483648", 64, 2**31)],
        *[(LONG, 64, 2**63 - 1), (f"-{2**63}", 64, -(2**63)), ("+" + "0" * 5_000 + LONG, 64, 2**63 - 1)],
        *[("٥", 32, 5), ("-１２", 32, -12)],
    ],
)
def test_integers(text: str, bits: int, value: int) -> None:
    assert to_integer(text, bits) == value


@table(
    "text",
    [
        *["", "+", "-", "--5", " 5", "5 ", "5.0", "1e3", "1_0", "0x5", "5L", "five", "²", "\U0001d7d3"],
        *["2147483648", "-2147483649", "9" * 100, "9" * 5_000],
    ],
)
def test_no_integer(text: str) -> None:
    with pytest.raises(NotConvertible):
        to_integer(text, 32)


@table("text", [str(2**63), str(-(2**63) - 1)])
def test_no_long(text: str) -> None:
    with pytest.raises(NotConvertible):
        to_integer(text, 64)


@table(
    ("text", "value"),
    [
        *[("5", 5.0), ("-5.5", -5.5), ("5.", 5.0), (".5", 0.5), ("+1e3", 1e3), ("1E-3", 1e-3)],
        *[("\t5 \x01", 5.0)],
        *[("5f", 5.0), ("5.5D", 5.5), ("1e3F", 1e3), ("0x1p3", 8.0), ("-0X.8P+3d", -4.0), ("0x1.p-1", 0.5)],
        *[("Infinity", math.inf), ("-Infinity", -math.inf), ("1e400", math.inf), ("0x1p9999", math.inf)],
        *[("-0x1p9999", -math.inf), ("1e-400", 0.0), ("0x1p-9999", 0.0), ("0x0p" + "9" * 99, 0.0)],
    ],
)
def test_doubles(text: str, value: float) -> None:
    assert to_double(text) == value


@table(
    "text",
    [
        *["", " ", "+", ".", "e5", "5e", "5e+", "1_0", "1,5", "5L", "5ff", "nan", "inf", "infinity", "NaNf"],
        *["0x5", "0x.p1", "0xp1", "--5", "٥", "\xa05", "\u20035", "1 0"],
        *["0" * 16_000 + "x", "0x" + "0" * 16_000],  # which are looked at once
    ],
)
def test_no_double(text: str) -> None:
    with pytest.raises(NotConvertible):
        to_double(text)


@table("text", ["NaN", "-NaN", "+NaN", " NaN "])
def test_not_a_number_is_a_double(text: str) -> None:
    assert math.isnan(to_double(text))


def test_order_of_doubles() -> None:
    """``Double.compareTo``."""
    texts = ["-Infinity", "-1", "-4.9e-324", "-0.0", "0.0", "4.9e-324", "1", "Infinity", "NaN"]
    keys = [double_key(to_double(text)) for text in texts]
    assert sorted(keys) == keys
    assert len(set(keys)) == len(keys)
    assert double_key(math.nan) == double_key(-math.nan)


@table(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("tRuE", True), ("true ", False), ("1", False), ("", False)],
)
def test_booleans(text: str, value: bool) -> None:
    assert to_boolean(text) is value


@given(st.text() | st.from_regex(r"[+-]?[0-9.eExXpPfFdD]*", fullmatch=True))
def test_nothing_else_is_raised(text: str) -> None:
    for read in (to_double, lambda text: to_integer(text, 32), lambda text: to_integer(text, 64)):
        with contextlib.suppress(NotConvertible):
            read(text)
