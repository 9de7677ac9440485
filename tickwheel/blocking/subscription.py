"""The blocking twin of ``tickwheel.Subscription``; users have it from ``tickwheel.sync``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TypeVar

from tickwheel.blocking.message import Batch, Message
from tickwheel.blocking.session import BlockingSession
from tickwheel.blocking.settling import Settling
from tickwheel.client.checks import seconds_or_none
from tickwheel.client.consumer.subscription import Subscription as AsyncSubscription
from tickwheel.protocol.errors import ClientClosed

T = TypeVar("T")


class Subscription:
    """Use it as ``with client.subscribe("topic") as sub``, then iterate over it, or over ``sub.batches()``."""

    def __init__(
        self,
        session: BlockingSession,
        subscription: AsyncSubscription[Message, Batch],
        left: Callable[[Subscription], None],
    ) -> None:
        """``left`` is called when it was left."""
        self._session = session
        self._subscription = subscription
        subscription.acks.carrier = Settling(session, subscription.acks)
        self._left = left
        self._is_open = False
        self._messages: deque[Message] = deque()
        self._batches: deque[Batch] = deque()
        """What came just when the call that waited for it was interrupted."""

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._subscription.topic

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._subscription.group

    @property
    def created_topic(self) -> bool:
        """Whether subscribing made the topic."""
        return self._subscription.created_topic

    @property
    def created_group(self) -> bool:
        """Whether subscribing made the group."""
        return self._subscription.created_group

    @property
    def ack_wait_ms(self) -> int:
        """How long the first lease of a message lasts."""
        return self._subscription.ack_wait_ms

    @property
    def ack_wait(self) -> timedelta:
        """``ack_wait_ms`` as a timedelta."""
        return self._subscription.ack_wait

    def __enter__(self) -> Subscription:
        try:
            self._session.run(self._subscription.__aenter__())
        except Exception:
            raise
        except BaseException:  # it came when the broker had agreed; the block will not run
            self._session.change(self._subscription.abandon)
            raise
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left(self)
        if not self._is_open:
            return
        self._is_open = False
        self._leave(kind, error, trace)

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.run(self._subscription.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Message]:
        self._subscription.check_open()
        return iter(self._next_message, None)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came within ``timeout`` seconds (None: wait without a limit)."""
        subscription = self._subscription
        subscription.check_open()
        timeout = seconds_or_none(timeout, "timeout")
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._messages:
                with suppress(IndexError):  # another thread may be faster
                    return self._messages.popleft()
            if subscription.is_fast and (message := subscription.next_in_hand()) is not None:
                return message
            if not self._session.run(self._take_message(timeout)):
                return None
            # What came may be another thread's by now: that is no end, and the wait goes on.
            timeout = None if ends is None else max(0.0, ends - time.monotonic())

    async def _take_message(self, timeout: float | None) -> bool:  # noqa: ASYNC109
        """Whether one has come. It is kept here before it is returned: an interruption in between does not lose it."""
        message = await self._subscription.receive(timeout)
        if message is not None:
            self._messages.append(message)
        return message is not None

    def _next_message(self) -> Message | None:
        subscription = self._subscription
        if subscription.is_fast and (message := subscription.next_in_hand()) is not None:
            return message
        return self._unless_left(self.receive)

    def _unless_left(self, receive: Callable[[], T | None]) -> T | None:
        """None once the subscription was left during an iteration."""
        try:
            return receive()
        except ClientClosed:
            if self._subscription.is_left:
                return None
            raise

    def batches(self) -> Iterator[Batch]:
        """Iterates over batches as they arrive. Do not mix it with iterating over messages."""
        self._subscription.check_open()
        return iter(lambda: self._unless_left(self._next_batch), None)

    def _next_batch(self) -> Batch | None:
        while True:
            if self._batches:
                with suppress(IndexError):
                    return self._batches.popleft()
            if not self._session.run(self._take_batch()):
                return None

    async def _take_batch(self) -> bool:
        batch = await self._subscription.receive_batch()
        if batch is not None:
            self._batches.append(batch)
        return batch is not None

    def stop(self) -> None:
        """See ``tickwheel.Subscription.stop``."""
        self._session.run(self._subscription.stop())

    def flush(self) -> None:
        """See ``tickwheel.Subscription.flush``."""
        self._session.run(self._subscription.flush())
