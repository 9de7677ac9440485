"""The blocking client: the names of ``tickwheel.Client`` without async.

An event loop in a thread of its own does the work. Any number of threads may use one client::

    with tickwheel.sync.Client("tickwheel://127.0.0.1:7411") as client:
        client.send("reminders", b"tea is ready", delay=timedelta(minutes=4))
        with client.subscribe("reminders") as sub:
            for message in sub:
                message.ack()
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar, overload

from anyio.from_thread import BlockingPortal, start_blocking_portal

from tickwheel import _client
from tickwheel._acks import AckFlight, AckQueue
from tickwheel._columns import Body, Headers
from tickwheel._message import BaseBatch, BaseMessage
from tickwheel._query import QueryResult
from tickwheel._results import CancelResult, RescheduleResult, SendResult, SendResults
from tickwheel._subscription import Subscription as AsyncSubscription
from tickwheel._times import Delay, Delays, Moment, Moments
from tickwheel.protocol.errors import ClientClosed
from tickwheel.protocol.limits import DEFAULT_PRIORITY, DEFAULT_QUERY_ROWS
from tickwheel.stats import Stats, TopicStats, Wheel

T = TypeVar("T")


class Message(BaseMessage):
    """A message that was delivered to this subscriber, and that it has to ack."""

    __slots__ = ()
    _batch: Batch

    def ack(self, *, confirm: bool = False) -> None:
        """Tells the broker that the message is done; it is not delivered to this group again.

        The ack is not waited for. ``confirm`` waits until it is safe on the broker's disk, and raises AckRefused
        (usually StaleReceipt) if it did not count.
        """
        outbox = self._batch.outbox
        if confirm:
            outbox.confirm(lambda acks: acks.add(self.id, self.epoch), (self.id,))
        else:
            outbox.add(self.id, self.epoch)


class Batch(BaseBatch[Message]):
    """Messages that arrived together: the fast way to handle many."""

    message_class = Message
    outbox: _AckOutbox

    def ack(self, *, confirm: bool = False) -> None:
        """Acks all messages of the batch in one frame; otherwise as ``Message.ack``."""
        if confirm:
            self.outbox.confirm(lambda acks: acks.add_batch(self.delivery), self.ids)
        else:
            self.outbox.add_batch(self)


class _AckOutbox:
    """Carries acks from the user's threads to the event loop.

    Acks that come while the loop has not looked yet go with the first one, so that a fast consumer does not pay for
    waking the loop at every message; none ever waits for a later one.
    """

    def __init__(self, portal: BlockingPortal, acks: AckQueue) -> None:
        self._portal = portal
        self._acks = acks
        self._lock = threading.Lock()
        self._single: list[tuple[int, int]] = []
        self._batches: list[Batch] = []
        self._announced = False

    def add(self, message_id: int, epoch: int) -> None:
        """Hands over one ack."""
        with self._lock:
            self._single.append((message_id, epoch))
            announce, self._announced = not self._announced, True
        if announce:
            self._portal.start_task_soon(self._carry)

    def add_batch(self, batch: Batch) -> None:
        """Hands over the acks of a batch, and waits if too many are unanswered."""
        with self._lock:
            self._batches.append(batch)
        self._portal.call(self._carry_and_make_room)

    def confirm(self, add: Callable[[AckQueue], AckFlight], ids: Iterable[int]) -> None:
        """Acks and waits for the broker's answer."""

        async def add_and_confirm() -> None:
            self._carry()
            await self._acks.confirm(add(self._acks), ids)

        self._portal.call(add_and_confirm)

    def carry(self) -> None:
        """Hands everything to the loop before it returns."""
        self._portal.call(self._carry)

    def _carry(self) -> None:
        with self._lock:
            single, self._single = self._single, []
            batches, self._batches = self._batches, []
            self._announced = False
        for message_id, epoch in single:
            self._acks.add(message_id, epoch)
        for batch in batches:
            self._acks.add_batch(batch.delivery)

    async def _carry_and_make_room(self) -> None:
        self._carry()
        if self._acks.crowded:
            await self._acks.make_room()


class Subscription:
    """Use it as ``with client.subscribe("topic") as sub``, then iterate over it, or over ``sub.batches()``."""

    def __init__(self, portal: BlockingPortal, subscription: AsyncSubscription[Message, Batch]) -> None:
        self._portal = portal
        self._subscription = subscription
        self._outbox = _AckOutbox(portal, subscription.acks)
        self._current: Iterator[Message] = iter(())
        self._open = ExitStack()

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._subscription.topic

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._subscription.group

    @property
    def ack_wait_ms(self) -> int:
        """How long the first lease of a message lasts."""
        return self._subscription.ack_wait_ms

    def __enter__(self) -> Subscription:
        self._open.enter_context(self._portal.wrap_async_context_manager(self._subscription))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._outbox.carry()
        self._open.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[Message]:
        while (message := self.receive()) is not None:
            yield message

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came within ``timeout`` seconds (None: wait for ever)."""
        for message in self._current:
            return message
        batch = self._next_batch(timeout)
        if batch is None:
            return None
        self._current = iter(batch)
        return next(self._current)

    def batches(self) -> Iterator[Batch]:
        """Iterates over batches as they arrive. Do not mix it with iterating over messages."""
        while (batch := self._next_batch(None)) is not None:
            yield batch

    def _next_batch(self, timeout: float | None) -> Batch | None:
        batch = self._portal.call(self._subscription.receive_batch, timeout)
        if batch is None:
            return None
        assert isinstance(batch, Batch)
        batch.outbox = self._outbox
        return batch

    def flush(self) -> None:
        """Waits until every ack so far is on the broker's disk. Raises AckRefused if one of them did not count."""
        self._outbox.carry()
        self._portal.call(self._subscription.flush)


