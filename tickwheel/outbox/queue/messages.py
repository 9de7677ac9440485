"""Messages and batches as a consumer of a queue sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar

import anyio

from tickwheel.client.times import EPOCH, Delay, duration_ms, wait_ms
from tickwheel.outbox.queue.holding import Holding
from tickwheel.outbox.queue.sql import Row
from tickwheel.outbox.transactions import Transaction
from tickwheel.protocol.errors import BadTime

_NS_A_MS: Final = 1_000_000
_LONGEST_NS: Final = 200 * 365 * 86_400 * 10**9


def fitting_ns(duration_ms: int) -> int:
    """A length of time in ns whose end a column of 64 bits can hold. Raises BadTime."""
    duration_ns = duration_ms * _NS_A_MS
    if duration_ns > _LONGEST_NS:
        raise BadTime(f"{duration_ms:,} ms from now are after the year 2262, where the queue's times end.")
    return duration_ns


class BaseQueueMessage:
    """What a message is."""

    __slots__ = ("__weakref__", "_batch", "body", "enqueued_ns", "epoch", "id")

    id: int
    """Its place in the queue; it stays the same when it comes again."""
    body: bytes
    """What was put; a str as UTF-8."""
    epoch: int
    """1 at the first claim, one more at each later one."""
    enqueued_ns: int
    """When it was put: ns since 1970 by the database's clock."""

    def __init__(self, batch: BaseQueueBatch[Any], row: Row) -> None:
        self._batch = batch
        self.id, self.body, self.epoch, self.enqueued_ns = row

    @property
    def enqueued(self) -> datetime:
        """When it was put, in UTC."""
        return EPOCH + timedelta(microseconds=self.enqueued_ns // 1_000)

    @property
    def is_lost(self) -> bool:
        """Whether it is known that another consumer has taken it over. Then the work on it can stop."""
        return self.id in self._batch.lost

    def ack_in(self, connection: Transaction) -> None:
        """Deletes it in the transaction of ``connection``: what else is done there counts if, and only if, this does.

        Raises LeaseLost when it is not held any more, which must leave the transaction's block, so that all is rolled
        back; and NotInTransaction.
        """
        self._batch.holding.delete(connection, (self.id,), is_batch=False)

    def __repr__(self) -> str:
        return f"<message {self.id} of {self._batch.queue!r}, epoch {self.epoch}, {len(self.body):,} bytes>"


M = TypeVar("M", bound=BaseQueueMessage)


class BaseQueueBatch(Generic[M]):
    """Messages that were claimed together, first put first."""

    message_class: type[M]

    def __init__(self, holding: Holding, rows: Sequence[Row]) -> None:
        self.queue = holding.sql.table.name
        """The queue's name."""
        self.ids = tuple(row.id for row in rows)
        """The id of each message."""
        self.holding = holding
        """What this process knows about their leases."""
        self._messages = [self.message_class(self, row) for row in rows]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[M]:
        return iter(self._messages)

    def __getitem__(self, index: int) -> M:
        return self._messages[index]

    @property
    def lost(self) -> tuple[int, ...]:
        """The ids of those that another consumer is known to have taken over."""
        return self.holding.lost_ids()

    def bodies(self) -> list[bytes]:
        """The body of each message."""
        return [message.body for message in self._messages]

    def ack_in(self, connection: Transaction) -> None:
        """Deletes all messages of the batch that were neither acked nor given back; otherwise as ``message.ack_in``."""
        self.holding.delete(connection, self.ids, is_batch=True)

    def __repr__(self) -> str:
        return f"<batch of {len(self):,} messages of {self.queue!r}>"


class ClaimedMessage(BaseQueueMessage):
    """A message that ``queue.claim`` returned."""

    __slots__ = ()

    def ack(self) -> None:
        """Deletes it in a transaction of its own. Raises LeaseLost when it is not held any more."""
        self._batch.holding.done((self.id,), is_batch=False)

    def nack(self, delay: Delay | None = None, *, delay_ms: int | None = None) -> None:
        """Gives it back, to be claimed after ``delay`` (a timedelta) or ``delay_ms``, in its old place."""
        self._batch.holding.release((self.id,), fitting_ns(wait_ms(delay, delay_ms) or 0))


class ClaimedBatch(BaseQueueBatch[ClaimedMessage]):
    """What ``queue.claim`` returned; its lease is extended by ``extend`` only."""

    message_class = ClaimedMessage

    def ack(self) -> None:
        """Deletes all that is left of the batch, in a transaction of its own.

        Raises LeaseLost, whose ``ids`` are not held any more; the others are deleted. After DatabaseUnavailable it may
        be called again, whether the first call was done or not. Once the lease has ended, what is gone is in ``ids``:
        another consumer may have been given it, and have deleted it.
        """
        self.holding.done(self.ids, is_batch=True)

    def nack(self, delay: Delay | None = None, *, delay_ms: int | None = None) -> None:
        """Gives all that is left of the batch back."""
        self.holding.release(self.ids, fitting_ns(wait_ms(delay, delay_ms) or 0))

    def extend(self, lease: Delay) -> None:
        """Leases what is left of the batch for ``lease`` from now on. Raises LeaseLost."""
        self.holding.extend(self.ids, fitting_ns(duration_ms(lease, "lease")))


class QueueMessage(BaseQueueMessage):
    """A message that a consumer got."""

    __slots__ = ()

    async def ack(self) -> None:
        """Deletes it in a transaction of its own. Raises LeaseLost when it is not held any more."""
        await finish(self._batch.holding, (self.id,), is_batch=False)

    async def nack(self, delay: Delay | None = None, *, delay_ms: int | None = None) -> None:
        """Gives it back, to be claimed after ``delay`` (a timedelta) or ``delay_ms``, in its old place."""
        await give_back(self._batch.holding, (self.id,), fitting_ns(wait_ms(delay, delay_ms) or 0))


class QueueBatch(BaseQueueBatch[QueueMessage]):
    """What a consumer got. Its leases are extended while the program has it, or one of its messages, in hand."""

    message_class = QueueMessage

    def __init__(self, holding: Holding, rows: Sequence[Row]) -> None:
        super().__init__(holding, rows)
        self._is_lost = anyio.Event()

    async def ack(self) -> None:
        """Deletes all that is left of the batch, in a transaction of its own. Waits for a database that is away.

        Raises LeaseLost, whose ``ids`` are not held any more; the others are deleted.
        """
        await finish(self.holding, self.ids, is_batch=True)

    async def nack(self, delay: Delay | None = None, *, delay_ms: int | None = None) -> None:
        """Gives all that is left of the batch back, in the old places; otherwise as ``QueueMessage.nack``."""
        await give_back(self.holding, self.ids, fitting_ns(wait_ms(delay, delay_ms) or 0))

    async def wait_lost(self) -> tuple[int, ...]:
        """Returns when another consumer has taken over messages of the batch; their ids."""
        await self._is_lost.wait()
        return self.lost

    def tell_lost(self) -> None:
        """Wakes ``wait_lost``. Only the consumer calls this."""
        self._is_lost.set()


async def finish(holding: Holding, ids: Sequence[int], *, is_batch: bool) -> None:
    """``Holding.done`` in a worker thread, again and again while the database is away."""
    await holding.database.call_until_done(partial(holding.done, is_batch=is_batch), ids)


async def give_back(holding: Holding, ids: Sequence[int], delay_ns: int) -> None:
    """``Holding.release`` in a worker thread, again and again while the database is away."""
    await holding.database.call_until_done(holding.release, ids, delay_ns)
