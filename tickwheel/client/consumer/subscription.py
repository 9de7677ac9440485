"""A subscription: messages of one topic for one group, as they become due."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast

from tickwheel.client.calls import RequestCall
from tickwheel.client.checks import seconds, seconds_or_none, shown, text, whole
from tickwheel.client.columns import check_name
from tickwheel.client.consumer.acks import AckQueue
from tickwheel.client.consumer.credit import FIRST_CREDIT, MOST_CREDIT, Pace
from tickwheel.client.consumer.holding import DEFAULT_MAX_HOLD_S, Holding, Parcel
from tickwheel.client.consumer.message import BaseBatch, BaseMessage
from tickwheel.client.conversation import Conversation
from tickwheel.client.times import Delay, Moment, duration_ms, moment_ms
from tickwheel.protocol.bodies.requests import SetCredit, Subscribe, SubscribeOk, Unsubscribe
from tickwheel.protocol.bodies.settling import Return
from tickwheel.protocol.errors import (
    BadArgument,
    ClientClosed,
    ClientForked,
    CreditTooLarge,
    NotConnected,
    RequestTimeout,
    TickwheelError,
)
from tickwheel.protocol.limits import MAX_CREDIT, MAX_IDS_A_REQUEST
from tickwheel.protocol.machine import AnswerBody
from tickwheel.protocol.messages import Delivery

logger = logging.getLogger("tickwheel")

CLOSE_TIMEOUT_S: Final = 5.0
_FAST_S: Final = 0.001
"""Handlers that take less are fast: nothing is looked at between their messages."""
_PAUSE_S: Final = 0.01
"""After so long the loop turns between two messages."""
_TURN_S: Final = 0.1
"""A batch of a fast handler that is in turn for longer has met slow messages."""

M = TypeVar("M", bound=BaseMessage)
B = TypeVar("B", bound=BaseBatch[Any])


Start: TypeAlias = Literal["earliest", "latest"] | Moment
"""Where a group that is new begins to read."""


def start_of_group(start: Start) -> Literal["earliest", "latest"] | int:
    """As it goes on the wire. Raises BadArgument, BadTime."""
    if isinstance(start, str):
        if start not in ("earliest", "latest"):
            raise BadArgument(
                f"A group cannot start at {start!r}.", advice="Use earliest, latest, or a moment."
            )
        return start
    return moment_ms(start, "start")


def ephemeral_ms(ephemeral: Delay | None) -> int:
    """As it goes on the wire, where 0 is a group that stays: no time at all is a millisecond. Raises BadTime."""
    return 0 if ephemeral is None else max(1, duration_ms(ephemeral, "ephemeral"))


def max_hold_s(max_hold: timedelta | float) -> float:
    """In seconds. Raises BadArgument."""
    given = max_hold.total_seconds() if isinstance(max_hold, timedelta) else max_hold
    try:
        return seconds(given, "max_hold")
    except BadArgument:
        raise BadArgument(
            f"max_hold cannot be {shown(max_hold)}.",
            advice="Use a timedelta or seconds; 0: leases are not renewed.",
        ) from None


class SubscribeOptions(NamedTuple):
    """What a subscription asks for, besides topic and group, as ``Client.subscribe`` takes it."""

    credit: int | None
    """None: as many as are handled in about a second, or 1,000 when batches are taken."""
    batch: int
    start: Start = "earliest"
    shard: str | None = None
    max_hold: timedelta | float = DEFAULT_MAX_HOLD_S
    ephemeral: Delay | None = None
    attempts: bool = False
    """Whether messages say which attempt they are."""


class Subscription(Generic[M, B]):
    """Use it as ``async with client.subscribe("topic") as sub``, then iterate over it, or over
    ``sub.batches()``.

    It survives reconnects. Leases of messages that wait here or are being handled are renewed, for up to ``max_hold``.
    A message that was neither acked nor given back, and whose object is gone, comes again, with a higher
    epoch, when its lease ends; leaving the block sends the acks that are on their way and gives the rest
    back at once.
    """

    def __init__(
        self,
        session: Conversation,
        topic: str,
        group: str,
        options: SubscribeOptions,
        batch_class: type[B],
    ) -> None:
        check_name(topic)
        check_name(group, "group")
        given = None if options.credit is None else whole(options.credit, "credit", 1, MAX_CREDIT)
        credit, batch = given or FIRST_CREDIT, whole(options.batch, "batch", 1, MAX_CREDIT)
        self.topic = topic
        self.group = group
        self.credit = credit
        """The most un-acked messages at a time."""
        self.batch = batch if given is None else min(batch, credit)
        self._pace = Pace() if given is None else None
        self._largest_credit = credit
        self._handed_out = 0
        self.start = start_of_group(options.start)
        self.shard = None if options.shard is None else text(options.shard, "shard")
        self.ephemeral_ms = ephemeral_ms(options.ephemeral)
        self._wants_attempts = options.attempts
        self.created_topic = self.created_group = False
        """Whether subscribing made the topic, the group."""
        self.ack_wait_ms = 0
        """How long the first lease of a message lasts; known once subscribed."""
        self._session = session
        self._waits = session.waits
        self._batch_class = batch_class
        self.acks = AckQueue(session, group, topic)
        self.holding = Holding(
            session=session,
            topic=topic,
            acks=self.acks,
            max_hold_s=max_hold_s(options.max_hold),
            changed=self._holding_changed,
        )
        self.acks.holding = self.holding
        session.receivers[self] = None
        self._revoked = self.holding.revoked
        self.is_fast = False
        """Whether messages are handled so quickly that the loop need not turn between them."""
        self._number: int | None = None
        self._buffer: deque[Parcel] = deque()
        self._buffered = 0
        self._current: Iterator[M] = iter(())
        self._begun_at = self._turned_at = 0.0
        self._in_turn = 0
        self._arrived = self._waits.event()
        self._error: TickwheelError | None = None
        self._entered = False
        self._left = False
        self._stopped = False

    @property
    def ack_wait(self) -> timedelta:
        """``ack_wait_ms`` as a timedelta."""
        return timedelta(milliseconds=self.ack_wait_ms)

    # The user's side -----------------------------------------------------------------------------

    async def __aenter__(self) -> Subscription[M, B]:
        if self._entered:
            raise BadArgument("A subscription is entered once.", advice="Call client.subscribe() again.")
        self._entered = True
        call = _SubscribeCall(self, self._session.deadline())
        try:
            await self._session.enqueue(call)
            await self._session.wait(call)
        except BaseException:
            # Its block will not run, so it is taken back: now if the broker's answer has come, else when it comes.
            self._session.see_off(call)
            self.abandon()
            raise
        return self

    def abandon(self) -> None:
        """Leaves it without waiting."""
        self._leave()
        self._leave_at_once()
        self.holding.clear()
        self.acks.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        try:
            if error is not None:
                return
            with self._waits.within(CLOSE_TIMEOUT_S) as scope:
                await self._leave_in_order()
        finally:
            self._leave_at_once()
            self.holding.clear()
            self.acks.close()
        if scope.cancelled_caught:
            logger.warning(
                "left %r without the broker's confirmation; un-acked messages come again", self.topic
            )

    def __aiter__(self) -> Subscription[M, B]:
        self.check_open()
        return self

    async def __anext__(self) -> M:
        if self.is_fast and not self._revoked:
            for one in self._current:  # as next_in_hand, without the call
                return one
        message = self.next_in_hand() if self.is_fast else await self._next_in_turn()
        return message if message is not None else await self._next_message()

    def next_in_hand(self) -> M | None:
        """The next message of the batch that was begun. Also for the blocking client, in its own thread."""
        revoked = self._revoked
        for message in self._current:
            if not revoked or (message.id, message.epoch) not in revoked:
                return message
        return None

    async def _next_in_turn(self) -> M | None:
        """As ``next_in_hand``, but a handler that blocks gives the loop a turn here, in which its acks go and its
        leases are renewed."""
        now = self._waits.now()
        if now - self._turned_at >= _PAUSE_S:
            await self._waits.turn()
            self._turned_at = now
        current = self.holding.current
        if current is not None and not self.holding.may_hand_out(current):
            self._put_back(current)
        return self.next_in_hand()

    def _put_back(self, current: Parcel) -> None:
        """Leases may have ended: what was not handed out waits until the broker was asked."""
        self._in_turn = 0
        rest = self.holding.put_back(current)
        self._handed_out -= len(rest)
        if len(rest):
            self._buffer.appendleft(rest)
            self._buffered += len(rest)

    async def _next_message(self) -> M:
        taken: list[M] = []

        def take() -> bool:
            """Of several threads that wait, one begins a parcel, and the others have the rest of it: also while it is
            at work with the first message."""
            message = self.next_in_hand()
            if message is not None:
                taken.append(message)
            return message is not None

        while True:
            self._end_turn()
            parcel = await self._next_parcel(take)
            if taken:
                return taken[0]
            if parcel is None:
                raise StopAsyncIteration
            self.begin(parcel)
            if len(parcel) > 1:
                self._arrived.set()
            message = self.next_in_hand()
            if message is not None:
                return message

    def begin(self, parcel: Parcel) -> None:
        """Its messages are the next ones."""
        self._current = self.holding.begin(parcel, is_fast=self.is_fast)
        self._begun_at = self._turned_at = self._waits.now()
        self._in_turn = len(parcel)
        self._handed_out += self._in_turn

    def _end_turn(self) -> None:
        count, self._in_turn = self._in_turn, 0
        if not count:
            return
        took_s = self._waits.now() - self._begun_at
        self.is_fast = took_s < min(_TURN_S, _FAST_S * count)
        if self._pace is not None:
            in_hand = self._handed_out - self.acks.count - self.holding.given_back
            if in_hand < 0:  # some were acked twice; it must not be missing when messages are collected
                self._handed_out -= in_hand
            self._ask_for(self._pace.handled(count, took_s, self.ack_wait_ms / 1_000, max(0, in_hand)))

    def _ask_for(self, credit: int) -> None:
        """Another credit from now on; a little less is not worth a request."""
        if self.credit * 3 // 4 < credit <= self.credit or not self._session.has_holds:
            return
        before, self.credit = self.credit, credit
        self._largest_credit = max(credit, self._largest_credit)
        if self._number is not None and not self._stopped:
            self._session.submit(_CreditCall(self, self._number, credit, before))

    def credit_refused(self, before: int) -> None:
        """The broker allows less, so it stays as it was."""
        self.credit, self._pace = before, None

    @property
    def asked_credit(self) -> int:
        """For SUBSCRIBE; where it cannot be changed later, as much as one may need."""
        return MOST_CREDIT if self._pace is not None and not self._session.has_holds else self.credit

    @property
    def asks_for_attempts(self) -> bool:
        """For SUBSCRIBE: a broker from before that refuses to be asked."""
        return self._wants_attempts and self._session.limits.counts_attempts

    @property
    def is_left(self) -> bool:
        """Whether its block has ended."""
        return self._left and not isinstance(self._error, ClientForked)

    def check_open(self) -> None:
        """Raises ClientClosed before it was entered, and after it was left; ClientForked."""
        if isinstance(self._error, ClientForked):
            raise self._error.copy()
        if self._left:
            raise ClientClosed("The subscription was left.", advice="Call client.subscribe() again.")
        if not self._entered:
            raise ClientClosed(
                "The subscription was not entered.", advice="Use `async with client.subscribe(...) as sub:`."
            )

    async def _next_parcel(self, take: Callable[[], bool] | None = None) -> Parcel | None:
        """``take``: asked after each wait; once it is true, nothing is returned."""
        if not self._entered:
            self.check_open()
        await self._waits.turn()
        if take is not None and take():
            return None
        while self._left or not self._is_ready():
            if self._error is not None:
                raise self._error.copy()
            if self._left or (self._stopped and not self._buffer):
                return None
            if self._arrived.is_set():  # else others wait for it, too
                self._arrived = self._waits.event()
            await self._arrived.wait()
            if take is not None and take():
                return None
        parcel = self._buffer.popleft()
        self._buffered -= len(parcel)
        return parcel

    def _is_ready(self) -> bool:
        """Whether something waits that may be handed out."""
        while self._buffer and not len(self._buffer[0]):
            self.holding.forget(self._buffer.popleft())
        return bool(self._buffer) and self.holding.may_hand_out(self._buffer[0])

    async def _next_batch(self) -> B | None:
        if self._pace is not None:
            self._pace = None
            self._ask_for(MOST_CREDIT)
        parcel = await self._next_parcel()
        return None if parcel is None else cast("B", parcel.hand_over(self._waits.now()))

    async def receive(self, timeout: float | None = None) -> M | None:  # noqa: ASYNC109
        """The next message; None when none came within ``timeout`` seconds (None: wait without a limit)."""
        self.check_open()
        message = self.next_in_hand() if self.is_fast else await self._next_in_turn()
        if message is not None:
            return message
        with self._waits.within(seconds_or_none(timeout, "timeout")):
            try:
                return await self._next_message()
            except StopAsyncIteration:
                return None
        return None

    async def receive_batch(self, timeout: float | None = None) -> B | None:  # noqa: ASYNC109
        """The next batch; None when none came within ``timeout`` seconds, or when the subscription was left."""
        self.check_open()
        with self._waits.within(seconds_or_none(timeout, "timeout")):
            return await self._next_batch()
        return None

    def batches(self) -> AsyncIterator[B]:
        """Iterates over batches as they arrive. Do not mix it with iterating over messages."""
        self.check_open()
        return _Batches(self)

    async def flush(self) -> None:
        """Waits until every ack so far is on the broker's disk.

        Raises AckRefused if an ack did not count, and DiskFull or another error if acks could not be made. What was
        raised once is not raised again.
        """
        self.check_open()
        with self._waits.within(self._session.timeout_s):
            await self.acks.flush()
            return
        raise RequestTimeout(f"The acks were not confirmed within {self._session.timeout_s:g} s.")

    async def stop(self) -> None:
        """Asks the broker for no more messages. What has come can still be read and acked."""
        self.check_open()
        if self._number is not None:  # else it is being renewed: that is when it ends
            self._session.subscriptions.pop(self, None)
        try:
            await self._stop_deliveries()
        finally:
            self._stopped = True
            self._arrived.set()

    # Leaving -------------------------------------------------------------------------------------

    def _leave(self) -> None:
        self._left = True
        self._session.subscriptions.pop(self, None)
        self.acks.release()
        self._arrived.set()

    async def _leave_in_order(self) -> None:
        try:
            await self.acks.flush()
        except TickwheelError as error:
            logger.debug("%s", error)  # the log was told when the acks were refused, or not made
        self.acks.warn_of_rest()
        if self._session.is_closed:
            return
        await self._stop_deliveries()
        call = self._unsubscribe()
        if call is not None:
            await call.done.wait()

    async def _stop_deliveries(self) -> None:
        """After the answer nothing more arrives, so it is known then which messages were not handed out."""
        if self._number is not None and not self._stopped:
            stopped = self._session.submit_bound(Return(subscription=self._number, ids=[], epochs=[]))
            await stopped.done.wait()

    def _leave_at_once(self) -> None:
        """Without waiting: what was not left in order is given back as the answers come."""
        if self._number is None or self._session.is_closed:
            return
        call = _LastReturn(self, self._number, self._session.deadline())
        self._session.submit(call)
        self._session.see_off(call)

    def deliveries_stopped(self) -> None:
        """Nothing more arrives, and the rest is not waited for."""
        if self._stopped and not self._left:
            self._end()  # what has come can still be read
        else:
            self._unsubscribe()

    def _unsubscribe(self) -> RequestCall | None:
        unseen = self._take_unseen()
        if self._number is None:
            return None
        for start in range(0, len(unseen), MAX_IDS_A_REQUEST):
            ids, epochs = zip(*unseen[start : start + MAX_IDS_A_REQUEST], strict=True)
            self._session.submit_bound(Return(subscription=self._number, ids=list(ids), epochs=list(epochs)))
        return self._end()

    def _end(self) -> RequestCall | None:
        number, self._number = self._number, None
        if number is None:
            return None
        self._session.detach(number)
        call = self._session.submit_bound(Unsubscribe(subscription=number))
        self._session.see_off(call)
        return call

    def _take_unseen(self) -> list[tuple[int, int]]:
        """Receipts of the messages that came and were not handed to the user."""
        revoked = self.holding.revoked
        unseen = [(message.id, message.epoch) for message in self._current]
        unseen = [receipt for receipt in unseen if receipt not in revoked]
        for parcel in self._buffer:
            unseen.extend(parcel.receipts)
        self._buffer.clear()
        self._current = iter(())
        self.holding.clear()
        return unseen

    # The session's side --------------------------------------------------------------------------

    def resubscribe_call(self) -> RequestCall:
        """The request that renews this subscription on a new connection."""
        call = _SubscribeCall(self, math.inf)
        call.bound = True
        return call

    def subscribed(self, answer: SubscribeOk, call: RequestCall) -> None:
        """The broker agreed."""
        self._number = answer.subscription
        self.ack_wait_ms = answer.ack_wait_ms
        self.created_topic |= answer.created_topic
        self.created_group |= answer.created_group
        self._session.attach(answer.subscription, self)
        if not self._left:
            self.acks.resume(answer.group_id)
            self.holding.started(self.ack_wait_ms / 1_000 if self._session.limits.holds else 0.0)
        if call.abandoned or self._left or self._stopped:  # it is not read any more
            self._session.subscriptions.pop(self, None)
            self._leave_at_once()

    def delivered(self, delivery: Delivery) -> None:
        """Takes a batch from the connection."""
        batch = self._batch_class(delivery, self.topic, self.acks)
        self._buffer.append(self.holding.add(batch, self._session.arrived_at))
        self._buffered += delivery.count
        # A connection that was lost leaves what it brought here, and the next one brings as much again. The oldest is
        # the most likely to be leased to another subscriber by now: without this, the buffer would only grow.
        while self._buffered > 2 * self._largest_credit and len(self._buffer) > 1:
            dropped = self._buffer.popleft()
            self._buffered -= len(dropped)
            self.holding.forget(dropped)
            logger.warning(
                "%d messages of %r waited longer than their lease; they come again", len(dropped), self.topic
            )
        self._arrived.set()

    def lease_told(self, ack_wait_ms: int) -> None:
        """Leases of what is delivered from now on last so long."""
        self.ack_wait_ms = ack_wait_ms
        self.holding.lease_told(ack_wait_ms / 1_000)

    def revoked(self, ids: Sequence[int], epochs: Sequence[int]) -> None:
        """Messages were stopped or called back: those that wait here are not handed to the user any more."""
        gone = set(zip(ids, epochs, strict=True))
        self.holding.revoked |= gone
        waited = sum(parcel.drop(gone) for parcel in self._buffer)
        self._buffered -= waited
        self.holding.settle(ids, epochs, waited)

    def _holding_changed(self, dropped: int) -> None:
        """Leases were renewed, or so many messages that waited were dropped."""
        self._buffered -= dropped
        self._arrived.set()

    def connection_lost(self) -> None:
        """The connection broke; the session will subscribe again on the next one."""
        self._number = None
        if self in self._session.subscriptions:
            self.acks.suspend()  # else it is ending, and what was acked goes over the next connection

    def timeline_lost(self) -> None:
        """The broker's log is another one: what waits here is dropped, and what is in the user's hands is not ours."""
        acks = AckQueue(self._session, self.group, self.topic)
        acks.take_over(self.acks)
        in_hand, waited = self.holding.start_anew(acks), self._buffered + len(list(self._current))
        self.acks, self._buffer, self._buffered = acks, deque(), 0
        self._current, self._in_turn, self._handed_out = iter(()), 0, 0
        if waited or in_hand:
            logger.warning(
                "%d messages of %r that waited here are dropped, and %d that are being handled are no longer ours: the "
                "broker's log is another one. They may be handled again, and their acks are refused.",
                waited,
                self.topic,
                in_hand,
            )

    def forked(self, error: TickwheelError) -> None:
        """See ``_forks``: what came is the parent's."""
        self._error, self._number = error, None
        self._buffer, self._current = deque(), iter(())
        self.holding.current, self.is_fast, self._in_turn = None, True, 0
        self.acks.fail(error)

    def fail(self, error: TickwheelError) -> None:
        """The subscription cannot go on: a caller that waits for messages gets this error."""
        self._error = error
        self._session.subscriptions.pop(self, None)
        self.holding.clear()
        self.acks.fail(error)
        self._arrived.set()


