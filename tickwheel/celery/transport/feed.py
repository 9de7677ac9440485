"""One subscription of a connection: it hands what comes to the connection, and holds nothing itself.

Unlike ``tickwheel.Subscription`` it has neither a buffer that is waited at nor an end: a consumer that is cancelled
keeps its un-acked messages, as AMQP has it, so the subscription stands until they are settled.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Sequence
from typing import Final, Literal, Protocol

from tickwheel.client.calls import RequestCall
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.conversation import Conversation
from tickwheel.protocol.bodies.requests import SetCredit, Subscribe, SubscribeOk, Unsubscribe
from tickwheel.protocol.bodies.settling import Return
from tickwheel.protocol.errors import NotConnected, TickwheelError
from tickwheel.protocol.limits import MAX_CREDIT
from tickwheel.protocol.machine import AnswerBody
from tickwheel.protocol.messages import Delivery

logger = logging.getLogger("tickwheel.celery")

UNLIMITED: Final = 1_000
"""The first credit of a consumer that set no limit; it grows while nothing is acked."""
_BATCH_MAX: Final = 500


class Sink(Protocol):
    """What takes the messages of feeds. It is called with the lock of the session."""

    def came(self, feed: Feed, delivery: Delivery) -> None:
        """Messages for this feed."""

    def revoked(self, feed: Feed, ids: Sequence[int], epochs: Sequence[int]) -> None:
        """These are not this feed's any more."""

    def leased_for(self, lease_s: float) -> None:
        """Leases of what comes last so long."""

    def ended(self, feed: Feed, error: TickwheelError) -> None:
        """It cannot go on."""


class Feed:
    """A subscription to one topic for one group."""

    def __init__(
        self,
        *,
        conversation: Conversation,
        sink: Sink,
        acks: AckQueue,
        topic: str,
        credit: int,
        start: Literal["earliest", "latest"] = "earliest",
        ephemeral_ms: int = 0,
    ) -> None:
        """``credit``: 0 is no limit."""
        self.topic = topic
        self.acks = acks
        self.is_cancelled = False
        self._conversation = conversation
        # What a program drops without closing it must be collected, and its connection closed.
        self._sink = weakref.ref(sink)
        self._is_limited = credit > 0
        self._credit = credit or UNLIMITED
        self._start = start
        self._ephemeral_ms = ephemeral_ms
        self._number: int | None = None

    async def open(self) -> None:
        """Subscribes. Raises TickwheelError."""
        call = _SubscribeCall(self, self._conversation.deadline())
        await self._conversation.enqueue(call)
        await self._conversation.wait(call)

    def set_credit(self, credit: int) -> None:
        """Hold at most so many un-acked messages from now on; 0: no limit. Does not wait. Raises ClientClosed."""
        self._is_limited = credit > 0
        credit = credit or max(UNLIMITED, self._credit)
        if credit != self._credit:
            self._ask_for(min(credit, MAX_CREDIT))

    def holds(self, count: int) -> None:
        """So many messages are un-acked: a consumer without a limit needs more credit."""
        if not self._is_limited and count * 2 > self._credit and self._credit < MAX_CREDIT:
            self._ask_for(min(2 * self._credit, MAX_CREDIT))

    def _ask_for(self, credit: int) -> None:
        self._credit = credit
        if self._number is not None and not self.is_cancelled:
            self._conversation.submit_bound(SetCredit(subscription=self._number, credit=credit))

    async def stop(self) -> None:
        """Asks for no more messages. After this nothing comes; what came stays leased."""
        if self.is_cancelled:
            return
        self.is_cancelled = True
        self._conversation.subscriptions.pop(self, None)
        if self._number is not None and self._conversation.is_connected:
            call = self._conversation.submit_bound(Return(subscription=self._number, ids=[], epochs=[]))
            await call.done.wait()

    async def leave(self) -> None:
        """Ends the subscription. What it holds goes back."""
        self.is_cancelled = True
        self._conversation.subscriptions.pop(self, None)
        number, self._number = self._number, None
        if number is not None and self._conversation.is_connected:
            self._conversation.detach(number)
            await self._conversation.submit_bound(Unsubscribe(subscription=number)).done.wait()

    # The session's side: see `tickwheel.client.link.Receiver` ------------------------------------

    def resubscribe_call(self) -> RequestCall:
        """See ``Receiver``."""
        call = _SubscribeCall(self, math.inf)
        call.bound = True
        return call

    def request(self) -> Subscribe:
        """What it asks for."""
        return Subscribe(
            topic=self.topic,
            group=self.acks.group_name,
            credit=self._credit,
            batch=min(self._credit, _BATCH_MAX),
            start=self._start,
            ephemeral_ms=self._ephemeral_ms,
            holds=self._conversation.limits.holds,
            attempts=self._conversation.limits.counts_attempts,
            probes=self._conversation.limits.probes,
        )

    def subscribed(self, answer: SubscribeOk) -> None:
        """The broker agreed."""
        self._number = answer.subscription
        self.acks.resume(answer.group_id)
        self.lease_told(answer.ack_wait_ms)
        self._conversation.attach(answer.subscription, self)

    def delivered(self, delivery: Delivery) -> None:
        """See ``Receiver``."""
        if (sink := self._sink()) is not None:
            sink.came(self, delivery)

    def revoked(self, ids: Sequence[int], epochs: Sequence[int]) -> None:
        """See ``Receiver``."""
        if (sink := self._sink()) is not None:
            sink.revoked(self, ids, epochs)

    def lease_told(self, ack_wait_ms: int) -> None:
        """See ``Receiver``."""
        if (sink := self._sink()) is not None:
            sink.leased_for(ack_wait_ms / 1_000)

    def connection_lost(self) -> None:
        """See ``Receiver``."""
        self._number = None

    def forked(self, error: TickwheelError) -> None:
        """See ``Receiver``."""
        self._number, self.is_cancelled = None, True

    def fail(self, error: TickwheelError) -> None:
        """See ``Receiver``."""
        self._conversation.subscriptions.pop(self, None)
        if (sink := self._sink()) is not None:
            sink.ended(self, error)


class _SubscribeCall(RequestCall):
    """SUBSCRIBE. Its answer takes effect in who reads, because messages may follow in the very same read."""

    __slots__ = ("_feed",)

    def __init__(self, feed: Feed, deadline: float) -> None:
        super().__init__(feed.request(), deadline)
        self._feed = feed

    def answered(self, body: AnswerBody) -> None:
        super().answered(body)
        assert isinstance(body, SubscribeOk)
        self._feed.subscribed(body)

    def failed(self, error: TickwheelError) -> None:
        if self.bound and not isinstance(error, NotConnected):
            self._feed.fail(error)
