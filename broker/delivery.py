"""Delivery: one dispatcher task for each group that has subscribers.

A dispatcher goes round its subscriptions. Whoever has free credit, and is not behind with reading, gets one
complete DELIVER frame in each round; the engine leases the messages in the same call. A subscriber that is
slow or has no credit is passed over: it delays neither the others nor the producers. Leases that end come
back by way of the wheel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import trio

from broker import logs
from broker.clock import Clock
from broker.outgoing import Outgoing
from broker.wake import Bell
from timerlog.errors import DiskFull

if TYPE_CHECKING:
    from timerlog.store import Store

FRAME_TARGET_BYTES = 1 << 20
"""A DELIVER frame is filled up to about this size; one message alone may be larger."""

_RETRY_S = 0.5

_log = logs.get_logger("delivery")


class Subscription:
    """One subscription of one connection."""

    __slots__ = ("batch", "credit", "group_id", "holder", "is_started", "number", "outgoing")

    def __init__(
        self, *, number: int, group_id: int, holder: int, credit: int, batch: int, outgoing: Outgoing
    ) -> None:
        """`number` is the connection's name for it, `holder` the engine's, `credit` and `batch` count
        messages.
        """
        self.number = number
        self.group_id = group_id
        self.holder = holder
        self.credit = credit
        self.batch = min(batch, credit)
        self.outgoing = outgoing
        self.is_started = False


class Dispatcher:
    """Hands the ready messages of one group to its subscriptions, round robin."""

    def __init__(self, store: Store, clock: Clock, group_id: int, mark_dirty: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._group_id = group_id
        self._mark_dirty = mark_dirty
        self._rotation: deque[Subscription] = deque()
        self._bell = Bell()
        self._is_stopped = False
        self._is_starved = False

    @property
    def subscribers(self) -> int:
        """How many subscriptions are served."""
        return len(self._rotation)

    def wake(self) -> None:
        """There may be something to hand out: new work, new credit, room in a queue."""
        self._bell.ring()

    def add(self, subscription: Subscription) -> None:
        """A subscription joins; it is the next to be served."""
        self._rotation.appendleft(subscription)
        self._bell.ring()

    def remove(self, subscription: Subscription) -> None:
        """A subscription leaves."""
        self._rotation.remove(subscription)
        self._bell.ring()

    def stop(self) -> None:
        """Hand out nothing more."""
        self._is_stopped = True
        self._bell.ring()

    async def run(self) -> None:
        """Dispatch until the last subscription has left."""
        while self._rotation and not self._is_stopped:
            if self.turn():
                await trio.lowlevel.checkpoint()
            elif self._is_starved:
                self._is_starved = False
                await trio.sleep(_RETRY_S)
            else:
                await self._bell.wait()

    def turn(self) -> bool:
        """Offer each subscription one frame. True if anything was handed out."""
        handed_out = False
        for _ in range(len(self._rotation)):
            subscription = self._rotation[0]
            if self._can_take(subscription):
                frame = self._fetch(subscription)
                if frame is None:
                    # Not this one's fault: it stays first, so that single messages go round as well.
                    break
                subscription.outgoing.put(frame)
                handed_out = True
            self._rotation.rotate(-1)
        if handed_out:
            self._mark_dirty()
        return handed_out

    def _can_take(self, subscription: Subscription) -> bool:
        if subscription.outgoing.is_full:
            subscription.outgoing.when_low(self.wake)
            return False
        return self._store.outstanding(subscription.holder) < subscription.credit

    def _fetch(self, subscription: Subscription) -> bytes | None:
        room = subscription.credit - self._store.outstanding(subscription.holder)
        try:
            return self._store.fetch(
                self._group_id,
                subscription.holder,
                subscription.number,
                min(room, subscription.batch),
                FRAME_TARGET_BYTES,
                self._clock.now_ms(),
            )
        except DiskFull as error:
            _log.error("cannot deliver: the disk is full", group_id=self._group_id, advice=error.advice)
            self._is_starved = True
            return None


class Delivery:
    """All dispatchers. Each starts with the first subscription of its group and ends after the last."""

    def __init__(
        self, store: Store, clock: Clock, nursery: trio.Nursery, mark_dirty: Callable[[], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._nursery = nursery
        self._mark_dirty = mark_dirty
        self._dispatchers: dict[int, Dispatcher] = {}
        self._is_stopped = False
        self.subscribers = 0

    def subscribers_of(self, group_id: int) -> int:
        """How many subscriptions a group has."""
        dispatcher = self._dispatchers.get(group_id)
        return 0 if dispatcher is None else dispatcher.subscribers

    def add(self, subscription: Subscription) -> None:
        """Start delivering to a subscription."""
        subscription.is_started = True
        self.subscribers += 1
        dispatcher = self._dispatchers.get(subscription.group_id)
        if dispatcher is not None:
            dispatcher.add(subscription)
            return
        dispatcher = Dispatcher(self._store, self._clock, subscription.group_id, self._mark_dirty)
        dispatcher.add(subscription)
        self._dispatchers[subscription.group_id] = dispatcher
        if not self._is_stopped:
            self._nursery.start_soon(dispatcher.run, name=f"group-{subscription.group_id}")

    def remove(self, subscription: Subscription) -> None:
        """Stop delivering to a subscription, if it ever began; what it holds is the caller's business."""
        if not subscription.is_started:
            return
        subscription.is_started = False
        self.subscribers -= 1
        dispatcher = self._dispatchers[subscription.group_id]
        dispatcher.remove(subscription)
        if not dispatcher.subscribers:
            del self._dispatchers[subscription.group_id]

    def wake(self, group_ids: Iterable[int]) -> None:
        """These groups have new work."""
        for group_id in group_ids:
            self.wake_group(group_id)

    def wake_group(self, group_id: int) -> None:
        """This group has new work or new credit."""
        dispatcher = self._dispatchers.get(group_id)
        if dispatcher is not None:
            dispatcher.wake()

    def stop(self) -> None:
        """Hand out nothing more."""
        self._is_stopped = True
        for dispatcher in self._dispatchers.values():
            dispatcher.stop()
