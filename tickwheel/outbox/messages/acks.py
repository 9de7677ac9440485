"""Acks of one hub: those that come while a transaction is under way share the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio
from sqlalchemy.exc import DBAPIError

from tickwheel.client.backoff import Backoff
from tickwheel.outbox.errors import DatabaseBusy, DatabaseUnavailable, OutboxError
from tickwheel.outbox.messages.delivered import ack_alone, lease_lost
from tickwheel.outbox.messages.statements import Receipt
from tickwheel.protocol.errors import TickwheelError

if TYPE_CHECKING:
    from tickwheel.outbox.messages.table import MessageTable

_ATTEMPTS = 6


class _Waiter:
    def __init__(self, receipts: Sequence[Receipt]) -> None:
        self.receipts = receipts
        self.done = anyio.Event()
        self.error: OutboxError | None = None


class AckQueue:
    """Group commit for acks."""

    def __init__(self, table: MessageTable) -> None:
        self._table = table
        self._waiters: list[_Waiter] = []
        self._under_way: list[_Waiter] = []
        self._arrived = anyio.Event()
        self._failed: TickwheelError | None = None
        self._closed = False

    async def add(self, receipts: Sequence[Receipt]) -> None:
        """Returns when the acks are committed. Raises LeaseLost, with the ids that did not count."""
        if self._failed is not None:
            raise self._failed.copy()
        waiter = _Waiter(receipts)
        if self._closed:
            await self._commit([waiter])
            if waiter.error is not None:
                raise waiter.error
            return
        self._waiters.append(waiter)
        self._arrived.set()
        await waiter.done.wait()
        if waiter.error is not None:
            raise waiter.error

    async def flush(self) -> None:
        """Waits for all acks so far."""
        for waiter in [*self._under_way, *self._waiters]:
            await waiter.done.wait()

    def close(self) -> None:
        """Nothing runs any more: later acks have transactions of their own."""
        self._closed = True
        self._end(DatabaseUnavailable("The hub was closed before the acks were made."))

    def fail(self, error: OutboxError) -> None:
        """No ack can be made any more."""
        self._failed = error
        self._end(error)

    def forked(self, error: TickwheelError) -> None:
        """The parent of this process makes the acks."""
        self._failed = error

    def _end(self, error: OutboxError) -> None:
        for waiter in [*self._under_way, *self._waiters]:
            waiter.error = error.copy()  # type: ignore[assignment]
            waiter.done.set()
        self._waiters, self._under_way = [], []

    async def run(self) -> None:
        """Makes acks until it is cancelled."""
        while True:
            while not self._waiters:
                self._arrived = anyio.Event()
                await self._arrived.wait()
            self._under_way, self._waiters = self._waiters, []
            await self._commit(self._under_way)
            self._under_way = []

    async def _commit(self, waiters: Sequence[_Waiter]) -> None:
        receipts = list(dict.fromkeys(one for waiter in waiters for one in waiter.receipts))
        try:
            lost = set(await self._attempt(receipts))
        except (OutboxError, DBAPIError) as error:
            for waiter in waiters:
                waiter.error = OutboxError(f"The acks were not made: {error}", advice="")
                if isinstance(error, OutboxError):
                    waiter.error = error.copy()  # type: ignore[assignment]
                waiter.done.set()
            return
        for waiter in waiters:
            own = [one[0] for one in waiter.receipts if one in lost]
            waiter.error = lease_lost(own) if own else None
            waiter.done.set()

    async def _attempt(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Acks are safe to repeat, so a broken connection only delays them."""
        backoff = Backoff(first_s=0.05, max_s=2.0)
        for attempt in range(_ATTEMPTS):
            try:
                return await self._table.database.call(ack_alone, self._table, receipts)
            except (DatabaseUnavailable, DatabaseBusy):
                if attempt == _ATTEMPTS - 1:
                    raise
            await anyio.sleep(backoff.next_s())
        raise AssertionError("unreachable")
