"""Acks in transactions of our own: alone, or, in a hub, shared by those that come while another is under way."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence

import anyio
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from tickwheel.client.waiting.backoff import Backoff
from tickwheel.outbox.errors import AWAY, DatabaseUnavailable, LeaseLost, OutboxError
from tickwheel.outbox.messages.backoff import NS_A_MS, due_ns
from tickwheel.outbox.messages.form import TableForm
from tickwheel.outbox.messages.statements import Receipt
from tickwheel.protocol.errors import TickwheelError

logger = logging.getLogger("tickwheel.outbox")

_ATTEMPTS = 6


def ack_alone(table: TableForm, receipts: Sequence[Receipt]) -> list[Receipt]:
    """Acks in a transaction of its own. Returns those that neither count now nor did before."""

    def work(connection: Connection) -> list[Receipt]:
        lost = table.statements.ack_deliveries(connection, receipts, table.database.now_sql())
        done = table.statements.were_acked(connection, lost) if lost else set()
        return [one for one in lost if one not in done]

    return table.database.run(work)


def postpone_alone(table: TableForm, receipts: Sequence[Receipt], delay_ms: int) -> None:
    """Gives deliveries another time in a transaction of its own. Raises LeaseLost, BadTime."""
    due_ns(table.database.now_ns(), delay_ms)  # refused before anything is asked
    refuse_lost(
        table.database.run(
            lambda one: table.statements.postpone(
                one, receipts, table.database.now_sql() + delay_ms * NS_A_MS
            )
        )
    )


def refuse_lost(lost: Sequence[Receipt]) -> None:
    """Raises LeaseLost if there are any."""
    if lost:
        raise lease_lost([one for one, _ in lost])


def lease_lost(ids: Sequence[Hashable]) -> LeaseLost:
    """The error for deliveries that are not held any more."""
    some = ", ".join(repr(one) for one in ids[:5])
    more = f" and {len(ids) - 5:,} more" if len(ids) > 5 else ""
    return LeaseLost(f"Delivered again, changed or done in the meantime: {some}{more}.", ids=ids)


class _Waiter:
    def __init__(self, receipts: Sequence[Receipt]) -> None:
        self.receipts = receipts
        self.done = anyio.Event()
        self.error: OutboxError | None = None
        self.is_left = False
        """Its caller was cancelled."""

    @property
    def lost(self) -> int:
        """How many of its acks were not made."""
        return len(self.error.ids if isinstance(self.error, LeaseLost) else self.receipts)


class AckQueue:
    """Group commit for acks."""

    def __init__(self, table: TableForm) -> None:
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
        try:
            await waiter.done.wait()
        except BaseException:
            waiter.is_left = True
            if waiter.done.is_set():
                self._tell_left([waiter])
            raise
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
        waiters = [*self._under_way, *self._waiters]
        for waiter in waiters:
            waiter.error = error.copy()  # type: ignore[assignment]
            waiter.done.set()
        self._waiters, self._under_way = [], []
        self._tell_left(waiters)

    def _tell_left(self, waiters: Sequence[_Waiter]) -> None:
        """The log has the errors that no caller waits for any more."""
        left = [waiter for waiter in waiters if waiter.is_left and waiter.error is not None]
        if left:
            logger.warning(
                "%s: %d acks whose callers were cancelled were not made: %s",
                self._table.name,
                sum(waiter.lost for waiter in left),
                left[0].error,
            )

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
            self._tell_left(waiters)
            return
        for waiter in waiters:
            own = [one[0] for one in waiter.receipts if one in lost]
            waiter.error = lease_lost(own) if own else None
            waiter.done.set()
        self._tell_left(waiters)

    async def _attempt(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Acks are safe to repeat, so a broken connection only delays them."""
        backoff = Backoff(first_s=0.05, max_s=2.0)
        for attempt in range(_ATTEMPTS):
            try:
                return await self._table.database.call(ack_alone, self._table, receipts)
            except AWAY:
                if attempt == _ATTEMPTS - 1:
                    raise
            await anyio.sleep(backoff.next_s())
        raise AssertionError("unreachable")
