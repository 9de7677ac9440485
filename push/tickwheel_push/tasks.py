"""An endpoint without a URL: each message of its group names the request that it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import anyio
from anyio.abc import TaskGroup

from tickwheel import Endpoint
from tickwheel_push.clocks import Clocks
from tickwheel_push.delivery import Asking, Deliveries, lease_s
from tickwheel_push.gate import Failing, Gate
from tickwheel_push.hosts import Host, Hosts
from tickwheel_push.http.addresses import Allowed
from tickwheel_push.http.request import Due, Request, RequestRefused, task_of
from tickwheel_push.intake import Queue
from tickwheel_push.outcome import Kind, Outcome
from tickwheel_push.taking import Taking
from tickwheel_push.tally import EndpointTally
from tickwheel_push.target import rules_of, style_of

MOST_IN_FLIGHT: Final = 256
"""Requests of tasks at a time, to all hosts together."""


class Tasks:
    """It runs until it is stopped and what it has begun is over."""

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        queue: Queue,
        exchange: Asking,
        allowed: Allowed,
        tally: EndpointTally,
        clocks: Clocks | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._allowed = allowed
        self._tally = tally
        self._clocks = clocks or Clocks()
        self._hosts = Hosts(self._clocks)
        self._all = Gate(MOST_IN_FLIGHT, endpoint.rate_per_s)
        self._taking = Taking(
            queue=queue, room=self._all.room, lease_s=self._lease_s, carry=self._begin, clocks=self._clocks
        )
        self._deliveries = Deliveries(queue, tally, self._clocks, self._taking.look)
        self._group: TaskGroup | None = None

    def change(self, endpoint: Endpoint) -> None:
        """It is another one from now on. What has begun ends as it began."""
        self._endpoint = endpoint
        self._all.change(MOST_IN_FLIGHT, endpoint.rate_per_s)
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
        self._tally.gate(self._all, self._clocks.now_s())

    @property
    def failing(self) -> Failing | None:
        """None: the last answer of one of its hosts was a success, or there was none yet."""
        return self._hosts.failing(self._clocks.now_s())

    @property
    def has_room(self) -> bool:
        """Whether it asks for messages now."""
        return bool(self._all.room(self._clocks.now_s()).count)

    def _lease_s(self) -> float:
        return lease_s(self._endpoint.timeout_ms / 1_000)

    def _begin(self, dues: Sequence[Due]) -> None:
        assert self._group is not None
        for due in dues:
            endpoint = self._endpoint
            try:
                request = task_of(
                    due, style_of(endpoint), self._allowed, endpoint.allow_urls, self._clocks.wall_s()
                )
            except RequestRefused as error:
                # It will never be one that may go.
                refused = Outcome(Kind.DEAD, error=str(error))
                self._group.start_soon(self._deliveries.settle, due, refused)
                continue
            host, now = self._hosts.of(request, endpoint.max_in_flight), self._clocks.now_s()
            if host.gate.room(now).count:
                self._start(due, request, host, endpoint)
            elif host.may_wait(now, endpoint.max_in_flight):
                self._group.start_soon(self._wait, due, request, host, endpoint)
            else:
                self._group.start_soon(self._postpone, due, host, endpoint)

    def _start(self, due: Due, request: Request, host: Host, endpoint: Endpoint) -> None:
        assert self._group is not None
        host.gate.began()
        self._all.began()
        self._group.start_soon(self._carry, due, request, host, endpoint)

    async def _wait(self, due: Due, request: Request, host: Host, endpoint: Endpoint) -> None:
        try:
            has_room = await host.wait()
        except BaseException:
            await self._deliveries.give_back(due)
            raise
        if has_room:
            self._start(due, request, host, endpoint)
        else:
            await self._postpone(due, host, endpoint)

    async def _postpone(self, due: Due, host: Host, endpoint: Endpoint) -> None:
        wait_s = host.wait_s(self._clocks.now_s(), endpoint.max_in_flight)
        await self._deliveries.postpone(due, math.ceil(wait_s * 1_000))

    async def _carry(self, due: Due, request: Request, host: Host, endpoint: Endpoint) -> None:
        began = self._clocks.now_s()
        timeout_s = endpoint.timeout_ms / 1_000
        try:
            await self._deliveries.carry(
                due, request, self._exchange, timeout_s, rules_of(endpoint), host.gate
            )
        finally:
            host.took(self._clocks.now_s() - began)
            self._all.ended()
            self._taking.look()
