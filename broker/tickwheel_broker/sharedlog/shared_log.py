"""What the cluster asks of the log that all its nodes share: one total order of records, kept on several machines.

`kafka.log` is the real one, a partition of Kafka. Tests and the simulation have one that delays, loses and doubles.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

APPEND_TIMEOUT_S: Final = 5.0
"""So long an append may take before it counts as failed, at most."""


class AppendFailed(Exception):
    """The shared log did not say that it has a record. It may have it, or get it later."""


class SharedLogUnavailable(Exception):
    """The shared log cannot be read now."""


class NoSharedLog(SharedLogUnavailable):
    """There is none of this name; one that was just made, or comes back, may seem so for a moment."""


class OutOfRange(SharedLogUnavailable):
    """The record that was to be read next is not there: it was deleted, or the shared log has lost its end."""

    def __init__(self, offset: int, first: int, end: int) -> None:
        super().__init__(
            f"the shared log has the records from {first} to {end - 1}, and {offset} was to be read"
        )
        self.offset, self.first, self.end = offset, first, end

    @property
    def is_deleted(self) -> bool:
        """Whether there are records, but later ones: `first` is where they begin."""
        return self.offset < self.first


class Stored(NamedTuple):
    """A record and its place: places grow by one from record to record."""

    offset: int
    record: bytes


Read = Callable[[int], Awaitable[list[Stored]]]
"""As `SharedLog.read`."""


class SharedLog(Protocol):
    """One partition. Every call may be cancelled."""

    async def append(self, records: list[bytes]) -> list[int | None]:
        """Return where each record stands once all of them are kept by enough machines; None where the log does not
        say. Raises AppendFailed."""

    async def read(self, offset: int) -> list[Stored]:
        """Return records from `offset` on, at least one: wait until there is. One call at a time. Raises
        SharedLogUnavailable; OutOfRange, which is one, where there are records, but not this one."""

    def apart(self) -> AbstractAsyncContextManager[Read]:
        """For reading something else beside `read`, inside the context."""

    async def end(self) -> int:
        """Where the next record will stand, at the least. Raises SharedLogUnavailable."""

    async def first(self) -> int:
        """Where the first record stands that is still there. Raises SharedLogUnavailable."""

    async def delete_before(self, offset: int) -> None:
        """Forget all records before this one. Raises SharedLogUnavailable: it is tried again later."""
