"""Moments as texts."""

from datetime import UTC, datetime

import pytest

from tickwheel.protocol.moments import parse_moment, parse_moment_as


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2031-05-01T09:00:00Z", "2031-05-01T09:00:00+00:00"),
        ("2031-05-01t09:00:00z", "2031-05-01T09:00:00+00:00"),
        (" 2031-05-01 09:00+02:00 ", "2031-05-01T09:00:00+02:00"),
        ("2031-05-01T09:00:00.1Z", "2031-05-01T09:00:00.100000+00:00"),
        ("2031-05-01T09:00:00.000000001Z", "2031-05-01T09:00:00.000001+00:00"),
        ("2031-05-01T09:00:00.123456000Z", "2031-05-01T09:00:00.123456+00:00"),
        ("2031-05-01T09:00:00,9999999+02:00", "2031-05-01T09:00:01+02:00"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00+00:00"),
        ("2016-12-31T15:59:60.5-08:00", "2016-12-31T16:00:00.500000-08:00"),
        ("20161231T235960Z", "2017-01-01T00:00:00+00:00"),
        ("2031-05-01T09:00:00", "2031-05-01T09:00:00"),
    ],
)
def test_moments(text: str, expected: str) -> None:
    assert parse_moment(text).isoformat() == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2031-05-01T09:00:60Z",
        "2016-12-31T23:59:60+02:00",
        "2016-12-31T23:59:61Z",
        "2016-12-31T23:60:00Z",
        "9999-12-31T23:59:60Z",
        "9999-12-31T23:59:59.9999999Z",
    ],
)
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - Python has words of its own, too
        parse_moment(text)


def test_a_moment_of_a_kind_of_datetime() -> None:
    class Kind(datetime):
        pass

    for text in ("2031-05-01T09:00:00Z", "2031-05-01T09:00:00.0000001Z", "2016-12-31T23:59:60Z"):
        assert type(parse_moment_as(Kind, text)) is Kind
    assert parse_moment_as(Kind, "2031-05-01T09:00:00Z") == datetime(2031, 5, 1, 9, tzinfo=UTC)
