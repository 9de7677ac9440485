"""Durations and sizes as people write them: `30s`, `1h30m`, `250ms`, `PT30S`, `4MiB`, `64k`."""

import math
import re
from fractions import Fraction
from functools import lru_cache

_MS_PER_UNIT = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_BYTES_PER_UNIT = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gib": 1 << 30,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_ISO_8601 = re.compile(r"p(?=.)((?:\d+(?:\.\d+)?[wd])*)(?:t((?:\d+(?:\.\d+)?[hms])+))?")
_MOST = 1 << 62
"""More than any setting allows; a text with hundreds of digits would not fit a float, either."""

_MOST_CHARS = 1_000
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")


def parse_duration_ms(text: str) -> int:
    """Milliseconds in a text such as `250ms`, `1.5s`, `1h30m` or `PT1H30M`; parts of one are rounded up. Raises
    ValueError for anything else."""
    if len(text) > _MOST_CHARS:
        raise ValueError(f"{_shortened(text)} is far too long a duration")
    rest = text.strip().lower()
    if rest == "0":
        return 0
    if iso := _ISO_8601.fullmatch(rest):
        rest = iso[1] + (iso[2] or "")
    total_ms = Fraction(0)
    while rest:
        part = _DURATION_PART.match(rest)
        if part is None:
            raise ValueError(f"{text!r} is not a duration; write for example 250ms, 30s, 5m, 1h30m or 90d")
        total_ms += Fraction(part[1]) * _MS_PER_UNIT[part[2]]
        rest = rest[part.end() :]
    if not text.strip():
        raise ValueError("an empty text is not a duration; write for example 30s")
    if total_ms > _MOST:
        raise ValueError(f"{_shortened(text)} is far too long a duration")
    return math.ceil(total_ms)


def seconds_ms(seconds: float) -> int:
    """Milliseconds in seconds, rounded up. A float means the number that it is written as: 0.07 is 70 ms.

    Raises ValueError, OverflowError for what is not finite."""
    return math.ceil(Fraction(str(seconds)) * _MS_PER_UNIT["s"])


@lru_cache(maxsize=16)  # each connection is told the levels
def delay_levels_ms(text: str) -> tuple[int, ...]:
    """The delays in a text such as `1s 5s 10s`. Raises ValueError for anything else."""
    levels = tuple(parse_duration_ms(part) for part in text.split())
    if not 1 <= len(levels) <= 255:
        raise ValueError("delay levels are 1 to 255 durations, separated by spaces")
    return levels


def parse_size_bytes(text: str) -> int:
    """Bytes in a text such as `4MiB`, `64k` or `1048576`. Raises ValueError for anything else."""
    whole = _SIZE.fullmatch(text.strip().lower())
    if whole is None or whole[2] not in _BYTES_PER_UNIT:
        raise ValueError(f"{text!r} is not a size; write for example 65536, 64KiB or 4MiB")
    size_bytes = float(whole[1]) * _BYTES_PER_UNIT[whole[2]]
    if size_bytes > _MOST:
        raise ValueError(f"{_shortened(text)} is far too large a size")
    return round(size_bytes)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def format_duration(duration_ms: int) -> str:
    """The shortest exact text of a duration: 30000 becomes `30s`."""
    for unit in ("w", "d", "h", "m", "s"):
        if duration_ms and duration_ms % _MS_PER_UNIT[unit] == 0:
            return f"{duration_ms // _MS_PER_UNIT[unit]}{unit}"
    return f"{duration_ms}ms"


def format_size(size_bytes: int) -> str:
    """The shortest exact text of a size: 4194304 becomes `4MiB`."""
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return str(size_bytes)
