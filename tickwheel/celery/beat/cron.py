"""From Celery's crontab to a cron expression of the broker with exactly the same times.

What is written stays as it is written, because the rule for days on which clocks change depends on it: an expression
whose minute or hour begins with ``*`` goes by elapsed time, any other one is a time of day. Only what cron does not
know is written in another way: names of more than three letters, and ranges that go round the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple

from celery.schedules import crontab, crontab_parser
from cronsim import CronSim, CronSimError

from tickwheel.celery.beat.errors import NotOnBroker
from tickwheel.sharing.cron_days import has_both_days


class _Field(NamedTuple):
    name: str
    size: int
    first: int = 0

    @property
    def all(self) -> set[int]:
        return set(range(self.first, self.first + self.size))


_MINUTE: Final = _Field("minute", 60)
_HOUR: Final = _Field("hour", 24)
_DAY: Final = _Field("day_of_month", 31, 1)
_MONTH: Final = _Field("month_of_year", 12, 1)
_WEEKDAY: Final = _Field("day_of_week", 7)
_FIELDS: Final = (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)
_ANY: Final = datetime(2026, 1, 1)


def cron_expression(schedule: crontab) -> str:
    """The cron expression with the same times. Raises NotOnBroker if there is none."""
    parts = [_written(schedule, field) for field in _FIELDS]
    days, weekdays = parts[2], parts[4]
    if has_both_days(days, weekdays):
        raise NotOnBroker(
            "it restricts both day_of_month and day_of_week, where Celery wants both to agree, and cron one of them"
        )
    expression = " ".join(parts)
    if not _means(expression, schedule):
        raise NotOnBroker(f"the cron expression {expression!r} would not mean the same")
    return expression


def _written(schedule: crontab, field: _Field) -> str:
    given, values = getattr(schedule, f"_orig_{field.name}"), set(getattr(schedule, field.name))
    is_time = field in (_MINUTE, _HOUR)
    if isinstance(given, str):
        # Of days, "1-31" restricts nothing; only a star says so to cron.
        if not is_time and values == field.all and not given.startswith("*"):
            return "*"
        return ",".join(_part(part.strip(), field) for part in given.split(","))
    return "*" if values == field.all else _runs(values)


def _part(part: str, field: _Field) -> str:
    if part.startswith("*"):
        return part
    span, slash, step = part.partition("/")
    first, dash, last = span.partition("-")
    if not dash:
        return _word(part)
    begin, end = (_number(word, field) for word in (first, last))
    if begin < end:
        return f"{_word(first)}-{_word(last)}{slash}{step}"
    # Also of "5-5/10", by which cron means 5, 15, …
    return ",".join(str(number) for number in sorted(crontab_parser(field.size, field.first).parse(part)))


def _word(word: str) -> str:
    """A number as it is; a name in cron's three letters."""
    return word if word.isdigit() else word[:3].upper()


def _number(word: str, field: _Field) -> int:
    (number,) = crontab_parser(field.size, field.first).parse(word)
    return int(number)


def _runs(values: Iterable[int]) -> str:
    """Numbers as cron writes them: ``0,30`` or ``8-17``. An expression has 256 characters at most."""
    ordered = sorted(values)
    breaks = [index for index, (one, other) in enumerate(pairwise(ordered), 1) if other != one + 1]
    runs = [ordered[begin:end] for begin, end in pairwise((0, *breaks, len(ordered)))]
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(str(number) for number in run) for run in runs
    )


def _means(expression: str, schedule: crontab) -> bool:
    """Whether cron reads the expression as Celery reads what it was made of."""
    try:
        read = CronSim(expression, _ANY)
    except (CronSimError, ValueError):
        return False
    weekdays: set[Any] = {day % 7 if isinstance(day, int) else day for day in read.weekdays}
    return (read.seconds, read.minutes, read.hours, read.days, read.months, weekdays) == (
        {0},
        set(schedule.minute),
        set(schedule.hour),
        set(schedule.day_of_month),
        set(schedule.month_of_year),
        set(schedule.day_of_week),
    )
