"""Human times and sizes: what is understood, what is refused and with what advice, and how they are printed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.run.cases import table
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.protocol.readable import format_bytes, format_duration
from tickwheel_cli.shared.times import format_moment, moment_to_ms, ms_to_moment, parse_duration, parse_moment


@table(
    ("text", "expected"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("5s", timedelta(seconds=5)),
        ("2h30m", timedelta(hours=2, minutes=30)),
        ("1.5d", timedelta(hours=36)),
        ("1w", timedelta(days=7)),
        ("1d 2h", timedelta(hours=26)),
        ("1.0001s", timedelta(milliseconds=1_001)),
        ("0", timedelta(0)),
    ],
)
def test_durations(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@table("text", ["", "5", "s", "-5s", "5 parsecs", "5s later", "1e3s", "9999999w"])
def test_refused_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|9999"):
        parse_duration(text)


def test_times_need_an_offset_and_may_have_any() -> None:
    expected = datetime(2031, 5, 1, 9, tzinfo=timezone(timedelta(hours=2)))
    assert parse_moment("2031-05-01T09:00+02:00") == expected
    assert parse_moment("2031-05-01T07:00Z") == expected
    assert parse_moment(" 2031-05-01 07:00:00.000+00:00 ") == expected


@table(
    ("text", "more_ms"),
    [
        ("2031-05-01T07:00:00.000000001Z", 1),
        ("2031-05-01T07:00:00.0010Z", 1),
        ("2031-05-01T06:59:59.9999999Z", 0),
    ],
)
def test_nothing_of_a_time_is_lost(text: str, more_ms: int) -> None:
    assert moment_to_ms(parse_moment(text)) == moment_to_ms(datetime(2031, 5, 1, 7, tzinfo=UTC)) + more_ms


def test_a_leap_second_is_the_second_after_it() -> None:
    assert parse_moment("2016-12-31T23:59:60Z") == datetime(2017, 1, 1, tzinfo=UTC)


def test_a_naive_time_is_refused_with_a_suggestion_that_works() -> None:
    with pytest.raises(ValueError, match="does not say its UTC offset") as refused:
        parse_moment("2031-05-01T09:00")
    suggestion = str(refused.value).split("write ")[1].split(",")[0]
    assert parse_moment(suggestion).replace(tzinfo=None) == datetime(2031, 5, 1, 9)


@table("text", ["", "tomorrow", "2031-13-01T00:00Z", "09:00+02:00"])
def test_refused_times(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_moment(text)


def test_milliseconds_are_rounded_up_because_a_message_is_never_early() -> None:
    moment = datetime(2031, 5, 1, 7, 0, 0, 1, tzinfo=UTC)
    assert moment_to_ms(moment) == moment_to_ms(moment.replace(microsecond=0)) + 1


@given(st.integers(min_value=0, max_value=MAX_TIME_MS))
def test_moments_survive_printing(time_ms: int) -> None:
    assert moment_to_ms(ms_to_moment(time_ms)) == time_ms
    assert moment_to_ms(parse_moment(format_moment(time_ms))) == time_ms


@table(
    ("duration_ms", "text"),
    [
        (0, "0 ms"),
        (3.25, "3.25 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_999, "1 min"),
        (90_000, "1 min 30 s"),
        (3_599_900, "1 h"),
        (9_000_000, "2 h 30 min"),
        (86_399_999, "1 d"),
        (100_000_000, "1 d 4 h"),
        (4096**3, "2.2 years"),
        (-1_500, "-1.5 s"),
    ],
)
def test_printed_durations(duration_ms: float, text: str) -> None:
    assert format_duration(duration_ms) == text


@table(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1.4, "1 byte"),
        (2, "2 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (4 << 20, "4.0 MiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_printed_sizes(size: float, text: str) -> None:
    assert format_bytes(size) == text
