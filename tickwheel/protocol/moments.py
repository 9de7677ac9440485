"""Moments as people and programs write them, of ISO 8601 and RFC 3339. Nothing is lost that would make one earlier."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

D = TypeVar("D", bound=datetime)

_FINER: Final = re.compile(r"(?<=[.,]\d{6})\d+")
"""The digits of a fraction behind its microseconds."""
_LEAP_SECOND: Final = re.compile(r"([T ]\d\d:?\d\d:?)60(?!\d)")
_MICROSECOND: Final = timedelta(microseconds=1)


def parse_moment(text: str) -> datetime:
    """As ``parse_moment_as`` a datetime. Raises ValueError."""
    return parse_moment_as(datetime, text)


def parse_moment_as(kind: type[D], text: str) -> D:
    """The moment, with its offset if it says one. Parts of a microsecond are rounded up; a leap second (23:59:60 in
    UTC) is the second after it, as clocks of computers have it. Raises ValueError.

    >>> parse_moment("2016-12-31T23:59:60Z").isoformat()
    '2017-01-01T00:00:00+00:00'
    """
    text, later = text.strip().upper(), timedelta(0)
    finer = _FINER.search(text)
    if finer is not None:
        text = text[: finer.start()] + text[finer.end() :]
        later = _MICROSECOND * bool(finer[0].strip("0"))
    if leap := _LEAP_SECOND.search(text):
        text = f"{text[: leap.start()]}{leap[1]}59{text[leap.end() :]}"
    found = kind.fromisoformat(text)
    try:
        if leap is not None:
            _check_leap(found)
            later += timedelta(seconds=1)
        return found + later if later else found
    except OverflowError:
        raise ValueError("it is beyond the year 9999") from None


def _check_leap(before: datetime) -> None:
    """Raises ValueError, OverflowError."""
    if before.tzinfo is not None:
        before = before.astimezone(UTC)
        if (before.hour, before.minute) != (23, 59):
            raise ValueError("a leap second is 23:59:60 in UTC")
