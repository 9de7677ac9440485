"""What a subscriber of a message table holds: the stream, its batches, and their messages."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import anyio
from sqlalchemy.engine import Connection

from tickwheel._times import Delay, delay_ms
from tickwheel.outbox.database import require_transaction
from tickwheel.outbox.errors import LeaseLost, OutboxError
from tickwheel.outbox.messages.backoff import due_ns
from tickwheel.outbox.messages.statements import Claimed, Receipt

if TYPE_CHECKING:
    from tickwheel.outbox.messages.hub import Hub
    from tickwheel.outbox.messages.table import MessageTable


class Message(Mapping[str, Any]):
    """A delivered message: a mapping of the table's columns to their values.

    ``id``; ``epoch``: the number of this delivery, from 1, which is its receipt; ``priority``; ``due_ns``: when it was
    due, in ns since 1970.
    """

    __slots__ = ("_batch", "_row", "due_ns", "epoch", "id", "priority")

    def __init__(self, batch: Batch, claimed: Claimed) -> None:
        self._batch = batch
        self._row = claimed.row
        self.id: Hashable = claimed.id
        self.epoch = claimed.epoch
        self.priority = claimed.priority
        self.due_ns = claimed.due_ns

    def __getitem__(self, name: str) -> Any:
        return self._row[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def __repr__(self) -> str:
        return f"Message(id={self.id!r}, epoch={self.epoch}, {self._row!r})"

    def ack_in(self, connection: Connection) -> None:
        """Acks in the caller's transaction, together with the effect. Raises LeaseLost if this delivery is done or was
        taken over: then the effect is, or will be, somebody else's, and the transaction has to be rolled back."""
        self._batch.settle_in(connection, [self])

    async def ack(self) -> None:
        """Acks in a transaction of its own. Raises LeaseLost."""
        await self._batch.settle([self])

    async def nack(self, delay: Delay = 0) -> None:
        """Gives the message back, to be delivered after ``delay`` (a timedelta or ms). Raises LeaseLost."""
        await self._batch.postpone([self], delay)

    async def extend(self, duration: Delay) -> None:
        """Keeps the message for ``duration`` from now on. Raises LeaseLost."""
        await self._batch.postpone([self], duration)


class Batch(Sequence[Message]):
    """Messages that were claimed together: the fast way to handle many."""

    def __init__(self, table: MessageTable, claimed: Sequence[Claimed], hub: Hub | None) -> None:
        self._table = table
        self._hub = hub
        self._messages = [Message(self, one) for one in claimed]

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def ack_in(self, connection: Connection) -> None:
        """As ``Message.ack_in``, for all messages of the batch."""
        self.settle_in(connection, self)

    async def ack(self) -> None:
        """As ``Message.ack``, for all messages of the batch."""
        await self.settle(self)

    async def nack(self, delay: Delay = 0) -> None:
        """As ``Message.nack``, for all messages of the batch."""
        await self.postpone(self, delay)

    async def extend(self, duration: Delay) -> None:
        """As ``Message.extend``, for all messages of the batch."""
        await self.postpone(self, duration)

    # -- for messages --

    def settle_in(self, connection: Connection, messages: Sequence[Message]) -> None:
        """Acks in the caller's transaction."""
        table = self._table
        require_transaction(connection)
        lost = table.statements.ack_deliveries(connection, receipts_of(messages), table.database.now_ns())
        if lost:
            raise lease_lost([one for one, _ in lost])

    async def settle(self, messages: Sequence[Message]) -> None:
        """Acks in a transaction that others may share."""
        if self._hub is not None:
            await self._hub.acks.add(receipts_of(messages))
            return
        lost = await self._table.database.call(ack_alone, self._table, receipts_of(messages))
        if lost:
            raise lease_lost([one for one, _ in lost])

    async def postpone(self, messages: Sequence[Message], delay: Delay) -> None:
        """Gives messages another time."""
        table, wait_ms = self._table, delay_ms(delay)
        due_ns(table.database.now_ns(), wait_ms)  # refused before anything is asked
        receipts = receipts_of(messages)
        lost = await table.database.transaction(
            lambda one: table.statements.postpone(one, receipts, due_ns(table.database.now_ns(), wait_ms))
        )
        if lost:
            raise lease_lost([one for one, _ in lost])


