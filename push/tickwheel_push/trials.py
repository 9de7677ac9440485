"""The tests of a topic's endpoints: one request each, as a message would be sent, whatever comes of it.

A test that was not taken is given back with what was answered, so that the broker's log has it, and acked when it comes
again: there is no second request, and no dead letter. An endpoint that is disabled can be tested, too; its circuit
breaker, its rate and the figures know nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup

from tickwheel import Endpoint, TickwheelError
from tickwheel.client.waiting.last_words import LastWords
from tickwheel.protocol.endpoint_tests import ENDPOINT, KEPT_MS, VERSION
from tickwheel_push.clocks import Clocks
from tickwheel_push.delivery import GIVE_BACK_S, LONGEST_LEASE_S, Asking, lease_s
from tickwheel_push.gate import Gate
from tickwheel_push.http.addresses import AddressRefused, Allowed
from tickwheel_push.http.answer import Answer, NoAnswer, Result
from tickwheel_push.http.request import Due, RequestRefused, request_of
from tickwheel_push.intake import Queue
from tickwheel_push.taking import Taking
from tickwheel_push.target import style_of

MOST_IN_FLIGHT: Final = 4
LOOK_AGAIN_MS: Final = 300
UNKNOWN_S: Final = 30.0
"""So long a test waits for its endpoint to be known here."""

_log = logging.getLogger("tickwheel.push")


class Trials:
    """It runs until it is stopped and what it has begun is over."""

    def __init__(
        self,
        *,
        endpoints: Mapping[str, Endpoint],
        queue: Queue,
        exchange: Callable[[Endpoint], AbstractAsyncContextManager[Asking]],
        allowed: Allowed,
        clocks: Clocks | None = None,
    ) -> None:
        """``endpoints``: by name; ``exchange``: what makes the requests of one."""
        self._endpoints = endpoints
        self._queue = queue
        self._exchange = exchange
        self._allowed = allowed
        self._clocks = clocks or Clocks()
        self._gate = Gate(MOST_IN_FLIGHT, None)
        self._taking = Taking(
            queue=queue, room=self._gate.room, lease_s=_lease_s, carry=self._begin, clocks=self._clocks
        )
        self._group: TaskGroup | None = None
        self._last_words = LastWords(GIVE_BACK_S)

    def change(self, endpoints: Mapping[str, Endpoint]) -> None:
        """These are they from now on. What has begun ends as it began."""
        self._endpoints = endpoints

    def stop(self) -> None:
        """Takes nothing more."""
        self._taking.stop()

    async def run(self) -> None:
        """Cancelled, it gives back what it has not brought to an end."""
        async with self._last_words.watched(), anyio.create_task_group() as self._group:
            await self._taking.run()

    @property
    def has_room(self) -> bool:
        """Whether it asks for tests now."""
        return bool(self._gate.room(self._clocks.now_s()).count)

    def _begin(self, dues: Sequence[Due]) -> None:
        assert self._group is not None
        for due in dues:
            self._gate.began()
            self._group.start_soon(self._carry, due)

    async def _carry(self, due: Due) -> None:
        word: Callable[[], Awaitable[object]] = partial(self._queue.give_back, [due])
        try:
            word = await self._judged(due)
        finally:
            try:
                await self._last_words.say(
                    partial(self._tell, due, word), partial(self._untold, due, "no answer in time")
                )
            finally:
                self._gate.ended()
                self._taking.look()

    async def _tell(self, due: Due, word: Callable[[], Awaitable[object]]) -> None:
        try:
            await word()
        except TickwheelError as error:
            self._untold(due, error)

    def _untold(self, due: Due, why: object) -> None:
        _log.warning("the broker was not told what came of test %d of %r: %s", due.id, due.topic, why)

    async def _judged(self, due: Due) -> Callable[[], Awaitable[object]]:
        """What the broker is to be told of a test, once it was made."""
        if due.attempt > 1:  # the log has what came of it, or what was to make it has died in between
            return partial(self._queue.ack, due)
        waited_s = self._clocks.wall_s() - due.deliver_at_ms / 1_000
        endpoint = self._endpoints.get(str(due.headers.get(ENDPOINT)))
        known, wanted = (0 if endpoint is None else endpoint.version), due.headers.get(VERSION)
        if endpoint is None or (isinstance(wanted, int) and known < wanted):
            if waited_s < UNKNOWN_S:
                return partial(self._queue.postpone, due, LOOK_AGAIN_MS)
            result: Result = NoAnswer("refused", "there is no such endpoint any more")
        elif waited_s > KEPT_MS / 1_000:  # before the broker has looked for what is too old
            result = NoAnswer("refused", "nothing took the test in time")
        else:
            result = await self._ask(due, endpoint)
        if isinstance(result, Answer) and 200 <= result.status < 300:
            return partial(self._queue.ack, due)
        _log.info("test %d of endpoint %r: %s", due.id, endpoint and endpoint.name, result.text)
        return partial(self._queue.retry, due, 0, result.text)

    async def _ask(self, due: Due, endpoint: Endpoint) -> Result:
        try:
            location = self._allowed.location(endpoint.url)
            request = request_of(due, style_of(endpoint), location, self._clocks.wall_s())
        except (AddressRefused, RequestRefused) as error:
            return NoAnswer("refused", str(error))
        async with self._exchange(endpoint) as exchange:
            return await exchange.ask(request, min(LONGEST_LEASE_S, endpoint.timeout_ms / 1_000))


def _lease_s() -> float:
    return lease_s(LONGEST_LEASE_S)
