"""Messages and batches as a subscriber sees them. Nothing is unpacked before it is asked for."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from datetime import datetime
from itertools import count, repeat
from typing import Any, Generic, TypeVar, cast

from tickwheel._moments import datetime_of
from tickwheel.client.consumer.acks import FLIGHT_ACKS_MAX, AckQueue
from tickwheel.client.consumer.giving_back import give_back
from tickwheel.client.consumer.headers import headers_of, json_of
from tickwheel.client.results import ReceiptResult
from tickwheel.client.times import Delay
from tickwheel.protocol.messages import Delivery, pack_column


class BaseMessage:
    """What a message is, without the way to ack it."""

    __slots__ = ("__weakref__", "_batch", "_index", "epoch", "id")

    id: int
    """Unique in the broker; it stays the same at a redelivery."""
    epoch: int
    """1 at the first delivery to the group, one more at each redelivery."""

    def __init__(self, batch: BaseBatch[Any], index: int, message_id: int, epoch: int) -> None:
        self.id = message_id
        self.epoch = epoch
        self._batch = batch
        self._index = index

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._batch.topic

    @property
    def acks(self) -> AckQueue:
        """Where its ack goes."""
        return self._batch.acks

    @property
    def receipts(self) -> tuple[Sequence[int], Sequence[int]]:
        """Ids and epochs: what an ack names."""
        return (self.id,), (self.epoch,)

    @property
    def body(self) -> bytes:
        """What was sent."""
        batch = self._batch
        end = batch.ends[self._index]
        return batch.delivery.payload[end - batch.delivery.body_bytes[self._index] : end]

    def json(self) -> Any:
        """The body, which is JSON. Raises RemoteProtocolError for another one."""
        return json_of(self.id, self.body)

    @property
    def attempt(self) -> int:
        """Which attempt of the group this delivery is, from 1. What was given back without having been looked at, or
        as ``uncounted``, was none. Only where it was asked for (as ``Worker`` does); else it is the epoch."""
        attempts = self._batch.delivery.attempts
        return self.epoch if attempts is None else attempts[self._index]

    @property
    def key(self) -> str | None:
        """The key; None if it has none. One that starts with ``~`` was made by the sending client."""
        delivery = self._batch.delivery
        size = delivery.key_bytes[self._index]
        if not size:
            return None
        start = self._batch.start_of(self._index)
        return delivery.payload[start : start + size].decode(errors="surrogateescape")

    @property
    def order_key(self) -> str | None:
        """The ordering key; None if it has none."""
        delivery = self._batch.delivery
        size = delivery.order_bytes[self._index]
        if not size:
            return None
        end = self._batch.ends[self._index] - delivery.body_bytes[self._index]
        return delivery.payload[end - size : end].decode(errors="surrogateescape")

    @property
    def headers(self) -> dict[str, Any]:
        """The headers; empty if it has none. Raises RemoteProtocolError if another client wrote no valid
        ones."""
        delivery = self._batch.delivery
        size = delivery.headers_bytes[self._index]
        if not size:
            return {}
        start = self._batch.start_of(self._index) + delivery.key_bytes[self._index]
        return headers_of(self.id, delivery.payload[start : start + size])

    @property
    def priority(self) -> int:
        """0 (first) to 255 (last)."""
        return self._batch.delivery.priorities[self._index]

    @property
    def deliver_at_ms(self) -> int:
        """When it was due: epoch milliseconds."""
        return self._batch.deliver_at_ms[self._index]

    @property
    def created_ms(self) -> int:
        """When the broker received it: epoch milliseconds."""
        return self._batch.created_ms[self._index]

    @property
    def deliver_at(self) -> datetime:
        """When it was due, in UTC."""
        return datetime_of(self.deliver_at_ms)

    @property
    def created(self) -> datetime:
        """When the broker received it, in UTC."""
        return datetime_of(self.created_ms)

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.topic!r}, epoch {self.epoch}, {len(self.body):,} bytes>"


M = TypeVar("M", bound=BaseMessage)
T = TypeVar("T")


class BaseBatch(Generic[M]):
    """Messages that arrived together: what they are, without the way to ack them."""

    message_class: type[M]

    def __init__(self, delivery: Delivery, topic: str, acks: AckQueue) -> None:
        self.delivery = delivery
        self.topic = topic
        self.acks = acks
        self._ids: tuple[int, ...] | None = None
        self._ends: list[int] | None = None
        self._deliver_at_ms: tuple[int, ...] | None = None
        self._created_ms: tuple[int, ...] | None = None
        self._dropped: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return self.delivery.count - len(self._dropped)

    def __iter__(self) -> Iterator[M]:
        """The messages, in order."""
        make = cast("Any", self.message_class)
        messages = map(make, repeat(self), count(), self.delivery.ids, self.delivery.epochs)
        if self._dropped:
            # No generator: several threads may take messages from it.
            return filter(lambda message: message._index not in self._dropped, messages)
        return messages

    def drop(self, gone: Container[tuple[int, int]]) -> None:
        """Leaves out messages (id, epoch) that are no longer this subscriber's."""
        pairs = zip(self.delivery.ids, self.delivery.epochs, strict=True)
        self._dropped = self._dropped | frozenset(index for index, pair in enumerate(pairs) if pair in gone)
        self._ids = None

    def _kept(self, values: Sequence[T]) -> Sequence[T]:
        if not self._dropped:
            return values
        return tuple(value for index, value in enumerate(values) if index not in self._dropped)

    @property
    def ids(self) -> tuple[int, ...]:
        """The id of each message."""
        if self._ids is None:
            self._ids = tuple(self._kept(self.delivery.ids))
        return self._ids

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epoch of each message."""
        return tuple(self._kept(self.delivery.epochs))

    @property
    def deliver_at_ms(self) -> tuple[int, ...]:
        """When each message was due: epoch milliseconds."""
        if self._deliver_at_ms is None:
            self._deliver_at_ms = self.delivery.deliver_at_ms
        return self._deliver_at_ms

    @property
    def created_ms(self) -> tuple[int, ...]:
        """When the broker received each message: epoch milliseconds."""
        if self._created_ms is None:
            self._created_ms = self.delivery.created_ms
        return self._created_ms

    @property
    def deliver_at(self) -> list[datetime]:
        """When each message was due, in UTC."""
        return [datetime_of(time_ms) for time_ms in self.deliver_at_ms]

    @property
    def created(self) -> list[datetime]:
        """When the broker received each message, in UTC."""
        return [datetime_of(time_ms) for time_ms in self.created_ms]

    @property
    def ends(self) -> list[int]:
        """Where each message ends in the frame."""
        if self._ends is None:
            self._ends = self.delivery.ends()
        return self._ends

    def start_of(self, index: int) -> int:
        """Where a message (its key) starts in the frame."""
        delivery = self.delivery
        return (
            self.ends[index]
            - delivery.body_bytes[index]
            - delivery.headers_bytes[index]
            - delivery.key_bytes[index]
            - delivery.order_bytes[index]
        )

    @property
    def receipts(self) -> tuple[Sequence[int], Sequence[int]]:
        """Ids and epochs: what an ack names."""
        return self.ids, self.epochs

    @property
    def ack_columns(self) -> tuple[bytes, bytes]:
        """Packed ids and epochs, as an ACK has them."""
        if not self._dropped:
            return self.delivery.ack_columns
        return pack_column("Q", self.ids), pack_column("I", self.epochs)

    def bodies(self) -> list[bytes]:
        """The body of each message."""
        payload = self.delivery.payload
        sizes = zip(self.ends, self.delivery.body_bytes, strict=True)
        return list(self._kept([payload[end - size : end] for end, size in sizes]))

    def __repr__(self) -> str:
        return f"<Batch of {len(self):,} messages of {self.topic!r}>"


class Message(BaseMessage):
    """A message that was delivered to this subscriber, and that it has to ack."""

    __slots__ = ()

    async def ack(self, *, confirm: bool = False) -> None:
        """Tells the broker that the message is done; it is not delivered to this group again.

        The ack joins others on their way and is not waited for. ``confirm`` waits until it is safe on the
        broker's disk, and raises AckRefused (usually StaleReceipt) if it did not count.
        """
        acks = self._batch.acks
        flight = acks.add(self.id, self.epoch)
        if confirm:
            await acks.confirm(flight, len(flight.ids) - 1)
        elif len(flight.ids) >= FLIGHT_ACKS_MAX:
            await acks.make_room()

    async def nack(
        self,
        delay: Delay | None = None,
        error: str = "",
        *,
        delay_ms: int | None = None,
        give_up: bool = False,
        uncounted: bool = False,
    ) -> ReceiptResult:
        """Gives the message back: it is delivered again after ``delay`` (a timedelta) or ``delay_ms``, by
        default the backoff of its attempt.

        ``error`` says why; it stands in the dead letter that the message becomes after its last attempt (``DEAD``).
        ``give_up`` makes it one at once, whatever ``max_attempts`` says; ``NACKED``: it could not become one, and comes
        again. ``uncounted``: this delivery was no attempt; without a delay the message comes again at once.
        """
        how = give_back(delay, error, delay_ms, give_up=give_up, uncounted=uncounted)
        return (await self._batch.acks.nack((self.id,), (self.epoch,), how))[0]

    async def extend(self, duration: Delay) -> ReceiptResult:
        """Keeps the message for ``duration`` from now on, because its processing takes longer."""
        return (await self._batch.acks.extend((self.id,), (self.epoch,), duration))[0]


class Batch(BaseBatch[Message]):
    """Messages that arrived together: the fast way to handle many."""

    message_class = Message

    async def ack(self, *, confirm: bool = False) -> None:
        """Acks all messages of the batch in one frame; otherwise as ``Message.ack``."""
        flight = self.acks.add_batch(self.ack_columns)
        if confirm:
            await self.acks.confirm(flight)
        elif self.acks.crowded:
            await self.acks.make_room()

    async def nack(
        self,
        delay: Delay | None = None,
        error: str = "",
        *,
        delay_ms: int | None = None,
        give_up: bool = False,
        uncounted: bool = False,
    ) -> list[ReceiptResult]:
        """Gives all messages of the batch back, as ``Message.nack``."""
        how = give_back(delay, error, delay_ms, give_up=give_up, uncounted=uncounted)
        return await self.acks.nack(self.ids, self.epochs, how)

    async def extend(self, duration: Delay) -> list[ReceiptResult]:
        """Keeps all messages of the batch for ``duration`` from now on."""
        return await self.acks.extend(self.ids, self.epochs, duration)
