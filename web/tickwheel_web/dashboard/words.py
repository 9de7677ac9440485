"""Numbers, times and durations as the pages write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from markupsafe import Markup, escape

from tickwheel.protocol.readable import format_bytes, format_duration

NONE: Final = "–"
"""What is not known."""

_MS: Final = timedelta(milliseconds=1)
_CODE: Final = re.compile(r"`([^`]+)`")


def count(number: float | None) -> str:
    """
    >>> count(1234567), count(None)
    ('1,234,567', '–')
    """
    return NONE if number is None else f"{number:,.0f}"


def rate(per_s: float | None) -> str:
    """
    >>> rate(12345.6), rate(3.14), rate(0.01), rate(0.0), rate(None)
    ('12,346/s', '3.1/s', '< 0.1/s', '0/s', '–')
    """
    if per_s is None:
        return NONE
    if 0 < per_s < 0.05:
        return "< 0.1/s"
    return f"{per_s:,.1f}/s" if 0 < per_s < 9.95 else f"{per_s:,.0f}/s"


def size(size_bytes: float | None) -> str:
    """
    >>> size(65536), size(None)
    ('64.0 KiB', '–')
    """
    return NONE if size_bytes is None else format_bytes(size_bytes)


def duration(length: timedelta | float | None) -> str:
    """Of a timedelta, or of milliseconds.

    >>> duration(timedelta(hours=2.5)), duration(12), duration(15_000), duration(2_500), duration(None)
    ('2 h 30 min', '12 ms', '15 s', '2.5 s', '–')
    """
    if length is None:
        return NONE
    return _whole(format_duration(length / _MS if isinstance(length, timedelta) else length))


def relative(moment: datetime, now: datetime) -> str:
    """
    >>> now = datetime(2031, 5, 1, tzinfo=UTC)
    >>> relative(now + timedelta(minutes=3), now), relative(now - timedelta(days=2), now), relative(now, now)
    ('in 3 min', '2 d ago', 'now')
    """
    length = abs(moment - now)
    if length < timedelta(seconds=1):
        return "now"
    told = duration(timedelta(seconds=round(length.total_seconds())))
    return f"in {told}" if moment > now else f"{told} ago"


def at_most(bound_s: float | None) -> str:
    """A percentile out of a histogram is known as the bound that it does not exceed.

    >>> at_most(0.005), at_most(1.0), at_most(0.0), at_most(float("inf")), at_most(None)
    ('≤ 5 ms', '≤ 1 s', '< 1 ms', '> 1 d', '–')
    """
    if bound_s is None:
        return NONE
    if bound_s == float("inf"):
        return "> 1 d"
    return f"≤ {_whole(format_duration(bound_s * 1_000))}" if bound_s else "< 1 ms"


def _whole(text: str) -> str:
    """Without a fraction that is none."""
    return text.replace(".0 ", " ")


def utc(moment: datetime) -> str:
    """
    >>> utc(datetime(2031, 5, 1, 9, 0, 0, 250_000, tzinfo=UTC))
    '2031-05-01 09:00:00 UTC'
    """
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def cut(text: str, longest: int) -> str:
    """What is cut says so.

    >>> cut("timeout", 7), cut("timeouts", 7)
    ('timeout', 'timeou…')
    """
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def prose(text: str) -> Markup:
    """A sentence, with what stands in `backticks` as code, and everything escaped.

    >>> prose("use `tickwheel <x>` & wait")
    Markup('use <code>tickwheel &lt;x&gt;</code> &amp; wait')
    """
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def iso(moment: datetime) -> str:
    """For ``<time datetime>``.

    >>> iso(datetime(2031, 5, 1, 9, 0, 0, 250_000, tzinfo=UTC))
    '2031-05-01T09:00:00.250Z'
    """
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
