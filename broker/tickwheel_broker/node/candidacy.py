"""Whether this node stands to be chosen, whatever the cluster says: not while it drains, stops, is off time, or has no
room, or could not own the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

import trio

from tickwheel_broker.sharedlog.node import Membership
from tickwheel_broker.sharedlog.standing import Standing


class Reason(Enum):
    """Why a node does not stand."""

    DRAINED = "drained"
    CLOCK = "clock"
    DISK = "disk"
    UNCONFIRMED = "unconfirmed"


class Candidacy:
    """The cluster's membership, as the node sees it."""

    def __init__(self, cluster: Membership, standing: Standing) -> None:
        self._cluster, self._standing = cluster, standing
        self._reasons: set[Reason] = set()
        self._withdrawn, self._standing_again = trio.Event(), trio.Event()
        self._standing_again.set()

    def joined(self) -> None:
        """See `Membership`."""
        self._standing.is_warm = True
        if not self._reasons:
            self._join()

    def left(self) -> None:
        """See `Membership`."""
        self._standing.is_warm = self._standing.has_joined = False
        self._cluster.left()

    async def wait_chosen(self) -> None:
        """See `Membership`."""
        while True:
            await self._standing_again.wait()
            await _first_of(self._cluster.wait_chosen, self._withdrawn.wait)
            if not self._reasons:
                return

    async def wait_not_chosen(self) -> None:
        """See `Membership`."""
        await _first_of(self._cluster.wait_not_chosen, self._withdrawn.wait)

    async def has_others(self) -> bool:
        """See `Membership`."""
        return await self._cluster.has_others()

    def withdraw(self, reason: Reason) -> None:
        """From now on it is not chosen, and hands over what it owns."""
        self._reasons.add(reason)
        self._standing.is_drained = Reason.DRAINED in self._reasons
        if self._withdrawn.is_set():
            return
        self._withdrawn.set()
        self._standing_again = trio.Event()
        if self._standing.has_joined and self._standing.replicator is None:
            self._standing.has_joined = False
            self._cluster.left()

    def stand_again(self, reason: Reason) -> None:
        """It may be chosen again, unless there is another reason."""
        self._reasons.discard(reason)
        self._standing.is_drained = Reason.DRAINED in self._reasons
        if self._reasons or not self._withdrawn.is_set():
            return
        self._withdrawn = trio.Event()
        self._standing_again.set()
        if self._standing.is_warm and not self._standing.has_joined:
            self._join()

    def _join(self) -> None:
        self._standing.has_joined = True
        self._cluster.joined()


async def _first_of(*waits: Callable[[], Awaitable[None]]) -> None:
    """Return once one of them has."""

    async def wait_for(wait: Callable[[], Awaitable[None]]) -> None:
        await wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for wait in waits:
            nursery.start_soon(wait_for, wait)
