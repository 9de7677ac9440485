"""From ``deliver_at`` and ``delay`` to the milliseconds of the wire.

Fractions of a millisecond are rounded up: a message is never early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from tickwheel.protocol.errors import BadArgument, BadTime, NaiveDatetime
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.protocol.messages import pack_column

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

Moment: TypeAlias = datetime | int
"""An aware datetime, or epoch milliseconds."""
Delay: TypeAlias = timedelta | int
"""A timedelta, or milliseconds."""

# Arrays of integers (array.array, numpy) offer the buffer protocol, which 3.11 cannot name as a type.
Moments: TypeAlias = Moment | Sequence[Moment] | Any
Delays: TypeAlias = Delay | Sequence[Delay] | Any


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


def delay_ms(delay: Delay) -> int:
    """Milliseconds from now. Raises BadTime."""
    if isinstance(delay, timedelta):
        return _checked_ms(-(-delay // _MILLISECOND), "delay")
    if isinstance(delay, int) and not isinstance(delay, bool):
        return _checked_ms(delay, "delay")
    raise BadTime(f"delay is a {type(delay).__name__}.", advice="Use a timedelta, or milliseconds as an int.")


def _checked_ms(value_ms: int, name: str) -> int:
    if 0 <= value_ms <= MAX_TIME_MS:
        return value_ms
    if name == "delay" and value_ms < 0:
        raise BadTime(
            f"The delay of {value_ms:,} ms is negative.", advice="Leave delay out to deliver the message now."
        )
    raise BadTime(f"The {name} of {value_ms:,} ms is outside of the years 1970 to 9999.")


def one_time(deliver_at: Moment | None, delay: Delay | None) -> tuple[int, bool]:
    """``(ms, relative)`` for one message, or for all of a batch. 0 means now."""
    if delay is None:
        return (0, False) if deliver_at is None else (moment_ms(deliver_at), False)
    if deliver_at is not None:
        raise BadTime("Both deliver_at and delay were given.", advice="Give one of them.")
    return delay_ms(delay), True


def many_times(deliver_at: Moments | None, delay: Delays | None, count: int) -> tuple[int | bytes, bool]:
    """``(ms, relative)`` for a batch of ``count``: one number for all, or a packed i64 column."""
    if deliver_at is not None and delay is not None:
        raise BadTime("Both deliver_at and delay were given.", advice="Give one of them.")
    if delay is not None:
        return _one_or_column(delay, delay_ms, timedelta, count, "delay"), True
    if deliver_at is not None:
        return _one_or_column(deliver_at, moment_ms, datetime, count, "deliver_at"), False
    return 0, False


def _one_or_column(
    value: Any, to_ms: Callable[[Any], int], scalar: type, count: int, name: str
) -> int | bytes:
    if isinstance(value, int | scalar):
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
