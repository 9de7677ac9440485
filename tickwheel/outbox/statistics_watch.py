"""Noticing commits on MariaDB and MySQL, which have nothing that can be waited for.

The server counts the statements of all its clients, and tells the count without executing one (COM_STATISTICS, which
`mysqladmin status` uses and which is not itself counted). While the count stands still, nothing was committed,
and the table need not be asked. On a server that is never still, it is asked as often as this watch looks.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from tickwheel.client.waiting.backoff import Backoff
from tickwheel.outbox.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from tickwheel.outbox.database import Database

_INTERVAL_S: Final = 0.010
_LONGEST_INTERVAL_S: Final = 0.080
"""Where others keep the server busy, but not with messages."""
_FIRST_ECHO_S: Final = 0.020
_LAST_ECHO_S: Final = 1.5
_QUESTIONS: Final = re.compile(rb"Questions: (\d+)")


class Echoes:
    """When to look again after a change was seen, and nothing more was.

    A commit shows before others can read what it wrote: while it is on its way to the disk, which takes as long as the
    disk takes. A second one right after it may not show at all, because file times are only as fine as the kernel's
    clock. So there is a look soon afterwards, and some more at growing distances.
    """

    def __init__(self) -> None:
        self._pause_s = math.inf
        self._at = math.inf

    def start(self, now: float) -> None:
        """Something changed."""
        self._pause_s = _FIRST_ECHO_S
        self._at = now + self._pause_s

    def is_due(self, now: float) -> bool:
        """Whether to look again now."""
        if now < self._at:
            return False
        self._pause_s *= 2
        self._at = now + self._pause_s if self._pause_s <= _LAST_ECHO_S else math.inf
        return True


@dataclass(slots=True)
class Look:
    """What came of looking for messages. ``found``: something was there; set it inside of the block."""

    found: bool = False


class StatisticsWatch:
    """Rings when the server's count of statements has changed, other than by our own looking."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None
        self._lock = anyio.Lock()
        self._quiet_at = -1
        """The count at which nothing new can be there."""
        self._own_cost: int | None = None
        """What one look that finds nothing adds to the count."""
        self._aside_costs: dict[str, int] = {}
        """The same for other statements of ours."""
        self._busy_with = 0
        """How many blocks of ``look`` and ``aside`` are open."""
        self._fruitless = 0

    async def run(self, ring: Callable[[int | None], None]) -> None:
        """See ``tickwheel.outbox.watch.Watch``."""
        backoff = Backoff(first_s=0.05, max_s=2.0)
        echoes = Echoes()
        try:
            while True:
                try:
                    if self._busy_with:
                        pass
                    elif await self._count() != self._quiet_at:
                        echoes.start(anyio.current_time())
                        ring(None)
                    elif echoes.is_due(anyio.current_time()):
                        ring(None)
                    backoff.reset()
                    await anyio.sleep(
                        min(_INTERVAL_S * 2 ** min(self._fruitless // 8, 10), _LONGEST_INTERVAL_S)
                    )
                except DatabaseUnavailable:
                    await anyio.sleep(backoff.next_s())
        finally:
            # A `look` may be reading the count in a thread, which a cancellation does not end.
            with anyio.CancelScope(shield=True):
                async with self._lock:
                    self._close()

    @asynccontextmanager
    async def look(self) -> AsyncIterator[Look]:
        """See ``tickwheel.outbox.watch.Watch``. The count is read before and after: what our own statements add is
        known from looks during which no other client executed anything, so that it can be told from the others'."""
        look = Look()
        async with self._counted() as counts:
            yield look
        before, after = counts
        self._fruitless = 0 if look.found else self._fruitless + 1
        if look.found:
            return
        if after - before == self._own_cost:
            self._quiet_at = after
        else:
            self._own_cost = _lower(self._own_cost, after - before)

    @asynccontextmanager
    async def aside(self, what: str) -> AsyncIterator[None]:
        """See ``tickwheel.outbox.watch.Watch``. Without statements of other clients, nothing new can be there."""
        async with self._counted() as counts:
            yield
        before, after = counts
        if before == self._quiet_at and after - before == self._aside_costs.get(what):
            self._quiet_at = after
        else:
            self._aside_costs[what] = _lower(self._aside_costs.get(what), after - before)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[list[int]]:
        """The counts before and after the block."""
        counts: list[int] = []
        self._busy_with += 1
        try:
            counts.append(await self._count())
            yield counts
            counts.append(await self._count())
        finally:
            self._busy_with -= 1

    async def _count(self) -> int:
        async with self._lock:
            return await self._database.call(self._read_count)

    def _read_count(self) -> int:
        from pymysql import MySQLError
        from pymysql.constants import COMMAND

        try:
            if self._connection is None:
                self._connection = self._database.own_connection()
            self._connection._execute_command(COMMAND.COM_STATISTICS, b"")
            found = _QUESTIONS.search(self._connection._read_packet().get_all_data())
        except (MySQLError, OSError) as error:
            self._close()
            raise DatabaseUnavailable(f"{self._database.name}: {error}") from error
        assert found is not None
        return int(found[1])

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection._force_close()


def _lower(known: int | None, cost: int) -> int:
    """Statements of other clients may be part of a cost: the lowest one is that of ours alone."""
    return cost if known is None else min(known, cost)
