"""What a caller gives for the columns of a message table, checked before the database is asked.

Ids, times, priorities and epochs are checked wholly. Of the user's own columns only what no database could store is
refused here; what a database refuses nevertheless becomes a typed error, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    InterfaceError,
    ProgrammingError,
    StatementError,
)

from tickwheel.client.checks import encoded, shown, whole, whole_or_none
from tickwheel.client.times import EPOCH
from tickwheel.outbox.database import Kind, error_code
from tickwheel.outbox.messages.backoff import LATEST_NS, NS_A_MS
from tickwheel.outbox.messages.columns import bits_of, range_of
from tickwheel.protocol.errors import BadArgument, BadTime
from tickwheel.protocol.limits import LEAST_NUMBER_MS

Check: TypeAlias = Callable[[Any, str], Any]
"""A value of a column, and how it is called in messages; returns what is stored."""

_HEX_DIGITS: Final = 32
_LEAST_NS: Final = LEAST_NUMBER_MS * NS_A_MS
_TIME_ADVICE: Final = "Use whole nanoseconds since 1970, up to the year 2262; deliver_at= takes datetimes."
_OTHER_TYPE: Final = ("42804", "42883", "22P02")
"""PostgreSQL: a value of another type than the column, no operator for the two, a text that is none of the type."""


class Values:
    """The checks for one state of a table."""

    def __init__(self, kind: Kind, table: sa.Table) -> None:
        self._kind: Kind = kind
        self._table = table
        self._of_user = {one.name: self._check_of(one) for one in table.c}
        self._of_user["time_next"] = self._time
        self._of_user["priority"] = lambda value, name: self.number("priority", value)
        self._id = table.c.id

    def stored(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a new message. Raises BadArgument, BadTime."""
        made = {name: self._one(name, value) for name, value in row.items()}
        for name in ("id", "priority"):
            if made.get(name, 0) is None:
                del made[name]  # as if it was left out
        if made.get("id") is not None:
            made["id"] = self.message_id(made["id"])
        return made

    def _one(self, name: str, value: Any) -> Any:
        if isinstance(value, sa.ClauseElement) or (value is None and name != "time_next"):
            return value
        return self._of_user[name](value, name)

    def ids(self, values: Iterable[Hashable]) -> list[Hashable]:
        """The ids of messages, each as its column has it. Raises BadArgument."""
        advice = "Pass a list of ids."
        if isinstance(values, str | bytes | bytearray | memoryview | Mapping):
            raise BadArgument("ids is no list.", advice=advice)
        try:
            given = list(values)
        except TypeError:
            raise BadArgument("ids is no list.", advice=advice) from None
        return [self.message_id(one, f"ids[{index}]") for index, one in enumerate(given)]

    def message_id(self, value: Any, name: str = "id") -> Any:
        """An id as its column has it. Raises BadArgument."""
        kind = self._id.type
        if isinstance(value, sa.ClauseElement):
            return value
        if isinstance(kind, sa.Integer):
            return whole(value, name, *range_of(self._kind, self._id))
        if isinstance(kind, sa.LargeBinary) and not isinstance(value, bytes | bytearray | memoryview):
            raise BadArgument(
                f"{name} is {shown(value)}.", advice=f"{self._table.name}.id is binary: use bytes."
            )
        if (
            isinstance(kind, sa.String)
            and not isinstance(kind, sa.Enum)
            and not isinstance(value, str | UUID)
        ):
            raise BadArgument(
                f"{name} is {shown(value)}.", advice=f"{self._table.name}.id is text: use a str."
            )
        if value is None:
            raise BadArgument(f"{name} is None.", advice="Use the id of a message.")
        return self._of_user["id"](value, name)

    def number(self, name: str, value: Any) -> Any:
        """A number that the column can hold, or SQL: what is written here must not stop the table."""
        if isinstance(value, sa.ClauseElement):
            return value
        first, last = range_of(self._kind, self._table.c[name])
        return whole(value, name, max(first, 0) if name == "epoch" else first, last)

    def _time(self, value: Any, name: str) -> int:
        if value is None:
            raise BadTime(
                f"{name} is NULL: such a message would never be delivered.", advice="Leave it out for now."
            )
        number = whole_or_none(value)
        if number is None or not 0 <= number <= LATEST_NS:
            raise BadTime(
                f"{name} is {shown(value)}.",
                advice=_TIME_ADVICE,
            )
        if 0 < number < _LEAST_NS:
            at = EPOCH + timedelta(microseconds=number // 1_000)
            raise BadTime(
                f"{name}={number} is {at:%B %Y} in nanoseconds. Are seconds or milliseconds meant?",
                advice=f"{_TIME_ADVICE} 0 is now.",
            )
        return number

    def _check_of(self, column: sa.Column[Any]) -> Check:
        kind = column.type
        if isinstance(kind, sa.JSON | sa.ARRAY | sa.Enum):
            return lambda value, name: value
        if isinstance(kind, sa.Integer):
            return self._of_whole(column)
        if isinstance(kind, sa.Uuid):
            return _uuid
        if isinstance(kind, sa.String):
            return self._of_text(kind)
        return self._anything

    def _of_whole(self, column: sa.Column[Any]) -> Check:
        first, last = range_of(self._kind, column)
        if first == 0:
            last = (1 << (bits_of(self._kind, column) or 64)) - 1  # unsigned

        def check(value: Any, name: str) -> Any:
            if type(value) is bool:
                return value
            number = whole_or_none(value)
            if number is not None:
                value = number
            if isinstance(value, int | float | Decimal) and not _is_between(first, value, last):
                raise BadArgument(
                    f"{name} is {shown(value)}.", advice=f"Use a whole number from {first:,} to {last:,}."
                )
            return self._anything(value, name)

        return check

    def _of_text(self, kind: sa.String) -> Check:
        def check(value: Any, name: str) -> Any:
            if isinstance(value, UUID):  # SQLite tells of a column of UUIDs only that it is one of texts
                return value.hex if kind.length == _HEX_DIGITS else str(value)
            return self._anything(value, name)

        return check

    def _anything(self, value: Any, name: str) -> Any:
        if isinstance(value, str):
            if not value.isascii():
                encoded(value, name)
            if self._kind == "postgresql" and "\0" in value:
                raise BadArgument(
                    f"{name} is {shown(value)}, with a null character, which PostgreSQL cannot store.",
                    advice="Store it as bytes.",
                )
            return value
        return _plain(value, name) if type(value).__module__ == "numpy" else value


def _plain(value: Any, name: str) -> Any:
    """A number of numpy's as Python's: SQLite's driver would store its memory."""
    if type(value).__name__ in ("datetime64", "timedelta64"):
        raise BadArgument(f"{name} is a {type(value).__name__}.", advice="Use a datetime or a timedelta.")
    return value.item() if getattr(value, "shape", None) == () else value


def _is_between(first: int, value: Any, last: int) -> bool:
    try:
        return bool(first <= value <= last)
    except ArithmeticError:  # Decimal("NaN")
        return False


def _uuid(value: Any, name: str) -> Any:
    if isinstance(value, str):
        try:
            return UUID(value)
        except ValueError:
            pass
    if isinstance(value, UUID):
        return value
    raise BadArgument(f"{name} is {shown(value)}.", advice="Use a uuid.UUID.")


@contextmanager
def values_refused(table: str) -> Iterator[None]:
    """What a driver or a database says of values in the block, as BadArgument. What breaks a constraint stays
    SQLAlchemy's IntegrityError, and what is wrong with the table or the server is no matter of values."""
    try:
        yield
    except DBAPIError as error:
        if not _is_of_values(error):
            raise
        raise _refused(table, error.orig or error) from error
    except StatementError as error:  # a type of SQLAlchemy's, before the driver was asked
        raise _refused(table, error.orig or error) from error
    except (ArgumentError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, BadArgument):
            raise
        raise _refused(table, error) from error


def _is_of_values(error: DBAPIError) -> bool:
    if isinstance(error, DataError):
        return True
    code = error_code(error)
    if not isinstance(error, ProgrammingError | InterfaceError):
        return False
    of_driver = isinstance(code, str) and ("binding parameter" in code or "annot adapt" in code)
    return of_driver or code in _OTHER_TYPE


def _refused(table: str, error: BaseException) -> BadArgument:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return BadArgument(
        f"{table} cannot store a value: {said}.",
        advice="Correct the value. On PostgreSQL the transaction has to be rolled back.",
    )