class Client:
    """The blocking twin of ``tickwheel.Client``: same arguments, same methods, same errors."""

    def __init__(self, url: str | None = None, **options: Any) -> None:
        self._client = _client.Client(url, **options)
        self._portal: BlockingPortal | None = None
        self._open = ExitStack()

    @property
    def url(self) -> str:
        """The broker's address."""
        return self._client.url

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection right now. Without one, requests wait for the next."""
        return self._client.is_connected

    def __enter__(self) -> Client:
        if self._portal is not None:
            return self
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(self._client))
            self._portal, self._open = portal, stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Writes what is on its way and closes. Only needed after ``connect``."""
        self._portal = None
        self._open.close()

    def _call(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        return self._running.call(lambda: function(*args, **kwargs))

    @property
    def _running(self) -> BlockingPortal:
        if self._portal is None:
            raise ClientClosed("The client is not open.")
        return self._portal

    def send(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
        priority: int = DEFAULT_PRIORITY,
        headers: Headers | None = None,
    ) -> SendResult:
        """See ``tickwheel.Client.send``."""
        return self._call(
            self._client.send,
            topic,
            body,
            key=key,
            deliver_at=deliver_at,
            delay=delay,
            priority=priority,
            headers=headers,
        )

    def send_many(
        self,
        topic: str,
        bodies: Iterable[Body],
        *,
        keys: Sequence[str | None] | None = None,
        deliver_at: Moments | None = None,
        delay: Delays | None = None,
        priority: int | Sequence[int] | None = None,
        headers: Headers | Sequence[Headers | None] | None = None,
        auto_key: bool = False,
    ) -> SendResults:
        """See ``tickwheel.Client.send_many``."""
        return self._call(
            self._client.send_many,
            topic,
            bodies,
            keys=keys,
            deliver_at=deliver_at,
            delay=delay,
            priority=priority,
            headers=headers,
            auto_key=auto_key,
        )

    def subscribe(
        self, topic: str, group: str = "default", *, credit: int = 1000, batch: int = 500
    ) -> Subscription:
        """See ``tickwheel.Client.subscribe``; used with ``with`` and ``for``."""

        async def make() -> AsyncSubscription[Message, Batch]:
            return self._client.subscribe_as(Batch, topic, group, credit=credit, batch=batch)

        return Subscription(self._running, self._call(make))

    @overload
    def cancel(self, topic: str, *, key: str) -> CancelResult: ...
    @overload
    def cancel(self, *, id: int) -> CancelResult: ...
    @overload
    def cancel(self, topic: str, *, keys: Sequence[str]) -> list[CancelResult]: ...
    @overload
    def cancel(self, *, ids: Sequence[int]) -> list[CancelResult]: ...
    def cancel(self, *args: Any, **kwargs: Any) -> CancelResult | list[CancelResult]:
        """See ``tickwheel.Client.cancel``."""
        cancel: Callable[..., Awaitable[CancelResult | list[CancelResult]]] = self._client.cancel
        return self._call(cancel, *args, **kwargs)

    @overload
    def reschedule(
        self, topic: str, *, key: str, deliver_at: Moment | None = None, delay: Delay | None = None
    ) -> RescheduleResult: ...
    @overload
    def reschedule(
        self, *, id: int, deliver_at: Moment | None = None, delay: Delay | None = None
    ) -> RescheduleResult: ...
    @overload
    def reschedule(
        self,
        topic: str,
        *,
        keys: Sequence[str],
        deliver_at: Moment | None = None,
        delay: Delay | None = None,
    ) -> list[RescheduleResult]: ...
    @overload
    def reschedule(
        self, *, ids: Sequence[int], deliver_at: Moment | None = None, delay: Delay | None = None
    ) -> list[RescheduleResult]: ...
    def reschedule(self, *args: Any, **kwargs: Any) -> RescheduleResult | list[RescheduleResult]:
        """See ``tickwheel.Client.reschedule``."""
        reschedule: Callable[..., Awaitable[RescheduleResult | list[RescheduleResult]]] = (
            self._client.reschedule
        )
        return self._call(reschedule, *args, **kwargs)

    def stats(self) -> Stats:
        """The broker's counters."""
        return self._call(self._client.stats)

    def topics(self) -> list[TopicStats]:
        """The topics and their groups."""
        return self._call(self._client.topics)

    def wheel(self) -> Wheel:
        """What is due when."""
        return self._call(self._client.wheel)

    def query(self, sql: str, *, limit: int = DEFAULT_QUERY_ROWS, timeout: float = 30.0) -> QueryResult:
        """See ``tickwheel.Client.query``."""
        return self._call(self._client.query, sql, limit=limit, timeout=timeout)

    def ping(self) -> float:
        """Seconds that the broker took to answer."""
        return self._call(self._client.ping)


def connect(url: str | None = None, **options: Any) -> Client:
    """An open client for code that has no block to put it in; ``client.close()`` ends it."""
    return Client(url, **options).__enter__()
