"""From ``deliver_at`` and ``delay`` to the milliseconds of the wire.

Fractions of a millisecond are rounded up: a message is never early.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

from tickwheel.protocol.errors import BadArgument, BadTime, NaiveDatetime
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.protocol.messages import pack_column

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

Moment: TypeAlias = datetime | int
"""An aware datetime, or epoch milliseconds."""
Delay: TypeAlias = timedelta | Literal[0]
"""A timedelta. A number would have no unit, so 0 is the only one that is taken."""

# Arrays of integers (array.array, numpy) offer the buffer protocol, which 3.11 cannot name as a type.
Moments: TypeAlias = Moment | Sequence[Moment] | Any
Delays: TypeAlias = Delay | Sequence[Delay] | Any
Milliseconds: TypeAlias = int | Sequence[int] | Any


def moment_ms(moment: Moment) -> int:
    """Epoch milliseconds. Raises NaiveDatetime, BadTime."""
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise NaiveDatetime(
                f"{moment.isoformat()} has no time zone, so it does not say which moment it means."
            )
        return _checked_ms(-((EPOCH - moment) // _MILLISECOND), "deliver_at")
    if isinstance(moment, int) and not isinstance(moment, bool):
        return _checked_ms(moment, "deliver_at")
    raise BadTime(
        f"deliver_at is a {type(moment).__name__}.",
        advice="Use an aware datetime, or epoch milliseconds as an int.",
    )


def duration_ms(duration: Delay, name: str = "delay", *, in_ms: str = "") -> int:
    """The milliseconds of the argument ``name``. ``in_ms``: its sister that takes them. Raises BadTime."""
    if isinstance(duration, timedelta):
        return _checked_ms(-(-duration // _MILLISECOND), name)
    if type(duration) is int and duration == 0:
        return 0
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        raise BadTime(
            f"{name}={duration} does not say in which unit.",
            advice=f"Write {name}=timedelta(seconds={duration})"
            + (f", or {in_ms}={duration} for milliseconds." if in_ms else "."),
        )
    raise BadTime(
        f"{name} is a {type(duration).__name__}.",
        advice="Use a timedelta" + (f", or {in_ms} with an int." if in_ms else "."),
    )


def wait_ms(delay: Delay | None, delay_ms: int | None) -> int | None:
    """The milliseconds of the two ways to say a delay; None: neither was given. Raises BadTime."""
    if delay_ms is None:
        return None if delay is None else duration_ms(delay, in_ms="delay_ms")
    if delay is not None:
        raise BadTime("Both delay and delay_ms were given.", advice="Give one of them.")
    return whole_ms(delay_ms)


def whole_ms(value_ms: int, name: str = "delay_ms") -> int:
    """The argument ``name``, whose unit is milliseconds. Raises BadTime."""
    if isinstance(value_ms, int) and not isinstance(value_ms, bool):
        return _checked_ms(value_ms, "delay")
    raise BadTime(f"{name} is a {type(value_ms).__name__}.", advice="Use an int of milliseconds.")


def _checked_ms(value_ms: int, name: str) -> int:
    if 0 <= value_ms <= MAX_TIME_MS:
        return value_ms
    if name == "delay" and value_ms < 0:
        raise BadTime(
            f"The delay of {value_ms:,} ms is negative.", advice="Leave delay out to deliver the message now."
        )
    raise BadTime(f"The {name} of {value_ms:,} ms is outside of the years 1970 to 9999.")


def one_time(deliver_at: Moment | None, delay: Delay | None, delay_ms: int | None = None) -> tuple[int, bool]:
    """``(ms, relative)`` for one message, or for all of a batch. 0 means now."""
    relative_ms = wait_ms(delay, delay_ms)
    if relative_ms is None:
        return (0, False) if deliver_at is None else (moment_ms(deliver_at), False)
    if deliver_at is not None:
        raise BadTime("Both deliver_at and a delay were given.", advice="Give one of them.")
    return relative_ms, True


def many_times(
    deliver_at: Moments | None, delay: Delays | None, delay_ms: Milliseconds | None, count: int
) -> tuple[int | bytes, bool]:
    """``(ms, relative)`` for a batch of ``count``: one number for all, or a packed i64 column."""
    if sum(given is not None for given in (deliver_at, delay, delay_ms)) > 1:
        raise BadTime("Two of deliver_at, delay and delay_ms were given.", advice="Give one of them.")
    if delay_ms is not None:
        return _one_or_column(delay_ms, whole_ms, int, count, "delay_ms"), True
    if delay is not None:
        return _one_or_column(_timedeltas(delay), _delay_of_one, timedelta, count, "delay"), True
    if deliver_at is not None:
        return _one_or_column(deliver_at, moment_ms, datetime, count, "deliver_at"), False
    return 0, False


def _delay_of_one(delay: Delay) -> int:
    return duration_ms(delay, in_ms="delay_ms")


def _timedeltas(delays: Any) -> Any:
    """A numpy array of timedelta64 as whole milliseconds, rounded up; bare numbers are refused. Raises BadTime."""
    if getattr(getattr(delays, "dtype", None), "kind", "") == "m" and getattr(delays, "ndim", 0) == 1:
        whole = delays.astype("timedelta64[ms]")
        if (whole != whole).any():  # NaT is not equal to itself
            raise BadTime("A delay is NaT, which is no time.", advice="Use a delay of zero or more.")
        return array("q", (whole.astype("int64") + (whole < delays)).tolist())
    try:
        memoryview(delays)
    except TypeError:
        return delays
    raise BadTime(
        "delay is an array of numbers, which do not say in which unit.",
        advice="Write delay_ms= for milliseconds, or use an array of timedelta64.",
    )


def _one_or_column(
    value: Any, to_ms: Callable[[Any], int], scalar: type, count: int, name: str
) -> int | bytes:
    if isinstance(value, int | float | scalar):
        return to_ms(value)
    column = _integers(value, name)
    if column is None:
        column = pack_column("q", map(to_ms, value))
    if len(column) != 8 * count:
        raise BadArgument(f"{name} has {len(column) // 8:,} values for {count:,} bodies.")
    return column


def _integers(values: Any, name: str) -> bytes | None:
    """The column of an array of integers, unchecked: the broker judges each time by itself. None: none."""
    try:
        view = memoryview(values)
    except TypeError:
        return None
    if view.ndim != 1 or view.format is None or view.format.lstrip("@=<") not in tuple("bBhHiIlLqQ"):
        raise BadTime(
            f"{name} is an array of something else than integers.",
            advice="Use int64 milliseconds: for numpy, values.astype('datetime64[ms]').astype('int64').",
        )
    try:
        return pack_column("q", view.tolist())
    except Exception as error:
        raise BadTime(f"{name} has a number that does not fit 64 bits: {error}.") from None
