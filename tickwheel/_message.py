"""Messages and batches as a subscriber sees them. Nothing is unpacked before it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count, repeat
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from tickwheel._acks import FLIGHT_ACKS_MAX, AckQueue
from tickwheel._times import EPOCH
from tickwheel.protocol.errors import RemoteProtocolError
from tickwheel.protocol.messages import Delivery

_HEADERS: Final = msgspec.msgpack.Decoder(dict[str, Any])


class BaseMessage:
    """What a message is, without the way to ack it."""

    __slots__ = ("_batch", "_index", "epoch", "id")

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
    def body(self) -> bytes:
        """What was sent."""
        batch = self._batch
        end = batch.ends[self._index]
        return batch.delivery.payload[end - batch.delivery.body_bytes[self._index] : end]

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
    def headers(self) -> dict[str, Any]:
        """The headers; empty if it has none. Raises RemoteProtocolError if another client wrote no valid
        ones."""
        delivery = self._batch.delivery
        size = delivery.headers_bytes[self._index]
        if not size:
            return {}
        start = self._batch.start_of(self._index) + delivery.key_bytes[self._index]
        try:
            return _HEADERS.decode(delivery.payload[start : start + size])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(
                f"The headers of message {self.id} are not a MessagePack map: {error}.",
                advice="Correct the client that sent it.",
            ) from None

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
        return EPOCH + timedelta(milliseconds=self.deliver_at_ms)

    @property
    def created(self) -> datetime:
        """When the broker received it, in UTC."""
        return EPOCH + timedelta(milliseconds=self.created_ms)

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.topic!r}, epoch {self.epoch}, {len(self.body):,} bytes>"


M = TypeVar("M", bound=BaseMessage)


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

    def __len__(self) -> int:
        return self.delivery.count

    def __iter__(self) -> Iterator[M]:
        """The messages, in order."""
        return map(cast("Any", self.message_class), repeat(self), count(), self.ids, self.delivery.epochs)

    @property
    def ids(self) -> tuple[int, ...]:
        """The id of each message."""
        if self._ids is None:
            self._ids = self.delivery.ids
        return self._ids

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epoch of each message."""
        return self.delivery.epochs

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

    def bodies(self) -> list[bytes]:
        """The body of each message."""
        payload = self.delivery.payload
        return [
            payload[end - size : end] for end, size in zip(self.ends, self.delivery.body_bytes, strict=True)
        ]

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
            await acks.confirm(flight, (self.id,))
        elif len(flight.ids) >= FLIGHT_ACKS_MAX:
            await acks.make_room()


class Batch(BaseBatch[Message]):
    """Messages that arrived together: the fast way to handle many."""

    message_class = Message

    async def ack(self, *, confirm: bool = False) -> None:
        """Acks all messages of the batch in one frame; otherwise as ``Message.ack``."""
        flight = self.acks.add_batch(self.delivery)
        if confirm:
            await self.acks.confirm(flight, self.ids)
        elif self.acks.crowded:
            await self.acks.make_room()
