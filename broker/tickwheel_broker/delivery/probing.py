"""Probing: who holds messages, or waits for some, is asked for a sign of life. Who stands still is given nothing more,
and what it holds nobody has seen."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
import trio

from tickwheel_broker.bell import Bell
from tickwheel_broker.delivery.delivery import Delivery
from tickwheel_broker.delivery.takers import Fetching, Subscription, Taker
from tickwheel_broker.net.pulse import ASKED_AT, Pulse
from timerlog.engine.deliver import Deliver
from timerlog.engine.groups import Holders
from timerlog.layout import UInt32Array, UInt64Array

_LOOKED_EVERY_S: Final = 1.0
_LOOKED_AFTER_S: Final = 0.02
"""Looks at the watched are so far apart, at most and at least."""
_LOOKED_AT_ONCE: Final = 256
_RETURNS_S: Final = 0.2
"""So long after it is heard again, who stood still is given messages."""
_ENDED_S: Final = 10.0
"""So long after the end of its lease a fetch is remembered: a busy broker ends leases late."""


class Probing:
    """Asks who holds messages, or waits for some, for a sign of life, once a part of a lease has passed without a word.
    While nobody does, it costs nothing."""

    def __init__(
        self,
        leases: Deliver,
        holders: Holders,
        delivery: Delivery,
    ) -> None:
        self._leases = leases
        self._holders = holders
        self._delivery = delivery
        self._watched: dict[Taker, None] = {}
        self._still: list[Fetching] = []
        """Answered fetches whose clients stood still when they were looked at."""
        self._returning: deque[tuple[float, Pulse, Callable[[], Iterable[Taker]]]] = deque()
        """Who stood still and is given messages again at a time, on trio's clock."""
        self._bell = Bell()
        self._next_s = math.inf
        """How long it sleeps at most."""

    def watch(self, taker: Taker) -> None:
        """One was given messages, or waits for some."""
        if isinstance(taker, Fetching) and taker.is_answered:
            taker.leased_until_s = trio.current_time() + self._lease_s(taker)
        if taker not in self._watched:
            self._watched[taker] = None
            taker.pulse.expect()
            if _looks_every_s(self._lease_s(taker)) < self._next_s:
                self._bell.ring()

    def readmit(self, pulse: Pulse, takers: Callable[[], Iterable[Taker]]) -> None:
        """A client was heard again: give its ``takers`` what they were not given meanwhile. Who stood still has a
        moment to say what it has done: an ack counts until its message is given out again. Takers that come in this
        moment are given nothing either, so all are asked for at its end."""
        if not pulse.is_missed:
            self._wake(takers())
        else:
            self._returning.append((trio.current_time() + _RETURNS_S, pulse, takers))
            self._bell.ring()

    def _wake(self, takers: Iterable[Taker]) -> None:
        for taker in takers:
            self._delivery.wake(taker.group_ids)

    def fetched_unseen(self, group_id: int, ids: UInt64Array, epochs: UInt32Array) -> npt.NDArray[np.bool_]:
        """Which messages, whose leases have run out, were given to fetches whose clients stand still since. Ids and
        epochs are of one length, which the answer has too."""
        unseen: set[tuple[int, int]] = set()
        for fetching in self._still:
            if group_id in fetching.group_ids and fetching.is_unheard:
                unseen.update(zip(*fetching.receipts(), strict=True))
        pairs = zip(ids.tolist(), epochs.tolist(), strict=True)
        return np.fromiter((pair in unseen for pair in pairs), np.bool_, len(ids))

    def _lease_s(self, taker: Taker) -> float:
        own_ms = taker.asked.lease_ms if isinstance(taker, Fetching) else None
        return (self._leases.ack_wait_ms(taker.group_id) if own_ms is None else own_ms) / 1_000

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with trio.move_on_after(self._next_s):
                await self._bell.wait()
            self._next_s = min(await self._look(), self._let_in())

    def _let_in(self) -> float:
        """After how long somebody returns."""
        while self._returning:
            at_s, pulse, takers = self._returning[0]
            if at_s > trio.current_time():
                return at_s - trio.current_time()
            self._returning.popleft()
            if not pulse.is_awaited:  # else it has let another lease end since
                pulse.is_missed = False
                self._wake(takers())
        return math.inf

    async def _look(self) -> float:
        """When to look again."""
        next_s, still = math.inf, []
        for number, taker in enumerate(list(self._watched), 1):
            if number % _LOOKED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if not self._matters(taker):
                del self._watched[taker]
                continue
            lease_s = self._lease_s(taker)
            taker.pulse.look(lease_s)
            if isinstance(taker, Fetching) and taker.is_answered and taker.pulse.is_missed:
                still.append(taker)
            next_s = min(next_s, _looks_every_s(lease_s))
        self._still = still
        return next_s

    def _matters(self, taker: Taker) -> bool:
        """Whether it waits for messages, or has some that nobody may have seen."""
        if isinstance(taker, Subscription):
            return taker.is_started and self._holders.outstanding(taker.holder) > 0
        if not taker.is_answered:
            return taker.is_started
        return taker.is_unheard and trio.current_time() < taker.leased_until_s + _ENDED_S


def _looks_every_s(ack_wait_s: float) -> float:
    """Often enough that who runs has answered when it must have."""
    return min(_LOOKED_EVERY_S, max(_LOOKED_AFTER_S, ack_wait_s * ASKED_AT / 2))
