"""All handlers of a process, from the start until it is told to stop."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskStatus

from tickwheel.client.consumer.message import BaseBatch
from tickwheel.client.consumer.subscription import SubscribeOptions, Subscription
from tickwheel.client.times import Delay, duration_ms
from tickwheel.protocol.errors import BadArgument
from tickwheel.worker.consumer import Consumer
from tickwheel.worker.handler import Handler
from tickwheel.worker.tally import Tally

DRAIN: Final = timedelta(seconds=30)
_BATCH: Final = 500

_log = logging.getLogger("tickwheel.worker")


class Subscriber(Protocol):
    """What makes subscriptions: a client."""

    def subscribe_as(
        self, batch_class: type[Any], topic: str, group: str, options: SubscribeOptions
    ) -> Subscription[Any, Any]:
        """See ``Client.subscribe_as``."""


class Worker:
    """Calls handlers for messages until `stop`. Use it once."""

    def __init__(
        self,
        client: Subscriber,
        batch_class: type[BaseBatch[Any]],
        handlers: Iterable[Handler],
        *,
        drain: Delay = DRAIN,
    ) -> None:
        """``drain``: how long handlers that are at work may take when it is told to stop. Raises BadArgument."""
        self._drain_s = duration_ms(drain, "drain") / 1_000
        self._consumers: Sequence[Consumer] = [
            Consumer(handler, client.subscribe_as(batch_class, handler.topic, handler.group, _asked(handler)))
            for handler in handlers
        ]
        if not self._consumers:
            raise BadArgument("There is no handler.", advice="Add one for a topic.")
        self._error: Exception | None = None
        self._everything: anyio.CancelScope | None = None
        self.is_stopping = False

    @property
    def tallies(self) -> list[Tally]:
        """One of each handler."""
        return [consumer.tally for consumer in self._consumers]

    async def run(
        self, *, signals: bool = False, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Until `stop`, and until handlers are finished. ``signals``: SIGTERM and Ctrl-C stop it, and a second one does
        not wait. Raises what a subscription raises, after the other handlers were stopped in order."""
        async with anyio.create_task_group() as group:
            self._everything = group.cancel_scope
            if signals:
                await group.start(self._stop_by_signal)
            async with anyio.create_task_group() as consuming:
                for consumer in self._consumers:
                    consuming.start_soon(self._run, consumer)
                task_status.started()
            group.cancel_scope.cancel()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Begin no more messages, and finish those that are begun. A second time: do not wait for them."""
        if self.is_stopping:
            if self._everything is not None:
                self._everything.cancel()
            return
        self.is_stopping = True
        running = sum(tally.running for tally in self.tallies)
        _log.info("stops; %d messages are being handled", running)
        for consumer in self._consumers:
            consumer.stop()

    async def _run(self, consumer: Consumer) -> None:
        try:
            await consumer.run(self._drain_s)
        except Exception as error:
            self._error = self._error or error
            if not self.is_stopping:
                self.stop()

    async def _stop_by_signal(self, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
            task_status.started()
            async for _ in received:
                self.stop()


def _asked(handler: Handler) -> SubscribeOptions:
    options = handler.options
    return SubscribeOptions(
        credit=handler.credit,
        batch=_BATCH,
        start=options.start,
        shard=options.shard,
        max_hold=options.max_hold,
        attempts=True,
    )
