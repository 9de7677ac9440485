"""A subscription: messages of one topic for one group, as they become due."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from tickwheel._acks import AckQueue
from tickwheel._calls import RequestCall
from tickwheel._columns import check_name
from tickwheel._message import BaseBatch, BaseMessage
from tickwheel._times import Moment, moment_ms
from tickwheel.protocol.errors import (
    AckRefused,
    BadArgument,
    ClientClosed,
    NotConnected,
    RequestTimeout,
    TickwheelError,
)
from tickwheel.protocol.limits import MAX_CREDIT, MAX_IDS_A_REQUEST
from tickwheel.protocol.machine import AnswerBody
from tickwheel.protocol.messages import Delivery
from tickwheel.protocol.requests import Subscribe, SubscribeOk, Unsubscribe
from tickwheel.protocol.settling import Return

if TYPE_CHECKING:
    from tickwheel._session import Session

logger = logging.getLogger("tickwheel")

CLOSE_TIMEOUT_S: Final = 5.0

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
    return moment_ms(start)


class SubscribeOptions(NamedTuple):
    """What a subscription asks for, besides topic and group; as in SUBSCRIBE."""

    credit: int
    batch: int
    start: Literal["earliest", "latest"] | int = "earliest"
    shard: str | None = None


class Subscription(Generic[M, B]):
    """Use it as ``async with client.subscribe("topic") as sub``, then iterate over it, or over
    ``sub.batches()``.

    It survives reconnects. A message that was neither acked nor given back comes again, with a higher
    epoch, when its lease ends; leaving the block sends the acks that are on their way and gives the rest
    back at once.
    """

    def __init__(
        self,
        session: Session,
        topic: str,
        group: str,
        options: SubscribeOptions,
        batch_class: type[B],
    ) -> None:
        check_name(topic)
        check_name(group, "group")
        credit, batch = options.credit, options.batch
        if not 1 <= batch <= MAX_CREDIT or not 1 <= credit <= MAX_CREDIT:
            raise BadArgument(
                f"A credit of {credit} with batches of {batch} is not allowed.",
                advice=f"Both are 1 to {MAX_CREDIT:,}.",
            )
        self.topic = topic
        self.group = group
        self.credit = credit
        self.batch = min(batch, credit)
        self.start, self.shard = options.start, options.shard
        self.ack_wait_ms = 0
        """How long the first lease of a message lasts; known once subscribed."""
        self._session = session
        self._batch_class = batch_class
        self.acks = AckQueue(session, group)
        self._number: int | None = None
        self._buffer: deque[B] = deque()
        self._buffered = 0
        self._current: Iterator[M] = iter(())
        self._gone: set[tuple[int, int]] = set()
        """Messages (id, epoch) of the current batch that were revoked since it came."""
        self._arrived = anyio.Event()
        self._error: TickwheelError | None = None
        self._entered = False
        self._left = False
        self._stopped = False

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
            # Nobody will leave it, so it is taken back: now if the broker's answer has come, else when it comes.
            self._leave()
            self._session.see_off(call)
            self._leave_at_once()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        try:
            if error is not None:
                return
            with anyio.move_on_after(CLOSE_TIMEOUT_S) as scope:
                await self._leave_in_order()
        finally:
            self._leave_at_once()
            self.acks.close()
        if scope.cancelled_caught:
            logger.warning(
                "left %r without the broker's confirmation; un-acked messages come again", self.topic
            )

    def __aiter__(self) -> Subscription[M, B]:
        self._check_open()
        return self

    async def __anext__(self) -> M:
        message = self.next_in_hand()
        return message if message is not None else await self._next_message()

    def next_in_hand(self) -> M | None:
        """The next message of the batch that was begun. Also for the blocking client, in its own thread."""
        for message in self._current:
            if not self._gone or (message.id, message.epoch) not in self._gone:
                return message
        return None

    def begin(self, batch: B) -> None:
        """Its messages are the next ones."""
        self._gone.clear()
        self._current = iter(batch)

    async def _next_message(self) -> M:
        while (batch := await self._next_batch()) is not None:
            self.begin(batch)
            message = self.next_in_hand()
            if message is not None:
                return message
        raise StopAsyncIteration

    def _check_open(self) -> None:
        """Raises ClientClosed before it was entered, and after it was left."""
        if self._left:
            raise ClientClosed("The subscription was left.", advice="Call client.subscribe() again.")
        if not self._entered:
            raise ClientClosed(
                "The subscription was not entered.", advice="Use `async with client.subscribe(...) as sub:`."
            )

    async def _next_batch(self) -> B | None:
        if not self._entered:
            self._check_open()
        await checkpoint()
        while self._left or not self._buffer:
            if self._error is not None:
                raise self._error.copy()
            if self._left or self._stopped:
                return None
            self._arrived = anyio.Event()
            await self._arrived.wait()
        batch = self._buffer.popleft()
        self._buffered -= batch.delivery.count
        return batch if len(batch) else await self._next_batch()

    async def receive(self, timeout: float | None = None) -> M | None:  # noqa: ASYNC109
        """The next message; None when none came within ``timeout`` seconds (None: wait for ever)."""
        self._check_open()
        message = self.next_in_hand()
        if message is not None:
            return message
        with anyio.move_on_after(timeout):
            try:
                return await self._next_message()
            except StopAsyncIteration:
                return None
        return None

    async def receive_batch(self, timeout: float | None = None) -> B | None:  # noqa: ASYNC109
        """The next batch; None when none came within ``timeout`` seconds, or when the subscription was left."""
        self._check_open()
        with anyio.move_on_after(timeout):
            return await self._next_batch()
        return None

    def batches(self) -> AsyncIterator[B]:
        """Iterates over batches as they arrive. Do not mix it with iterating over messages."""
        self._check_open()
        return _Batches(self)

    async def flush(self) -> None:
        """Waits until every ack so far is on the broker's disk.

        Raises AckRefused if one of them did not count.
        """
        self._check_open()
        with anyio.move_on_after(self._session.timeout_s):
            await self.acks.flush()
            return
        raise RequestTimeout(f"The acks were not confirmed within {self._session.timeout_s:g} s.")

    async def stop(self) -> None:
        """Asks the broker for no more messages. What has come can still be read and acked."""
        self._check_open()
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
        self._arrived.set()

    async def _leave_in_order(self) -> None:
        try:
            await self.acks.flush()
        except AckRefused as error:
            logger.warning("%s", error)
        except TickwheelError as error:
            logger.warning("acks of %r may be lost, then the messages come again: %s", self.topic, error)
        if self._session.is_closed:
            return
        await self._stop_deliveries()
        call = self._unsubscribe()
        if call is not None:
            await call.done.wait()

    async def _stop_deliveries(self) -> None:
        """Behind the answer nothing more arrives, so it is known then what nobody has looked at."""
        if self._number is not None and not self._stopped:
            stopped = self._session.submit_bound(Return(subscription=self._number, ids=[], epochs=[]))
            await stopped.done.wait()

    def _leave_at_once(self) -> None:
        """Nobody waits any more: what was not left in order is given back as the answers come."""
        if self._number is None or self._session.is_closed:
            return
        call = _LastReturn(self, self._number, self._session.deadline())
        self._session.submit(call)
        self._session.see_off(call)

    def deliveries_stopped(self) -> None:
        """Nothing more arrives, and nobody waits for the rest."""
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
        unseen = [(message.id, message.epoch) for message in self._current]
        for batch in self._buffer:
            unseen.extend(zip(batch.ids, batch.epochs, strict=True))
        self._buffer.clear()
        self._current = iter(())
        return [receipt for receipt in unseen if receipt not in self._gone]

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
        self._session.attach(answer.subscription, self)
        if not self._left:
            self.acks.resume(answer.group_id)
        if call.abandoned or self._left or self._stopped:  # nobody reads it any more
            self._session.subscriptions.pop(self, None)
            self._leave_at_once()

    def delivered(self, delivery: Delivery) -> None:
        """Takes a batch from the connection."""
        self._buffer.append(self._batch_class(delivery, self.topic, self.acks))
        self._buffered += delivery.count
        # Leases of unread messages end, and their credit brings them again. Then the oldest batch here is
        # stale: without this, a subscriber that is too slow would hold ever more copies.
        while self._buffered > 2 * self.credit and len(self._buffer) > 1:
            dropped = self._buffer.popleft()
            self._buffered -= dropped.delivery.count
            logger.warning(
                "%d messages of %r waited longer than their lease; they come again", len(dropped), self.topic
            )
        self._arrived.set()

    def revoked(self, ids: Sequence[int], epochs: Sequence[int]) -> None:
        """Messages were stopped or called back: those that wait here are not handed to the user any more."""
        gone = set(zip(ids, epochs, strict=True))
        self._gone |= gone
        for batch in self._buffer:
            batch.drop(gone)

    def connection_lost(self) -> None:
        """The connection broke; the session will subscribe again on the next one."""
        self._number = None
        if not self._stopped:
            self.acks.suspend()

    def fail(self, error: TickwheelError) -> None:
        """The subscription cannot go on: whoever waits for messages gets this error."""
        self._error = error
        self._session.subscriptions.pop(self, None)
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


class _SubscribeCall(RequestCall):
    """SUBSCRIBE. Its answer takes effect in the reader, because messages may follow in the very same read."""

    __slots__ = ("_subscription",)

    def __init__(self, subscription: Subscription[Any, Any], deadline: float) -> None:
        request = Subscribe(
            topic=subscription.topic,
            group=subscription.group,
            credit=subscription.credit,
            batch=subscription.batch,
            start=subscription.start,
            shard=subscription.shard,
        )
        super().__init__(request, deadline)
        self._subscription = subscription

    def answered(self, body: AnswerBody) -> None:
        super().answered(body)
        assert isinstance(body, SubscribeOk)
        self._subscription.subscribed(body, self)

    def failed(self, error: TickwheelError) -> None:
        # A first subscription tells its caller; a renewed one whoever waits for messages, unless the
        # connection merely broke again.
        if self.bound and not isinstance(error, NotConnected):
            self._subscription.fail(error)


class _LastReturn(RequestCall):
    """RETURN of nothing. Behind its answer nothing more arrives: what nobody has looked at is given back then."""

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
