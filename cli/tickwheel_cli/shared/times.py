"""Human times: "2h30m" to a timedelta, "2031-05-01T09:00+02:00" to an aware datetime, and back to text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tickwheel.protocol import moments as protocol
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.protocol.units import parse_duration_ms

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
        moment = protocol.parse_moment(text)
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