class _Batches(Generic[B]):
    def __init__(self, subscription: Subscription[Any, B]) -> None:
        self._subscription = subscription

    def __aiter__(self) -> _Batches[B]:
        return self

    async def __anext__(self) -> B:
        batch = await self._subscription._next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch


class _CreditCall(RequestCall):
    """CREDIT, of a subscription of this connection."""

    __slots__ = ("_before", "_subscription")

    def __init__(self, subscription: Subscription[Any, Any], number: int, credit: int, before: int) -> None:
        super().__init__(SetCredit(subscription=number, credit=credit))
        self.bound = True
        self._before = before
        self._subscription = subscription

    def failed(self, error: TickwheelError) -> None:
        if isinstance(error, CreditTooLarge):
            self._subscription.credit_refused(self._before)


class _SubscribeCall(RequestCall):
    """SUBSCRIBE. Its answer takes effect in the reader, because messages may follow in the very same read."""

    __slots__ = ("_subscription",)

    def __init__(self, subscription: Subscription[Any, Any], deadline: float) -> None:
        request = Subscribe(
            topic=subscription.topic,
            group=subscription.group,
            credit=subscription.asked_credit,
            batch=subscription.batch,
            start=subscription.start,
            shard=subscription.shard,
            ephemeral_ms=subscription.ephemeral_ms,
            holds=subscription.holding.is_on,
            attempts=subscription.asks_for_attempts,
            probes=subscription._session.has_probes,
        )
        super().__init__(request, deadline)
        self._subscription = subscription

    def answered(self, body: AnswerBody) -> None:
        super().answered(body)
        assert isinstance(body, SubscribeOk)
        self._subscription.subscribed(body, self)

    def failed(self, error: TickwheelError) -> None:
        # A first subscription raises it in its caller; a renewed one in what waits for messages, unless the
        # connection only broke again.
        if self.bound and not isinstance(error, NotConnected):
            self._subscription.fail(error)


class _LastReturn(RequestCall):
    """RETURN of nothing. After its answer nothing more arrives: what was not handed out is given back then."""

    __slots__ = ("_subscription",)

    def __init__(self, subscription: Subscription[Any, Any], number: int, deadline: float) -> None:
        super().__init__(Return(subscription=number, ids=[], epochs=[]), deadline)
        self.bound = True
        self._subscription = subscription

    def answered(self, body: AnswerBody) -> None:
        super().answered(body)
        self._subscription.deliveries_stopped()

    def failed(self, error: TickwheelError) -> None:
        if not isinstance(error, NotConnected):
            self._subscription.deliveries_stopped()