def receipts_of(messages: Sequence[Message]) -> list[Receipt]:
    """Ids and epochs."""
    return [(one.id, one.epoch) for one in messages]


def ack_alone(table: MessageTable, receipts: Sequence[Receipt]) -> list[Receipt]:
    """Acks in a transaction of its own. Returns those that neither count now nor did before."""

    def work(connection: Connection) -> list[Receipt]:
        lost = table.statements.ack_deliveries(connection, receipts, table.database.now_ns())
        done = table.statements.were_acked(connection, lost) if lost else set()
        return [one for one in lost if one not in done]

    return table.database.run(work)


def lease_lost(ids: Sequence[Hashable]) -> LeaseLost:
    """The error for deliveries that are not held any more."""
    some = ", ".join(repr(one) for one in ids[:5])
    more = f" and {len(ids) - 5:,} more" if len(ids) > 5 else ""
    return LeaseLost(f"Delivered again, changed or done in the meantime: {some}{more}.", ids=ids)


class Stream:
    """The messages that one subscriber gets. Iterating ends when the hub is closed."""

    def __init__(self, table: MessageTable, hub: Hub, batch_size: int | None) -> None:
        self._table = table
        self._hub = hub
        self._batch_size = batch_size
        self._arrived = anyio.Event()
        self._waiting: deque[Batch] = deque()
        self._current: deque[Message] = deque()
        self._error: OutboxError | None = None
        self._closed = False

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns of the messages, ``id`` first."""
        return self._table.columns

    @property
    def batch_size(self) -> int:
        """The most messages that come at once."""
        return self._batch_size or self._table.settings.batch_size

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while not self._current:
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._current.extend(batch)
        return self._current.popleft()

    def batches(self) -> AsyncIterator[Batch]:
        """The messages as they were claimed. Do not mix it with iterating over messages."""
        return _Batches(self)

    async def receive(self, timeout: float | None = None) -> Message | None:  # noqa: ASYNC109
        """The next message; None when none came within ``timeout`` seconds (None: wait for ever)."""
        if self._current:
            return self._current.popleft()
        batch = await self.receive_batch(timeout)
        if batch is None:
            return None
        self._current.extend(batch)
        return self._current.popleft()

    async def receive_batch(self, timeout: float | None = None) -> Batch | None:  # noqa: ASYNC109
        """The next batch; None when none came within ``timeout`` seconds, or when the hub was closed."""
        with anyio.move_on_after(timeout):
            return await self.next_batch()
        return None

    async def next_batch(self) -> Batch | None:
        """The next batch; None when the hub was closed."""
        while not self._waiting:
            if self._error is not None:
                raise self._error.copy()
            if self._closed:
                return None
            if self._arrived.is_set():  # else somebody else waits for it already
                self._arrived = anyio.Event()
            await self._arrived.wait()
        batch = self._waiting.popleft()
        self._hub.has_room()
        return batch

    # -- the hub's side --

    @property
    def wants(self) -> int:
        """How many messages it can be given now: a batch, once it has taken the one before."""
        return 0 if self._waiting or self._closed else self.batch_size

    def give(self, batch: Batch) -> None:
        """Hands over a batch."""
        self._waiting.append(batch)
        self._arrived.set()

    def close(self, error: OutboxError | None = None) -> list[Receipt]:
        """No more messages come. Returns the receipts of those that nobody has looked at."""
        self._closed, self._error = True, self._error or error
        unseen = receipts_of([*self._current, *(message for batch in self._waiting for message in batch)])
        self._current.clear()
        self._waiting.clear()
        self._arrived.set()
        return unseen


class _Batches:
    """No generator: one that is left in the middle would have to be closed by hand."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> _Batches:
        return self

    async def __anext__(self) -> Batch:
        batch = await self._stream.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch
