"""From ``deliver_at`` and ``delay`` to the milliseconds of the wire.

Fractions of a millisecond are rounded up: a message is never early. What is no time is refused with BadTime, whatever
it is. A bare number below 10^12 is refused, too: it would be a moment before 2001, and is mostly a number of seconds.
Of a batch, a time outside of the years 1970 to 9999, or such a number, refuses its own message only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tickwheel.client.checks import shown, whole_or_none
from tickwheel.protocol.errors import BadArgument, BadTime, NaiveDatetime, TickwheelError
from tickwheel.protocol.limits import LEAST_NUMBER_MS, MAX_TIME_MS
from tickwheel.protocol.messages import pack_column

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class EpochMs(int):
    """Epoch milliseconds that something has counted and nobody has written, so that they may be of any year from 1970
    on."""


AT_ONCE: Final = EpochMs(0)
"""The time of a message without a time, in a batch where others have one."""

Moment: TypeAlias = datetime | int
"""An aware datetime, or epoch milliseconds from September 2001 (10^12) on."""
Delay: TypeAlias = timedelta | Literal[0]
"""A timedelta. A number would have no unit, so 0 is the only one that is taken."""

# Arrays of integers (array.array, numpy) offer the buffer protocol, which 3.11 cannot name as a type.
Moments: TypeAlias = Moment | Sequence[Moment] | Any
Delays: TypeAlias = Delay | Sequence[Delay] | Any
Milliseconds: TypeAlias = int | Sequence[int] | Any


class Times(NamedTuple):
    """The times of a batch: one number for all, or a packed i64 column; whether they are delays; and which of them are
    out of range: their messages are refused, and the column has 0 there."""

    time_ms: int | bytes
    relative: bool
    refused: Mapping[int, BadTime] = {}


def moment_ms(moment: Moment, name: str = "deliver_at") -> int:
    """Epoch milliseconds of the argument ``name``. Raises NaiveDatetime, BadTime."""
    return _in_range(_moment(moment, name), name, _least(moment))


def duration_ms(duration: Delay, name: str = "delay", *, in_ms: str = "") -> int:
    """The milliseconds of the argument ``name``. ``in_ms``: its sister that takes them. Raises BadTime."""
    return _in_range(_duration(duration, name, in_ms), name)


def wait_ms(delay: Delay | None, delay_ms: int | None) -> int | None:
    """The milliseconds of the two ways to say a delay; None: neither was given. Raises BadTime."""
    if delay_ms is None:
        return None if delay is None else duration_ms(delay, in_ms="delay_ms")
    if delay is not None:
        raise BadTime("Both delay and delay_ms were given.", advice="Give one of them.")
    return whole_ms(delay_ms)


def whole_ms(value_ms: int, name: str = "delay_ms") -> int:
    """The argument ``name``, whose unit is milliseconds. Raises BadTime."""
    return _in_range(_whole_ms(value_ms, name), name)


def _moment(moment: Any, name: str) -> int:
    if isinstance(moment, datetime):
        try:
            if moment.utcoffset() is None:
                raise NaiveDatetime(
                    f"{moment.isoformat()} has no time zone, so it does not say which moment it means."
                )
            return int(-((EPOCH - moment) // _MILLISECOND))
        except TickwheelError:
            raise
        except Exception:  # NaT of pandas is a datetime; and a time zone may be anybody's code
            raise BadTime(f"{name} is {shown(moment)}, which is no time.", advice=_MOMENT_ADVICE) from None
    number = whole_or_none(moment)
    if number is not None:
        return number
    raise BadTime(f"{name} is {_described(moment)}.", advice=_advice_for_moment(moment))


def _duration(duration: Any, name: str, in_ms: str = "") -> int:
    if isinstance(duration, timedelta):
        try:
            whole = int(duration // _MILLISECOND)
            return whole + (timedelta(milliseconds=whole) < duration)
        except Exception:
            raise BadTime(f"{name} is {shown(duration)}, which is no length of time.") from None
    if type(duration) is int and duration == 0:
        return 0
    if (isinstance(duration, int | float) or whole_or_none(duration) is not None) and not isinstance(
        duration, bool
    ):
        number = shown(duration)
        raise BadTime(
            f"{name}={number} does not say in which unit.",
            advice=f"Write {name}=timedelta(seconds={number})"
            + (f", or {in_ms}={number} for milliseconds." if in_ms else "."),
        )
    raise BadTime(f"{name} is {_described(duration)}.", advice=_advice_for_duration(duration, name, in_ms))


def _whole_ms(value_ms: Any, name: str) -> int:
    number = whole_or_none(value_ms)
    if number is None:
        raise BadTime(f"{name} is {_described(value_ms)}.", advice="Use an int of milliseconds.")
    return number


def _least(moment: Any) -> int:
    """The least milliseconds of a moment that is given so."""
    return 0 if isinstance(moment, datetime | EpochMs) else LEAST_NUMBER_MS


def _in_range(value_ms: int, name: str, least_ms: int = 0) -> int:
    if least_ms <= value_ms <= MAX_TIME_MS:
        return value_ms
    raise _out_of_range(value_ms, name)


def _out_of_range(value_ms: int, name: str) -> BadTime:
    """Why these milliseconds are no time, or no moment that may be given as a number."""
    if 0 <= value_ms <= MAX_TIME_MS:
        at = EPOCH + timedelta(milliseconds=value_ms)
        return BadTime(
            f"{name}={value_ms} is {at:%B %Y} in milliseconds. Are seconds meant?",
            advice=f"{_MOMENT_ADVICE} A moment before September 2001 needs a datetime.",
        )
    number = f"{value_ms:,}" if abs(value_ms) < 1 << 128 else "so many"
    if value_ms < 0 and name in ("delay", "delay_ms"):
        return BadTime(
            f"The delay of {number} ms is negative.", advice="Leave delay out to deliver the message now."
        )
    return BadTime(f"The {name} of {number} ms is outside of the years 1970 to 9999.")


# What to pass instead ----------------------------------------------------------------------------

_MOMENT_ADVICE: Final = "Use an aware datetime, or epoch milliseconds as an int."


def _described(value: Any) -> str:
    name = type(value).__name__
    return f"a {name}: {shown(value)}" if isinstance(value, str | float | bool) else f"a {name}"


def _advice_for_moment(value: Any) -> str:
    if isinstance(value, date):
        return "Say when on that day: datetime.combine(day, time(9), tzinfo=ZoneInfo('Europe/Paris'))."
    if isinstance(value, timedelta):
        return "So long from now is delay=."
    if isinstance(value, str | bytes):
        return "Read it first: datetime.fromisoformat('2031-05-01T09:00+02:00')."
    if type(value).__name__ == "datetime64":
        return (
            "It has no time zone. If UTC is meant: value.astype('datetime64[ms]').item().replace(tzinfo=UTC)."
        )
    if isinstance(value, float) or type(value).__name__ == "Decimal":
        return "Use an aware datetime, or whole epoch milliseconds: round(seconds * 1000)."
    return _MOMENT_ADVICE


def _advice_for_duration(value: Any, name: str, in_ms: str) -> str:
    if isinstance(value, datetime) and name == "delay":
        return "A moment is deliver_at=."
    if type(value).__name__ == "timedelta64":
        return "Use a timedelta: value.astype('timedelta64[us]').item()."
    return "Use a timedelta" + (f", or {in_ms} with an int." if in_ms else ".")


# One message, and many ---------------------------------------------------------------------------


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
) -> Times:
    """The times of a batch of ``count``. Raises BadTime, BadArgument."""
    if sum(given is not None for given in (deliver_at, delay, delay_ms)) > 1:
        raise BadTime("Two of deliver_at, delay and delay_ms were given.", advice="Give one of them.")
    if delay_ms is not None:
        return _times(delay_ms, _whole_ms, count, "delay_ms", relative=True)
    if delay is not None:
        return _times(_timedeltas(delay), _delay_of_one, count, "delay", relative=True)
    if deliver_at is not None:
        return _times(deliver_at, _moment, count, "deliver_at", relative=False)
    return Times(0, relative=False)


def _delay_of_one(delay: Any, name: str) -> int:
    return _duration(delay, name, "delay_ms")


def _timedeltas(delays: Any) -> Any:
    """A numpy array of timedelta64 as whole milliseconds, rounded up; bare numbers are refused. Raises BadTime."""
    if getattr(getattr(delays, "dtype", None), "kind", "") == "m" and getattr(delays, "ndim", 0) == 1:
        if getattr(delays.dtype, "str", "")[1:] == "m8":  # with a unit it is "m8[s]"
            raise _no_unit()
        whole = delays.astype("timedelta64[ms]")
        if (whole != whole).any():  # NaT is not equal to itself
            raise BadTime("A delay is NaT, which is no time.", advice="Use a delay of zero or more.")
        return array("q", (whole.astype("int64") + (whole < delays)).tolist())
    if isinstance(delays, bytes | bytearray) or getattr(delays, "ndim", 1) == 0:
        return delays
    try:
        memoryview(delays)
    except Exception:
        return delays
    raise _no_unit()


def _no_unit() -> BadTime:
    return BadTime(
        "delay is an array of numbers, which do not say in which unit.",
        advice="Write delay_ms= for milliseconds, or use an array of timedelta64, with a unit.",
    )


def _times(value: Any, to_ms: Callable[[Any, str], int], count: int, name: str, *, relative: bool) -> Times:
    if not _is_column(value):
        return Times(_in_range(to_ms(value, name), name, 0 if relative else _least(value)), relative)
    least_ms = 0 if relative else LEAST_NUMBER_MS
    column = _integers(value, name, least_ms)
    refused: dict[int, BadTime] = {}
    if isinstance(column, bytes):
        found = len(column) // 8
    else:
        given = column if column is not None else list(value)
        values = column if column is not None else [to_ms(one, name) for one in given]
        found = len(values)
        if values and (min(values) < least_ms or max(values) > MAX_TIME_MS):
            refused = {
                index: _out_of_range(time_ms, name)
                for index, (time_ms, one) in enumerate(zip(values, given, strict=True))
                if not (0 if relative else _least(one)) <= time_ms <= MAX_TIME_MS
            }
            values = [0 if index in refused else time_ms for index, time_ms in enumerate(values)]
        column = pack_column("q", values)
    if found != count:
        raise BadArgument(f"{name} has {found:,} values for {count:,} bodies.")
    return Times(column, relative, refused)


def _is_column(value: Any) -> bool:
    """Whether it is one value for each body. What is neither a time nor such a column is judged as a time."""
    if isinstance(value, int | timedelta | date | str | bytes | bytearray | Mapping | Set):
        return False
    try:
        iter(value)
    except Exception:
        return False
    return True


def _integers(values: Any, name: str, least: int) -> bytes | list[int] | None:
    """The column of an array of integers: the broker judges each time by itself; as a list if one of them does not fit,
    or is below ``least``. None: it is no array. Raises BadTime for an array of something else."""
    try:
        view = memoryview(values)
    except TypeError:
        return None
    except Exception:  # numpy has no buffer of datetime64
        raise BadTime(_ARRAY.format(name=name), advice=_ARRAY_ADVICE) from None
    if view.ndim != 1 or view.format is None or view.format.lstrip("@=<") not in tuple("bBhHiIlLqQ"):
        raise BadTime(_ARRAY.format(name=name), advice=_ARRAY_ADVICE)
    numbers: list[int] = view.tolist()
    if numbers and min(numbers) < least:
        return numbers
    try:
        return pack_column("q", numbers)
    except Exception:
        return numbers


_ARRAY: Final = "{name} is an array of something else than integers."
_ARRAY_ADVICE: Final = (
    "Use int64 milliseconds: for numpy, values.astype('datetime64[ms]').astype('int64'), if UTC is meant."
)
