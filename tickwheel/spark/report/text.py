"""How figures, times and other people's texts are shown on the page, as plain text: the template escapes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tickwheel._moments import datetime_of

_LONGEST: Final = 80
_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000


def shown(text: str | None, longest: int = _LONGEST) -> str:
    """A text of a message as plain text on one line: control characters, and those that change the direction of what
    follows, are spelled out, and what is too long is cut.

    >>> shown("a\\nb")
    'a\\\\u000ab'
    """
    if text is None:
        return "–"
    visible = "".join(one if one.isprintable() else _spelled(one) for one in text[: longest + 1])
    return visible if len(visible) <= longest else f"{visible[: longest - 1]}…"


def _spelled(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x1_0000 else f"\\U{number:08x}"


def count(number: float | None) -> str:
    """`336,776`"""
    return "–" if number is None else f"{number:,.0f}"


def counted(number: int, noun: str) -> str:
    """`1 message`, `4,000 messages`, `2 deliveries`"""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def changed(before: int | None, after: int | None, show: Callable[[float], str]) -> str:
    """`+19 ms (+37 %)`, `the same`

    >>> changed(51, 70, duration), changed(0, 3, count), changed(4, 4, count), changed(None, 1, count)
    ('+19 ms (+37 %)', '+3', 'the same', '–')
    """
    if before is None or after is None:
        return "–"
    if before == after:
        return "the same"
    difference = after - before
    sign = "+" if difference > 0 else "-"
    part = f" ({sign}{100 * abs(difference) / before:,.0f} %)" if before > 0 else ""
    return f"{sign}{show(abs(difference))}{part}"


def share(part: int, whole: int) -> str:
    """`12.5 %`"""
    return "–" if not whole else f"{100 * part / whole:.3g} %"


def duration(duration_ms: float | None) -> str:
    """`3 ms`, `1.2 s`, `2 h 30 min`

    >>> duration(3), duration(67_500), duration(9_000_000), duration(-1500)
    ('3 ms', '1 min 8 s', '2 h 30 min', '-1.5 s')
    """
    if duration_ms is None:
        return "–"
    if duration_ms < 0:
        return f"-{duration(-duration_ms)}"
    if duration_ms < _SECOND_MS:
        return f"{duration_ms:.3g} ms"
    if duration_ms < _MINUTE_MS:
        return f"{duration_ms / _SECOND_MS:.3g} s"
    if duration_ms < _HOUR_MS:
        return _two(duration_ms, _MINUTE_MS, "min", _SECOND_MS, "s")
    if duration_ms < _DAY_MS:
        return _two(duration_ms, _HOUR_MS, "h", _MINUTE_MS, "min")
    return _two(duration_ms, _DAY_MS, "d", _HOUR_MS, "h")


def _two(duration_ms: float, large_ms: int, large: str, small_ms: int, small: str) -> str:
    whole, rest = divmod(round(duration_ms / small_ms), large_ms // small_ms)
    return f"{whole:,} {large} {rest} {small}" if rest else f"{whole:,} {large}"


def moment(time_ms: int | None, *, to_ms: bool = False) -> str:
    """`2026-11-21 10:38:12`, in UTC

    >>> moment(0), moment(1, to_ms=True)
    ('1970-01-01 00:00:00', '1970-01-01 00:00:00.001')
    """
    if time_ms is None:
        return "–"
    text = datetime_of(time_ms).strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{time_ms % 1_000:03d}" if to_ms else text
