"""Properties of what a broker answers: its milliseconds as moments and lengths of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

T = TypeVar("T", covariant=True)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def datetime_of(time_ms: int) -> datetime:
    """Epoch milliseconds as an aware datetime in UTC; what lies beyond the year 9999 is its last microsecond."""
    try:
        return _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


class Property(property, Generic[T]):
    """A property whose type is known."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, found: None, owner: type | None = None) -> Property[T]: ...
        @overload
        def __get__(self, found: Any, owner: type | None = None) -> T: ...
        def __get__(self, found: Any, owner: type | None = None) -> Any: ...


def moment(field: str, meaning: str = "") -> Property[datetime]:
    """A field of epoch milliseconds as a datetime."""

    def read(found: Any) -> datetime:
        return datetime_of(getattr(found, field))

    read.__doc__ = meaning or f"``{field}`` as a datetime."
    return Property(read)


def moment_or_none(field: str, meaning: str = "", *, none: int | None = 0) -> Property[datetime | None]:
    """A field of epoch milliseconds as a datetime; None where it is `none`."""

    def read(found: Any) -> datetime | None:
        time_ms = getattr(found, field)
        return None if time_ms == none else datetime_of(time_ms)

    read.__doc__ = meaning or f"``{field}`` as a datetime."
    return Property(read)


def length(field: str, meaning: str = "") -> Property[timedelta]:
    """A field of milliseconds as a timedelta."""

    def read(found: Any) -> timedelta:
        return timedelta(milliseconds=getattr(found, field))

    read.__doc__ = meaning or f"``{field}`` as a timedelta."
    return Property(read)
