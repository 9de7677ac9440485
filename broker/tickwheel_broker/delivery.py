"""Delivery: one dispatcher task for each group that has subscribers.

A dispatcher goes round its subscriptions. Whoever has free credit, and is not behind with reading, gets one
complete DELIVER frame in each round; the engine leases the messages in the same call. A subscriber that is
slow or has no credit is passed over: it delays neither the others nor the producers. Leases that end come
back by way of the wheel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import trio

from tickwheel_broker import logs
from tickwheel_broker.bell import Bell
from tickwheel_broker.clock import Clock
from tickwheel_broker.errors import advice_for
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.rate import RateLimiter
from timerlog.engine.deliver import Deliver as Leases
from timerlog.engine.groups import Groups, Holders
from timerlog.errors import DiskFull

FRAME_TARGET_BYTES = 1 << 20
"""A DELIVER frame is filled up to about this size; one message alone may be larger."""

_RETRY_S = 0.5
_COUNT_AT = 20

_log = logs.get_logger("delivery")


class Subscription:
    """One subscription of one connection."""

    __slots__ = (
        "_held",
        "batch",
        "credit",
        "group_id",
        "group_ids",
        "holder",
        "is_leaving",
        "is_started",
        "lease_told_ms",
        "number",
        "outgoing",
    )

    def __init__(
        self,
        *,
        number: int,
        group_id: int,
        group_ids: Sequence[int],
        holder: int,
        credit: int,
        batch: int,
        outgoing: Outgoing,
    ) -> None:
        """`number` is the connection's name for it, `holder` the engine's, `credit` and `batch` count messages.
        `group_ids` are those that deliver: that of each shard, or `group_id` alone.
        """
        self.number = number
        self.group_id = group_id
        self.group_ids = group_ids
        self.holder = holder
        self.credit = credit
        self.batch = batch
        self.outgoing = outgoing
        self.is_started = False
        self.is_leaving = False
        self.lease_told_ms = 0
        """Which `ack_wait` the client counts with; 0: it is not told of another one."""
        self._held: deque[bytes] = deque()

    def hold(self, frame: bytes) -> None:
        """A DELIVER frame waits for its leases to be durable."""
        self._held.append(frame)
        self.outgoing.hold(frame)

    def let_go(self, frame: bytes) -> None:
        """They are: send the frame, unless it was taken back meanwhile. Frames come here in the order of `hold`."""
        if self._held and self._held[0] is frame:
            self._held.popleft()
            self.outgoing.let_go(frame)

    def take_held(self) -> Iterator[bytes]:
        """The frames that have not left: each is taken back, and never will."""
        while self._held:
            frame = self._held.popleft()
            self.outgoing.withdraw(frame)
            yield frame


Deliver = Callable[[Subscription, bytes], None]


class Dispatcher:
    """Hands the ready messages of one group to its subscriptions, round robin."""

    def __init__(
        self,
        leases: Leases,
        holders: Holders,
        clock: Clock,
        group_id: int,
        deliver: Deliver,
        limiter: Callable[[float], RateLimiter],
    ) -> None:
        """`leases` gives messages out to `holders`; `deliver` takes each frame; `limiter` gives the bucket, for the
        rate that holds now, which this group shares with its other shards."""
        self._leases = leases
        self._holders = holders
        self._clock = clock
        self._group_id = group_id
        self._deliver = deliver
        self._limiter = limiter
        self._rotation: deque[Subscription] = deque()
        self._bell = Bell()
        self._pause_over = Bell()
        self._is_stopped = False
        self._pause_s = 0.0

    @property
    def subscribers(self) -> int:
        """How many subscriptions are served."""
        return len(self._rotation)

    def wake(self) -> None:
        """There may be something to hand out: new work, new credit, room in a queue. It does not cut a pause short."""
        self._bell.ring()

    def settings_changed(self) -> None:
        """There may be something to hand out, also before a pause is over that was made for what held before."""
        self._bell.ring()
        self._pause_over.ring()

    def add(self, subscription: Subscription) -> None:
        """A subscription joins; it is the next to be served."""
        self._rotation.appendleft(subscription)
        self._bell.ring()

    def remove(self, subscription: Subscription) -> None:
        """A subscription leaves."""
        self._rotation.remove(subscription)
        self._bell.ring()
        if not self._rotation:
            self._pause_over.ring()

    def stop(self) -> None:
        """Hand out nothing more."""
        self._is_stopped = True
        self._bell.ring()
        self._pause_over.ring()

    async def run(self) -> None:
        """Dispatch until the last subscription has left."""
        while self._rotation and not self._is_stopped:
            self._pause_s = 0.0
            if self.turn():
                await trio.lowlevel.checkpoint()
            elif self._pause_s:
                with trio.move_on_after(self._pause_s):
                    await self._pause_over.wait()
            else:
                await self._bell.wait()

    def turn(self) -> bool:
        """Offer each subscription one frame. True if it is worth to come again at once."""
        limits = self._leases.limits(self._group_id)
        if limits.is_paused:
            return False
        limiter = self._limiter(limits.rate) if limits.rate else None
        handed_out = False
        for _ in range(len(self._rotation)):
            subscription = self._rotation[0]
            room = min(self._room(subscription), limits.batch_size, limits.cache_room)
            if limiter is not None and room > 0:
                room = min(room, limiter.allowed(trio.current_time()))
                if room == 0:
                    self._pause_s = limiter.wait_s()
                    break
            if room > 0:
                frame = self._fetch(subscription, room)
                if frame is None:
                    # Not this one's fault: it stays first, so that single messages go round as well.
                    break
                handed_out = True
                if frame:
                    count = int.from_bytes(frame[_COUNT_AT : _COUNT_AT + 4], "little")
                    limits.cache_room -= count
                    if limiter is not None:
                        limiter.spend(count)
                    self._deliver(subscription, frame)
            self._rotation.rotate(-1)
        return handed_out

    def _room(self, subscription: Subscription) -> int:
        """How many messages a subscription can take now."""
        if subscription.outgoing.is_full:
            subscription.outgoing.when_low(self.wake)
            return 0
        return min(subscription.credit - self._holders.outstanding(subscription.holder), subscription.batch)

    def _fetch(self, subscription: Subscription, room: int) -> bytes | None:
        try:
            return self._leases.fetch(
                self._group_id,
                subscription.holder,
                subscription.number,
                room,
                FRAME_TARGET_BYTES,
                self._clock.now_ms(),
            )
        except DiskFull as error:
            _log.error("cannot deliver: the disk is full", group_id=self._group_id, advice=advice_for(error))
            self._pause_s = _RETRY_S
            return None


class Delivery:
    """All dispatchers. Each starts with the first subscription of its group and ends after the last."""

    def __init__(
        self,
        leases: Leases,
        groups: Groups,
        holders: Holders,
        clock: Clock,
        nursery: trio.Nursery,
        deliver: Deliver,
        on_wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`deliver` sends a DELIVER frame to a subscription as soon as its leases are durable; `on_wake` is called when
        a dispatcher may be about to lease something."""
        self._on_wake = on_wake
        self._leases = leases
        self._groups = groups
        self._holders = holders
        self._clock = clock
        self._nursery = nursery
        self._deliver = deliver
        self._dispatchers: dict[int, Dispatcher] = {}
        self._limiters: dict[tuple[int, str], RateLimiter] = {}
        self._rate_owners: dict[int, tuple[int, str]] = {}
        self._by_holder: dict[int, Subscription] = {}
        self._is_stopped = False
        self.subscribers = 0

    def subscribers_of(self, group_id: int) -> int:
        """How many subscriptions a group has."""
        parts = self._groups.parts_of(group_id)
        return max(self._dispatchers[part].subscribers if part in self._dispatchers else 0 for part in parts)

    @property
    def subscriptions(self) -> Iterable[Subscription]:
        """All that are delivered to."""
        return self._by_holder.values()

    def holder_of(self, holder: int) -> Subscription | None:
        """The subscription that holds messages under this number."""
        return self._by_holder.get(holder)

    def add(self, subscription: Subscription) -> None:
        """Start delivering to a subscription."""
        subscription.is_started = True
        self.subscribers += 1
        self._by_holder[subscription.holder] = subscription
        for group_id in subscription.group_ids:
            self._add_to(group_id, subscription)

    def _add_to(self, group_id: int, subscription: Subscription) -> None:
        dispatcher = self._dispatchers.get(group_id)
        if dispatcher is not None:
            dispatcher.add(subscription)
            return
        owner = self._rate_owners[group_id] = self._leases.rate_owner(group_id)
        limiter = partial(self._limiter, *owner)
        dispatcher = Dispatcher(self._leases, self._holders, self._clock, group_id, self._deliver, limiter)
        dispatcher.add(subscription)
        self._dispatchers[group_id] = dispatcher
        if not self._is_stopped:
            self._nursery.start_soon(dispatcher.run, name=f"group-{group_id}")

    def _limiter(self, topic_id: int, group: str, rate: float) -> RateLimiter:
        now_s = trio.current_time()
        limiter = self._limiters.get((topic_id, group))
        if limiter is None:
            limiter = self._limiters[topic_id, group] = RateLimiter(rate, now_s)
        limiter.set_rate(rate, now_s)
        return limiter

    def remove(self, subscription: Subscription) -> None:
        """Stop delivering to a subscription, if it ever began; what it holds is the caller's business."""
        if not subscription.is_started:
            return
        subscription.is_started = False
        self.subscribers -= 1
        self._by_holder.pop(subscription.holder, None)
        for group_id in subscription.group_ids:
            dispatcher = self._dispatchers[group_id]
            dispatcher.remove(subscription)
            if not dispatcher.subscribers:
                del self._dispatchers[group_id]
                self._forget_rate(group_id)

    def _forget_rate(self, group_id: int) -> None:
        """The next bucket begins empty, so that to leave and to come back brings nobody more than the rate."""
        owner = self._rate_owners.pop(group_id)
        if owner not in self._rate_owners.values():
            self._limiters.pop(owner, None)

    def wake(self, group_ids: Iterable[int]) -> None:
        """These groups have new work."""
        for group_id in group_ids:
            self.wake_group(group_id)

    def wake_group(self, group_id: int) -> None:
        """This group has new work or new credit."""
        for part in self._groups.parts_of(group_id):
            dispatcher = self._dispatchers.get(part)
            if dispatcher is not None:
                self._on_wake()
                dispatcher.wake()

    def wake_holder(self, holder: int) -> None:
        """A subscription has new credit, perhaps in several groups."""
        subscription = self._by_holder.get(holder)
        for group_id in subscription.group_ids if subscription is not None else ():
            self.wake_group(group_id)

    def wake_all(self) -> None:
        """Settings have changed."""
        for dispatcher in self._dispatchers.values():
            dispatcher.settings_changed()

    def stop(self) -> None:
        """Hand out nothing more."""
        self._is_stopped = True
        for dispatcher in self._dispatchers.values():
            dispatcher.stop()
