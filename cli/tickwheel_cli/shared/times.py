"""Human times: "2h30m" to a timedelta, "2031-05-01T09:00+02:00" to an aware datetime, and back to text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel_broker.config.units import parse_duration_ms

_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
_YEAR_MS = 365.25 * _DAY_MS
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration(text: str) -> timedelta:
    """`250ms`, `5s`, `2h30m`, `1.5d`, `1w`, in whole milliseconds; raises ValueError with advice."""
    duration_ms = parse_duration_ms(text)
    if duration_ms > MAX_TIME_MS:
        raise ValueError(f"{text!r} reaches beyond the year 9999")
    return timedelta(milliseconds=duration_ms)


def parse_moment(text: str) -> datetime:
    """An ISO 8601 time that says its UTC offset (`+02:00` or `Z`); raises ValueError with advice."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write it like 2031-05-01T09:00+02:00 or 2031-05-01T07:00Z"
        ) from None
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ValueError(
            f"{text!r} does not say its UTC offset, so it could be any of 24 hours; "
            f"write {_with_offset(moment)}, or …Z for UTC"
        )
    return moment


def _with_offset(naive: datetime) -> str:
    """The same wall-clock time with this machine's own offset, as a suggestion."""
    separator = "seconds" if naive.second else "minutes"
    try:
        return naive.astimezone().isoformat(timespec=separator)
    except (OverflowError, ValueError, OSError):
        return f"{naive.isoformat(timespec=separator)}+02:00"


def moment_to_ms(moment: datetime) -> int:
    """Milliseconds since the epoch, rounded up: a message is never early, not by a microsecond either."""
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def ms_to_moment(time_ms: int) -> datetime:
    """An aware UTC datetime of milliseconds since the epoch."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def format_moment(time_ms: int) -> str:
    """`2031-05-01T07:00:00.000Z`: UTC, to the millisecond."""
    return ms_to_moment(time_ms).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


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
