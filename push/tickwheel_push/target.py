"""One endpoint with a URL: the messages of its group go there, as many at a time as it can bear."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
from anyio.abc import TaskGroup

from tickwheel import Endpoint
from tickwheel_push.clocks import Clocks
from tickwheel_push.delivery import Asking, Deliveries, lease_s
from tickwheel_push.gate import Failing, Gate
from tickwheel_push.http.addresses import Allowed
from tickwheel_push.http.request import Due, Style, request_of
from tickwheel_push.intake import Queue
from tickwheel_push.outcome import Outcome, Rules
from tickwheel_push.taking import Taking
from tickwheel_push.tally import EndpointTally


def style_of(endpoint: Endpoint) -> Style:
    """How its requests look."""
    return Style(endpoint.format, endpoint.secrets, endpoint.headers, tells_receipt=endpoint.may_hold)


def rules_of(endpoint: Endpoint) -> Rules:
    """What its answers mean."""
    return Rules(endpoint.retry_delays_ms, endpoint.give_up_on, endpoint.may_hold, is_task=not endpoint.url)


class Target:
    """It runs until it is stopped and what it has begun is over."""

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        queue: Queue,
        exchange: Asking,
        allowed: Allowed,
        tally: EndpointTally,
        disable: Callable[[Endpoint, str], Awaitable[None]],
        clocks: Clocks | None = None,
    ) -> None:
        """Raises AddressRefused."""
        self._endpoint = endpoint
        self._location = allowed.location(endpoint.url)
        self._exchange = exchange
        self._allowed = allowed
        self._tally = tally
        self._disable = disable
        self._clocks = clocks or Clocks()
        self._gate = Gate(endpoint.max_in_flight, endpoint.rate_per_s)
        self._taking = Taking(
            queue=queue, room=self._gate.room, lease_s=self._lease_s, carry=self._begin, clocks=self._clocks
        )
        self._deliveries = Deliveries(queue, tally, self._clocks, self._taking.look)
        self._group: TaskGroup | None = None

    def change(self, endpoint: Endpoint) -> None:
        """It is another one from now on. What has begun ends as it began. Raises AddressRefused."""
        self._location = self._allowed.location(endpoint.url)
        self._endpoint = endpoint
        self._gate.change(endpoint.max_in_flight, endpoint.rate_per_s)
        self._taking.look(anew=True)

    def stop(self) -> None:
        """Takes nothing more."""
        self._taking.stop()

    async def run(self) -> None:
        """Cancelled, it gives back what it has not brought to an end."""
        async with self._deliveries.last_words.watched(), anyio.create_task_group() as self._group:
            await self._taking.run()

    def tell(self) -> None:
        """The figures of this moment."""
        self._tally.gate(self._gate, self._clocks.now_s())

    @property
    def failing(self) -> Failing | None:
        """None: its last answer was a success, or there was none yet."""
        return self._gate.failing(self._clocks.now_s())

    @property
    def has_room(self) -> bool:
        """Whether it asks for messages now."""
        return bool(self._gate.room(self._clocks.now_s()).count)

    def _lease_s(self) -> float:
        return lease_s(self._endpoint.timeout_ms / 1_000)

    def _begin(self, dues: Sequence[Due]) -> None:
        assert self._group is not None
        for due in dues:
            self._gate.began()
            self._group.start_soon(self._carry, due)

    async def _carry(self, due: Due) -> None:
        endpoint = self._endpoint
        request = request_of(due, style_of(endpoint), self._location, self._clocks.wall_s())
        timeout_s, rules = endpoint.timeout_ms / 1_000, rules_of(endpoint)
        gone = partial(self._gone, endpoint)
        await self._deliveries.carry(due, request, self._exchange, timeout_s, rules, self._gate, gone=gone)

    async def _gone(self, endpoint: Endpoint, outcome: Outcome) -> None:
        """It is not to be called any more; its group keeps its messages. What it has become since it was called may be
        somewhere else."""
        if endpoint is self._endpoint:
            self._taking.stop()
            await self._disable(endpoint, outcome.error)
