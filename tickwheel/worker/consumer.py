"""The messages of a subscription, handed to a handler: some at a time, and each settled by what comes of it."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from tickwheel.client.consumer.giving_back import GiveBack
from tickwheel.client.consumer.message import BaseMessage
from tickwheel.client.consumer.subscription import Subscription
from tickwheel.client.waiting.last_words import LastWords
from tickwheel.protocol.errors import TickwheelError
from tickwheel.worker.handler import Handler
from tickwheel.worker.outcomes import INTERRUPTED, Kind, Outcome
from tickwheel.worker.tally import Tally

_LAST_WORD_S: Final = 5.0
"""How long an interrupted message may take to be given back."""

_log = logging.getLogger("tickwheel.worker")


class Consumer:
    """Runs one handler. `stop` ends it in order: no new message is begun, and those that are begun are finished."""

    def __init__(self, handler: Handler, subscription: Subscription[Any, Any]) -> None:
        self._handler = handler
        self._subscription = subscription
        self._slots = anyio.Semaphore(handler.concurrency)
        self._taking = anyio.CancelScope()
        self._finished = anyio.Event()
        self._is_stopped = False
        self._last_words = LastWords(_LAST_WORD_S)
        self.tally = Tally(handler.topic, handler.group, handler.concurrency)

    async def run(self, drain_s: float) -> None:
        """Until `stop`, and then for ``drain_s`` seconds at most; what is not finished by then is cancelled, and given
        back at once. What was not begun is given back as not looked at. Raises what the subscription raises, after the
        same time."""
        failed: TickwheelError | None = None
        async with self._subscription:
            async with anyio.create_task_group() as group:
                group.start_soon(self._last_words.watch)
                try:
                    with self._taking:
                        await self._take(group)
                except TickwheelError as error:
                    failed = error
                if failed is None:  # or what is given back below would come to it once more
                    group.start_soon(self._take_no_more)
                with anyio.move_on_after(drain_s):
                    while self.tally.running:
                        self._finished = anyio.Event()
                        await self._finished.wait()
                group.cancel_scope.cancel()
            if failed is not None:
                raise failed

    def stop(self) -> None:
        """Begin no more messages."""
        self._is_stopped = True
        self._taking.cancel()

    async def _take_no_more(self) -> None:
        try:
            await self._subscription.stop()
        except TickwheelError as error:
            _log.debug("%s", error)  # there is no connection: then nothing more comes

    async def _take(self, group: TaskGroup) -> None:
        while not self._is_stopped:
            await self._slots.acquire()
            message = await self._subscription.receive()
            if message is None:  # the subscription has ended
                return
            self.tally.running += 1
            group.start_soon(self._handle, message)

    async def _handle(self, message: BaseMessage) -> None:
        began_s = anyio.current_time()
        outcome = INTERRUPTED
        try:
            try:
                outcome = await self._handler.handle(message)
                self.tally.handled_s += anyio.current_time() - began_s
            finally:
                await self._settle(message, outcome)
        finally:
            self.tally.outcomes[outcome.kind] += 1
            self.tally.running -= 1
            self._finished.set()
            self._slots.release()

    async def _settle(self, message: BaseMessage, outcome: Outcome) -> None:
        if outcome.kind is not Kind.DONE:
            untold = partial(self.tally.untold, message.id, outcome, "no answer in time")
            await self._last_words.say(partial(self._give_back, message, outcome), untold)
            return
        acks = message.acks
        try:
            acks.add(message.id, message.epoch)
            if acks.crowded:
                await acks.make_room()
        except TickwheelError as error:
            self.tally.untold(message.id, outcome, error)

    async def _give_back(self, message: BaseMessage, outcome: Outcome) -> None:
        give_up = outcome.kind is Kind.GIVEN_UP
        how = GiveBack(outcome.after_ms, outcome.reason[:500], give_up, not outcome.counted)
        try:
            (result,) = await message.acks.nack((message.id,), (message.epoch,), how)
        except TickwheelError as error:
            self.tally.untold(message.id, outcome, error)
            return
        self.tally.told(message.id, outcome, result)
