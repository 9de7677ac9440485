"""One queue's messages for a worker: a subscription whose credit is Dramatiq's prefetch.

Dramatiq closes a consumer while messages of it are still being worked on: when a worker is paused, or ends before its
actors do. These stay leased until they are settled, so that no other worker begins them a second time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import dramatiq
from dramatiq.errors import DecodeError

from tickwheel import sync
from tickwheel.client.results import ReceiptResult
from tickwheel.dramatiq.connection import told_to_dramatiq
from tickwheel.errors import ClientClosed, TickwheelError

_LAST_S: Final = 5.0
"""How long a consumer that closes waits for what had arrived and was not yet handed out."""

logger = logging.getLogger("tickwheel.dramatiq")


class DeliveredMessage(dramatiq.MessageProxy):
    """A message in the hands of a worker."""

    def __init__(
        self, message: dramatiq.Message[Any], received: sync.Message, consumer: QueueConsumer
    ) -> None:
        super().__init__(message)
        self.received = received
        """As the broker delivered it; its lease is renewed as long as this is here."""
        self.consumer = consumer
        """That got it, which may be closed by now."""
        self.again: tuple[int, str] | None = None
        """It is to be given back instead of acked: after so many ms, and why."""

    @property
    def attempt(self) -> int:
        """Which attempt this delivery is, from 1: those that a worker did not survive count, too."""
        return self.received.attempt

    def give_back(self, delay_ms: int, error: str) -> None:
        """Lets the broker deliver it again, as its next attempt, instead of its ack."""
        self.again = delay_ms, error


class QueueConsumer(dramatiq.Consumer):
    """See the module."""

    def __init__(self, subscription: sync.Subscription, timeout_ms: int) -> None:
        """Begins the subscription. ``timeout_ms``: how long `__next__` waits. Raises what subscribing raises."""
        self._timeout_s = timeout_ms / 1_000
        self._lock = threading.Lock()
        self._held: set[int] = set()
        """By the identity of their objects: messages that were handed out and are not settled."""
        self._is_closing = False
        self._subscription = subscription.__enter__()

    def __next__(self) -> DeliveredMessage | None:
        with told_to_dramatiq():
            received = self._subscription.receive(self._timeout_s)
        if received is None:
            return None
        try:
            message: dramatiq.Message[Any] = dramatiq.Message.decode(received.body)
            _check(message, received.body)
        except DecodeError as error:
            self._refuse(received, error)
            return None
        delivered = DeliveredMessage(message, received, self)
        with self._lock:
            self._held.add(id(delivered))
        return delivered

    def _refuse(self, received: sync.Message, error: DecodeError) -> None:
        what = f"message {received.id} of {received.topic!r}"
        logger.error("%s is none of Dramatiq's, and is given up: %r", what, error.error)
        with told_to_dramatiq():
            result = received.nack(error=f"It cannot be decoded: {error.error!r}", give_up=True)
        _look(what, result, ReceiptResult.DEAD)

    def ack(self, message: dramatiq.MessageProxy) -> None:
        """It is done; or comes again, where `DeliveredMessage.give_back` was called. Raises ConnectionClosed."""
        one = _delivered(message)
        if one.again is None:
            one.consumer.settle(one, one.received.ack)
            return
        delay_ms, error = one.again
        one.consumer.settle(
            one, lambda: one.received.nack(delay_ms=delay_ms, error=error), ReceiptResult.NACKED
        )

    def nack(self, message: dramatiq.MessageProxy) -> None:
        """It becomes a dead letter. Raises ConnectionClosed."""
        one = _delivered(message)
        error = "" if one._exception is None else f"{type(one._exception).__name__}: {one._exception}"
        one.consumer.settle(one, lambda: one.received.nack(error=error, give_up=True), ReceiptResult.DEAD)

    def requeue(self, messages: Iterable[dramatiq.MessageProxy]) -> None:
        """They are delivered again at once, to anyone; it was no attempt. Raises ConnectionClosed."""
        for message in messages:
            one = _delivered(message)
            again = partial(one.received.nack, uncounted=True)
            one.consumer.settle(one, again, ReceiptResult.NACKED)

    def settle(
        self,
        message: DeliveredMessage,
        tell: Callable[[], ReceiptResult | None],
        wanted: ReceiptResult | None = None,
    ) -> None:
        """Tells the broker what became of a message of this consumer. ``wanted``: what the broker is to answer."""
        try:
            with told_to_dramatiq():
                try:
                    _look(f"message {message.message_id}", tell(), wanted)
                except ClientClosed as error:  # it was closed under its workers: to try again is of no use
                    logger.warning("message %s comes again: %s", message.message_id, error)
        except TickwheelError as error:
            # Dramatiq would call it a bug of its own.
            logger.warning("message %s comes again: %s", message.message_id, error)
        with self._lock:
            self._held.discard(id(message))
            is_last = self._is_closing and not self._held
        if is_last:
            self._leave()

    def close(self) -> None:
        """Nothing more is handed out. What was, stays with its worker until it is settled."""
        try:
            self._subscription.stop()
            while (rest := self._subscription.receive(_LAST_S)) is not None:
                rest.nack(uncounted=True)
        except TickwheelError as error:
            logger.debug("%s", error)  # there is no connection: then leases end, or have ended
        with self._lock:
            is_last = not self._is_closing and not self._held
            self._is_closing = True
        if is_last:
            self._leave()

    def _leave(self) -> None:
        try:
            self._subscription.__exit__(None, None, None)
        except TickwheelError as error:
            logger.debug("%s", error)


def _check(message: dramatiq.Message[Any], body: bytes) -> None:
    """Raises DecodeError for fields of other types than Dramatiq believes in: they would end its thread."""
    wanted = {"queue_name": str, "actor_name": str, "message_id": str, "kwargs": dict, "options": dict}
    for name, kind in wanted.items():
        if not isinstance(value := getattr(message, name), kind):
            what = TypeError(f"its {name} is of the type {type(value).__name__}")
            raise DecodeError("Failed to decode message.", body, what)


def _delivered(message: dramatiq.MessageProxy) -> DeliveredMessage:
    assert isinstance(message, DeliveredMessage), message
    return message


def _look(what: str, result: ReceiptResult | None, wanted: ReceiptResult | None) -> None:
    """The log has what came otherwise than asked for."""
    if result is not wanted:
        logger.warning("%s was to be %s: %s", what, wanted, result)
