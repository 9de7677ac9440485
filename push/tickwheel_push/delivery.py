"""One attempt: a request is made, and its message settled by what was answered.

Nothing is acked that was not answered 2xx. When the broker cannot be told what came of a request, or does not take it
any more because the lease has ended, the message comes again: at least once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

import anyio

from tickwheel import ReceiptResult, TickwheelError
from tickwheel.client.waiting.last_words import LastWords
from tickwheel_push.clocks import Clocks
from tickwheel_push.gate import Gate
from tickwheel_push.http.answer import NoAnswer, Result
from tickwheel_push.http.request import Due, Request
from tickwheel_push.intake import Queue
from tickwheel_push.outcome import Kind, Outcome, Rules, outcome_of
from tickwheel_push.tally import EndpointTally

MARGIN_S: Final = 15.0
"""So much longer than a request may take is its lease, so that the broker can be told what came of it."""
LONGEST_LEASE_S: Final = 60.0
"""The lease of what takes longer is renewed: when this process dies, its messages are not away for minutes."""
GIVE_BACK_S: Final = 2.0
"""So long a process that ends waits for the broker to hear what became of messages."""
_NOT_IN_TIME: Final = "no answer in time"
OWN_WANT_MS: Final = 1_000
"""A message waits so long when this process cannot make its request for want of files or memory."""

_log = logging.getLogger("tickwheel.push")


class Asking(Protocol):
    """What makes requests: ``Exchange``."""

    async def ask(self, request: Request, timeout_s: float) -> Result:
        """The answer, or why there is none."""


def lease_s(timeout_s: float) -> float:
    """Of a message whose request may take so long."""
    return min(timeout_s, LONGEST_LEASE_S) + MARGIN_S


class Deliveries:
    """The attempts of one endpoint."""

    def __init__(
        self,
        queue: Queue,
        tally: EndpointTally,
        clocks: Clocks,
        changed: Callable[[], None],
    ) -> None:
        """``changed``: called when a gate may have another room."""
        self._queue = queue
        self._tally = tally
        self._clocks = clocks
        self._changed = changed
        self.last_words = LastWords(GIVE_BACK_S)
        """Their group is to be watched by it."""

    async def carry(
        self,
        due: Due,
        request: Request,
        exchange: Asking,
        timeout_s: float,
        rules: Rules,
        gate: Gate,
        *,
        gone: Callable[[Outcome], Awaitable[None]] | None = None,
    ) -> None:
        """Makes the request and settles the message. The gate has counted it already; cancelled, the message goes back
        to the broker. ``gone``: called when the endpoint says that it is not there any more."""
        try:
            try:
                result = await self._ask(due, request, exchange, timeout_s)
            finally:
                gate.ended()
        except BaseException:
            await self.give_back(due)
            raise
        if isinstance(result, NoAnswer) and result.is_ours:
            _log.info("message %d of %r waits: %s", due.id, due.topic, result.text)
            self._changed()
            await self.postpone(due, OWN_WANT_MS)
            return
        outcome = outcome_of(result, rules, due.attempt, self._clocks.wall_s(), self._clocks.chance())
        gate.told(outcome, self._clocks.now_s())
        self._changed()
        if outcome.kind in (Kind.DELIVERED, Kind.HELD):
            self._tally.delivered(self._late_s(due))
        if outcome.error:
            _log.info("message %d of %r, attempt %d: %s", due.id, due.topic, due.attempt, outcome.error)
        try:
            if outcome.kind is Kind.GONE and gone is not None:
                await gone(outcome)
        finally:
            await self.settle(due, outcome)

    async def _ask(self, due: Due, request: Request, exchange: Asking, timeout_s: float) -> Result:
        self._tally.began(self._late_s(due), is_first=due.attempt == 1)
        began = self._clocks.now_s()
        if timeout_s <= LONGEST_LEASE_S:
            result = await exchange.ask(request, timeout_s)
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(self._renew, due, lease_s(timeout_s))
                result = await exchange.ask(request, timeout_s)
                group.cancel_scope.cancel()
        self._tally.answered(result, self._clocks.now_s() - began)
        return result

    async def _renew(self, due: Due, length_s: float) -> None:
        """Keeps the message for as long as its request is on its way."""
        while True:
            with self._clocks.until(self._clocks.now_s() + length_s / 3):
                await anyio.sleep_forever()
            try:
                await self._queue.hold(due, round(length_s * 1_000))
            except TickwheelError as error:
                _log.warning("the lease of message %d of %r was not renewed: %s", due.id, due.topic, error)

    def _late_s(self, due: Due) -> float:
        return self._clocks.wall_s() - due.deliver_at_ms / 1_000

    async def settle(self, due: Due, outcome: Outcome) -> None:
        """Tells the broker, also when cancelled: within GIVE_BACK_S. Whatever keeps it from being told, the message
        comes again."""
        untold = partial(self._unsettled, due, outcome, _NOT_IN_TIME)
        await self.last_words.say(partial(self._settle, due, outcome), untold)

    async def _settle(self, due: Due, outcome: Outcome) -> None:
        try:
            result = await self._tell(due, outcome)
        except TickwheelError as error:
            self._unsettled(due, outcome, error.code)
            return
        if result in _TAKEN and (outcome.kind is not Kind.DEAD or result is not ReceiptResult.NACKED):
            self._tally.ended(Kind.DEAD if result is ReceiptResult.DEAD else outcome.kind)
        else:
            self._unsettled(due, outcome, result)

    def _unsettled(self, due: Due, outcome: Outcome, why: str) -> None:
        self._tally.unsettled()
        told = "message %d of %r was answered (%s), but the broker did not take that: %s; it comes again"
        _log.warning(told, due.id, due.topic, outcome.kind, why)

    async def _tell(self, due: Due, outcome: Outcome) -> ReceiptResult:
        match outcome.kind:
            case Kind.DELIVERED:
                return await self._queue.ack(due)
            case Kind.HELD:
                return await self._queue.hold(due, outcome.delay_ms)
            case Kind.RETRY:
                return await self._queue.retry(due, outcome.delay_ms, outcome.error)
            case Kind.DEAD:
                return await self._queue.give_up(due, outcome.error)
            case Kind.GONE:
                return await self._queue.postpone(due, 0)

    async def postpone(self, due: Due, delay_ms: int) -> None:
        """It comes again after a while, and this was no attempt. Cancelled, it is told within GIVE_BACK_S."""
        self._tally.postponed()
        await self._return(partial(self._queue.postpone, due, delay_ms), (due,))

    async def give_back(self, *dues: Due) -> None:
        """They come again at once, and this was no attempt. Cancelled, it is told within GIVE_BACK_S."""
        await self._return(partial(self._queue.give_back, dues), dues)

    async def _return(self, say: Callable[[], Awaitable[object]], dues: Sequence[Due]) -> None:
        def untold(why: object) -> None:
            told = "%d messages of %r were not given back (%s): they come again when their leases end"
            _log.info(told, len(dues), dues[0].topic, why)

        async def said() -> None:
            try:
                await say()
            except TickwheelError as error:
                untold(error)

        await self.last_words.say(said, partial(untold, _NOT_IN_TIME))


_TAKEN: Final = frozenset(
    {
        ReceiptResult.ACKED,
        ReceiptResult.ALREADY_ACKED,
        ReceiptResult.NACKED,
        ReceiptResult.DEAD,
        ReceiptResult.EXTENDED,
        # The message was stopped meanwhile: there is nothing left to be done.
        ReceiptResult.CANCELLED,
    }
)
