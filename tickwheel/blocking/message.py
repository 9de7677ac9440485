"""The blocking twins of ``tickwheel.Message``, ``Batch`` and ``Fetched``; users have them from ``tickwheel.sync``."""

from __future__ import annotations

from tickwheel.blocking.settling import Settling
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.consumer.giving_back import give_back
from tickwheel.client.consumer.message import BaseBatch, BaseMessage
from tickwheel.client.results import ReceiptResult
from tickwheel.client.times import Delay


class Message(BaseMessage):
    """A message that was delivered to this subscriber, and that it has to ack."""

    __slots__ = ()
    _batch: Batch

    def ack(self, *, confirm: bool = False) -> None:
        """Tells the broker that the message is done; it is not delivered to this group again.

        The ack is not waited for. ``confirm`` waits until it is safe on the broker's disk, and raises AckRefused
        (usually StaleReceipt) if it did not count.
        """
        settling = self._batch.settling
        if confirm:
            settling.confirm(lambda acks: acks.add(self.id, self.epoch))
        else:
            settling.add(self.id, self.epoch)

    def nack(
        self,
        delay: Delay | None = None,
        error: str = "",
        *,
        delay_ms: int | None = None,
        give_up: bool = False,
        uncounted: bool = False,
    ) -> ReceiptResult:
        """See ``tickwheel.Message.nack``."""
        how = give_back(delay, error, delay_ms, give_up=give_up, uncounted=uncounted)
        return self._batch.settling.call(AckQueue.nack, (self.id,), (self.epoch,), how)[0]

    def extend(self, duration: Delay) -> ReceiptResult:
        """See ``tickwheel.Message.extend``."""
        return self._batch.settling.call(AckQueue.extend, (self.id,), (self.epoch,), duration)[0]


class Batch(BaseBatch[Message]):
    """Messages that arrived together: the fast way to handle many."""

    message_class = Message

    @property
    def settling(self) -> Settling:
        """Where what becomes of it is told."""
        carrier: Settling = self.acks.carrier
        return carrier

    def ack(self, *, confirm: bool = False) -> None:
        """Acks all messages of the batch in one frame; otherwise as ``Message.ack``."""
        if confirm:
            self.settling.confirm(lambda acks: acks.add_batch(self.ack_columns))
        else:
            self.settling.add_batch(self)

    def nack(
        self,
        delay: Delay | None = None,
        error: str = "",
        *,
        delay_ms: int | None = None,
        give_up: bool = False,
        uncounted: bool = False,
    ) -> list[ReceiptResult]:
        """Gives all messages of the batch back."""
        how = give_back(delay, error, delay_ms, give_up=give_up, uncounted=uncounted)
        return self.settling.call(AckQueue.nack, self.ids, self.epochs, how)

    def extend(self, duration: Delay) -> list[ReceiptResult]:
        """Keeps all messages of the batch for ``duration`` from now on."""
        return self.settling.call(AckQueue.extend, self.ids, self.epochs, duration)


class Fetched(Batch):
    """See ``tickwheel.Fetched``."""

    attempts: tuple[int, ...] = ()
    """Which attempt of its message each delivery is."""

    @property
    def group_id(self) -> int:
        """The number of the group, to which the receipts belong."""
        return self.delivery.subscription

    def give_back(self) -> list[ReceiptResult]:
        """See ``tickwheel.Fetched.give_back``."""
        return self.settling.call(AckQueue.give_back, self.ids, self.epochs)
