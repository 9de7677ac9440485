"""All handlers of a process, from the start until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

import anyio
import sniffio
from anyio.abc import TaskStatus

from tickwheel.client.consumer.message import BaseBatch
from tickwheel.client.consumer.subscription import SubscribeOptions, Subscription
from tickwheel.client.times import Delay, duration_ms
from tickwheel.protocol.errors import BadArgument
from tickwheel.worker.consumer import Consumer
from tickwheel.worker.handler import Handler
from tickwheel.worker.signals import told
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
            Consumer(handler, client.subscribe_as(batch_class, handler.topic, handler.group, asked(handler)))
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
        self, *, signals: bool | None = False, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Until `stop`, and until handlers are finished. ``signals``: whether SIGTERM and Ctrl-C stop it, see `told`; a
        second one does not wait. Raises what a subscription raises, after the other handlers were stopped in order."""
        with told(partial(_caller_from_threads(), self.stop), signals):
            async with anyio.create_task_group() as group:
                self._everything = group.cancel_scope
                for consumer in self._consumers:
                    group.start_soon(self._run, consumer)
                task_status.started()
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


def _caller_from_threads() -> Callable[..., object]:
    """What calls a function in this event loop, from any thread."""
    if sniffio.current_async_library() == "asyncio":
        return asyncio.get_running_loop().call_soon_threadsafe
    import trio

    return trio.lowlevel.current_trio_token().run_sync_soon


def asked(handler: Handler) -> SubscribeOptions:
    """What its subscription asks for."""
    options = handler.options
    return SubscribeOptions(
        credit=handler.credit,
        batch=_BATCH,
        start=options.start,
        shard=options.shard,
        max_hold=options.max_hold,
        attempts=True,
    )
