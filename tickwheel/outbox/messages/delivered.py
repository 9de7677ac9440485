"""What was delivered: messages and their batches, for programs with and without an event loop."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, overload

from tickwheel.client.times import Delay, duration_ms, wait_ms
from tickwheel.outbox.messages.acks import AckQueue, ack_alone, postpone_alone, refuse_lost
from tickwheel.outbox.messages.form import TableForm
from tickwheel.outbox.messages.statements import Claimed, Receipt
from tickwheel.outbox.transactions import AnyTransaction, joined


class BaseMessage(Mapping[str, Any]):
    """A delivered message: a mapping of the table's columns to their values.

    ``id``; ``epoch``: the number of this delivery, from 1, which is its receipt; ``priority``; ``due_ns``: when it was
    due, in ns since 1970.
    """

    __slots__ = ("_batch", "_row", "due_ns", "epoch", "id", "priority")

    def __init__(self, batch: BaseBatch[Any], claimed: Claimed) -> None:
        self._batch: Any = batch
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
        return f"{type(self).__name__}(id={self.id!r}, epoch={self.epoch}, {self._row!r})"

    def ack_in(self, connection: AnyTransaction) -> None:
        """Acks in the caller's transaction, together with the effect. Raises LeaseLost if this delivery is done or was
        taken over: then another consumer has, or will have, the effect, and the transaction has to be rolled back.
        ``connection``: also a Session, or a connection of the driver's own."""
        self._batch.settle_in(connection, [self])


M = TypeVar("M", bound=BaseMessage)


class BaseBatch(Sequence[M], Generic[M]):
    """Messages that were claimed together."""

    message_class: ClassVar[type[Any]]

    def __init__(self, table: TableForm, claimed: Sequence[Claimed]) -> None:
        self._table = table
        self._messages: list[M] = [self.message_class(self, one) for one in claimed]

    @overload
    def __getitem__(self, index: int) -> M: ...

    @overload
    def __getitem__(self, index: slice) -> list[M]: ...

    def __getitem__(self, index: int | slice) -> M | list[M]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def ack_in(self, connection: AnyTransaction) -> None:
        """As ``ack_in`` of a message, for all of the batch."""
        self.settle_in(connection, self)

    def settle_in(self, connection: AnyTransaction, messages: Sequence[M]) -> None:
        """Acks some of them in the caller's transaction."""
        table = self._table
        receipts, now_ns = receipts_of(messages), table.database.now_ns()
        with joined(connection, table.database) as one:
            refuse_lost(table.statements.ack_deliveries(one, receipts, now_ns))


class Message(BaseMessage):
    """A message of a stream."""

    __slots__ = ()
    _batch: Batch

    async def ack(self) -> None:
        """Acks in a transaction of its own. Raises LeaseLost."""
        await self._batch.settle([self])

    async def nack(self, delay: Delay | None = None, *, delay_ms: int | None = None) -> None:
        """Gives the message back, to be delivered after ``delay`` (a timedelta) or ``delay_ms``. Raises LeaseLost."""
        await self._batch.postpone([self], wait_ms(delay, delay_ms) or 0)

    async def extend(self, duration: Delay) -> None:
        """Keeps the message for ``duration`` (a timedelta) from now on. Raises LeaseLost."""
        await self._batch.postpone([self], duration_ms(duration, "duration"))


class Batch(BaseBatch[Message]):
    """Messages of a stream that were claimed together: the fast way to handle many."""

    message_class = Message

    def __init__(self, table: TableForm, claimed: Sequence[Claimed], acks: AckQueue) -> None:
        super().__init__(table, claimed)
        self._acks = acks

    async def ack(self) -> None:
        """As ``Message.ack``, for all messages of the batch."""
        await self.settle(self)

    async def nack(self, delay: Delay | None = None, *, delay_ms: int | None = None) -> None:
        """As ``Message.nack``, for all messages of the batch."""
        await self.postpone(self, wait_ms(delay, delay_ms) or 0)

    async def extend(self, duration: Delay) -> None:
        """As ``Message.extend``, for all messages of the batch."""
        await self.postpone(self, duration_ms(duration, "duration"))

    async def settle(self, messages: Sequence[Message]) -> None:
        """Acks some of them in a transaction that others may share."""
        await self._acks.add(receipts_of(messages))

    async def postpone(self, messages: Sequence[Message], delay_ms: int) -> None:
        """Gives some of them another time."""
        table, receipts = self._table, receipts_of(messages)
        await table.database.call(postpone_alone, table, receipts, delay_ms)


class ClaimedMessage(BaseMessage):
    """A message that ``MessageTable.claim`` returned."""

    __slots__ = ()
    _batch: ClaimedBatch

    def ack(self) -> None:
        """See ``Message.ack``."""
        self._batch.settle([self])

    def nack(self, delay: Delay | None = None, *, delay_ms: int | None = None) -> None:
        """See ``Message.nack``."""
        self._batch.postpone([self], wait_ms(delay, delay_ms) or 0)

    def extend(self, duration: Delay) -> None:
        """See ``Message.extend``."""
        self._batch.postpone([self], duration_ms(duration, "duration"))


class ClaimedBatch(BaseBatch[ClaimedMessage]):
    """What ``MessageTable.claim`` returned: the same as a batch of a stream, without an event loop."""

    message_class = ClaimedMessage

    def ack(self) -> None:
        """As ``Message.ack``, for all messages of the batch."""
        self.settle(self)

    def nack(self, delay: Delay | None = None, *, delay_ms: int | None = None) -> None:
        """As ``Message.nack``, for all messages of the batch."""
        self.postpone(self, wait_ms(delay, delay_ms) or 0)

    def extend(self, duration: Delay) -> None:
        """As ``Message.extend``, for all messages of the batch."""
        self.postpone(self, duration_ms(duration, "duration"))

    def settle(self, messages: Sequence[ClaimedMessage]) -> None:
        """Acks some of them in a transaction of its own."""
        refuse_lost(ack_alone(self._table, receipts_of(messages)))

    def postpone(self, messages: Sequence[ClaimedMessage], delay_ms: int) -> None:
        """Gives some of them another time."""
        postpone_alone(self._table, receipts_of(messages), delay_ms)


def receipts_of(messages: Sequence[BaseMessage]) -> list[Receipt]:
    """Ids and epochs."""
    return [(one.id, one.epoch) for one in messages]
