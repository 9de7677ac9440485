"""Durations, sizes and counts as people read them."""

from __future__ import annotations

_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
_YEAR_MS = 365.25 * _DAY_MS


def format_duration(duration_ms: float) -> str:
    """The two largest units: `3.2 ms`, `5.0 s`, `2 h 30 min`, `3 d 4 h`, `2.2 years`."""
    if duration_ms < 0:
        return "-" + format_duration(-duration_ms)
    if duration_ms < _SECOND_MS:
        return f"{duration_ms:.3g} ms"
    if duration_ms < _MINUTE_MS - 50:
        return f"{duration_ms / _SECOND_MS:.1f} s"
    if duration_ms < _HOUR_MS - _SECOND_MS / 2:
        return _two_units(duration_ms, _MINUTE_MS, "min", _SECOND_MS, "s")
    if duration_ms < _DAY_MS - _MINUTE_MS / 2:
        return _two_units(duration_ms, _HOUR_MS, "h", _MINUTE_MS, "min")
    if duration_ms < 2 * _YEAR_MS:
        return _two_units(duration_ms, _DAY_MS, "d", _HOUR_MS, "h")
    return f"{duration_ms / _YEAR_MS:,.1f} years"


def _two_units(duration_ms: float, large_ms: int, large: str, small_ms: int, small: str) -> str:
    whole, rest = divmod(round(duration_ms / small_ms), large_ms // small_ms)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def format_bytes(size_bytes: float) -> str:
    """`812 bytes`, `64.0 KiB`, `1.2 GiB`."""
    if size_bytes < 1024:
        count = f"{size_bytes:.0f}"
        return "1 byte" if count == "1" else f"{count} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size_bytes /= 1024
        if size_bytes < 1023.95:
            return f"{size_bytes:.1f} {unit}"
    return f"{size_bytes / 1024:.1f} TiB"


def noun(number: int, word: str, plural: str = "") -> str:
    """`1 message`, `2,000 messages`, `2 retries`."""
    return f"{number:,} {word if number == 1 else plural or word + 's'}"
