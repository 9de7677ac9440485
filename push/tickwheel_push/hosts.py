"""The hosts that tasks are for: each has a gate of its own, so that a slow one keeps no other one's tasks waiting.

Tasks of all hosts share one group. What is for a host without room waits here if that will be short, and otherwise is
handed back for a while.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import anyio

from tickwheel_push.clocks import Clocks
from tickwheel_push.gate import Failing, Gate
from tickwheel_push.http.addresses import Origin
from tickwheel_push.http.request import Request

MOST_HOSTS: Final = 10_000
LEAST_WAIT_S: Final = 0.25
LONGEST_WAIT_S: Final = 60.0
SOON_S: Final = 1.0
"""So long a task may wait here."""
_FIRST_TOOK_S: Final = 0.1
_WEIGHT: Final = 0.1
"""Of the latest request in the mean."""


class Host:
    """One scheme, name and port."""

    def __init__(self, max_in_flight: int, clocks: Clocks) -> None:
        self.gate = Gate(max_in_flight)
        self._clocks = clocks
        self._took_s = _FIRST_TOOK_S
        self._last_turn = -math.inf
        self._waiting = 0
        self._freed = anyio.Event()

    @property
    def is_forgettable(self) -> bool:
        """Whether a new one would behave alike."""
        return not (self.gate.in_flight or self._waiting or self.gate.breaker.has_failures)

    def took(self, took_s: float) -> None:
        """So long a request was on its way, which is over."""
        self._took_s += _WEIGHT * (took_s - self._took_s)
        self._freed.set()
        self._freed = anyio.Event()

    def may_wait(self, now: float, max_in_flight: int) -> bool:
        """Whether there will be room shortly, as far as we know; then `wait` is to be called."""
        is_full = math.isinf(self.gate.room(now).again_at)
        if not is_full or (self._waiting + 1) * self._took_s > SOON_S * max_in_flight:
            return False
        self._waiting += 1
        return True

    async def wait(self) -> bool:
        """Waits shortly for room; whether there is some."""
        try:
            with self._clocks.until(self._clocks.now_s() + SOON_S):
                while not self.gate.room(self._clocks.now_s()).count:
                    await self._freed.wait()
        finally:
            self._waiting -= 1
        return bool(self.gate.room(self._clocks.now_s()).count)

    def wait_s(self, now: float, max_in_flight: int) -> float:
        """How long a task for which there is no room is to wait: until those that were told before it will have had
        their turns, as far as we know; never long, because we may be wrong."""
        begin = now + LEAST_WAIT_S
        again_at = self.gate.room(now).again_at
        if not math.isinf(again_at):
            begin = max(begin, again_at)
        turn = max(begin, self._last_turn + self._took_s / max_in_flight)
        self._last_turn = min(turn, now + LONGEST_WAIT_S)
        return self._last_turn - now


class Hosts:
    """Those that were called lately."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._hosts: OrderedDict[Origin, Host] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def in_flight(self) -> int:
        """Requests on their way to all of them."""
        return sum(host.gate.in_flight for host in self._hosts.values())

    def failing(self, now: float) -> Failing | None:
        """None unless the last answer of each of them was a failure; else that of the one which has failed longest."""
        failing = [host.gate.failing(now) for host in self._hosts.values()]
        known = [one for one in failing if one is not None]
        if not known or len(known) < len(failing):
            return None
        return min(known, key=lambda one: one.since)

    def of(self, request: Request, max_in_flight: int) -> Host:
        """The one that a request is for."""
        place = request.location.origin
        host = self._hosts.get(place)
        if host is None:
            self._make_room()
            host = self._hosts[place] = Host(max_in_flight, self._clocks)
        self._hosts.move_to_end(place)
        host.gate.change(max_in_flight, None)
        return host

    def _make_room(self) -> None:
        """Of too many the one that was called longest ago goes, if nothing is known of it that matters."""
        if len(self._hosts) < MOST_HOSTS:
            return
        for place, host in self._hosts.items():
            if host.is_forgettable:
                del self._hosts[place]
                return
        self._hosts.popitem(last=False)
