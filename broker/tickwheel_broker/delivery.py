"""Delivery: one dispatcher task for each group that has subscribers.

A dispatcher goes round its subscriptions. One that has free credit, and is not behind with reading, gets one
complete DELIVER frame in each round; the engine leases the messages in the same call. A subscriber that is
slow or has no credit is passed over: it delays neither the others nor the producers. Leases that end come
back by way of the wheel.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from tickwheel_broker import logs
from tickwheel_broker.bell import Bell
from tickwheel_broker.clock import Clock
from tickwheel_broker.errors import advice_for
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.net.pulse import Pulse
from tickwheel_broker.rate import RateLimiter
from timerlog.engine.deliver import AsAnswer
from timerlog.engine.deliver import Deliver as Leases
from timerlog.engine.groups import Groups, Holders
from timerlog.errors import BeingHealed, DiskFull

FRAME_TARGET_BYTES = 1 << 20
"""A DELIVER frame is filled up to about this size; one message alone may be larger."""

_RETRY_S = 0.5
_HEAL_S = 0.1
"""So long a group waits until a record is looked at again that is being had from other nodes."""

_COUNT_AT = 20
_TURNS_AT_ONCE = 8
"""So often a request looks for messages in one turn of the loop, when many are passed over."""
_IDLE_LIMITERS = 1_000

_log = logs.get_logger("delivery")


@dataclass(kw_only=True, slots=True, eq=False)
class Subscription:
    """One subscription of one connection."""

    number: int
    """The connection's name for it."""
    group_id: int
    group_ids: Sequence[int]
    """Those that deliver: that of each shard, or `group_id` alone."""
    holder: int
    """The engine's name for it."""
    credit: int
    batch: int
    """Both count messages."""
    outgoing: Outgoing
    pulse: Pulse
    """Of its connection."""
    tells_attempts: bool = False
    """Its client wants to know which attempt each delivery is."""
    is_started: bool = field(default=False, init=False)
    is_leaving: bool = field(default=False, init=False)
    lease_told_ms: int = field(default=0, init=False)
    """Which `ack_wait` the client counts with; 0: it is not told of another one."""
    _held: deque[bytes] = field(default_factory=deque, init=False)

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

    def room(self, holders: Holders) -> int:
        """How many messages it can take now."""
        return 0 if self.pulse.is_missed else min(self.credit - holders.outstanding(self.holder), self.batch)

    def fetch(self, leases: Leases, group_id: int, room: int, now_ms: int) -> bytes | None:
        """What there is for it: see `Leases.fetch`."""
        return leases.fetch(
            group_id,
            self.holder,
            self.number,
            room,
            FRAME_TARGET_BYTES,
            now_ms,
            tells_attempts=self.tells_attempts,
        )


@dataclass(kw_only=True, slots=True, eq=False)
class Fetching:
    """One request for messages. It is given one frame, which is its answer; the leases are nobody's, so that they stay
    when the connection ends."""

    group_id: int
    group_ids: Sequence[int]
    """As of a subscription."""
    asked: AsAnswer
    count: int
    max_bytes: int
    outgoing: Outgoing
    unwritten: deque[Fetching]
    """Of the connection: those that have an answer of which it is not known that it left. In the order of answers."""
    pulse: Pulse
    """Of the connection."""
    holder: int = field(default=0, init=False)
    """While it waits: the engine's name for it, under which nothing is leased."""
    since_ms: int = field(default=0, init=False)
    """When it began to wait."""
    is_started: bool = field(default=False, init=False)
    is_answered: bool = field(default=False, init=False)
    over: trio.Event = field(default_factory=trio.Event, init=False)
    """It waits no longer."""
    leased_until_s: float = field(default=-math.inf, init=False)
    """When the leases of its answer end, on trio's clock."""
    _receives: int = field(default=-1, init=False)
    """Of its pulse, when it was answered."""
    _held: bytes | None = field(default=None, init=False)
    _leaves_at: int | None = field(default=None, init=False)
    _receipts: tuple[bytes, bytes] = field(default=(b"", b""), init=False)

    def room(self, holders: Holders) -> int:
        """How many messages it can take now."""
        return 0 if self.over.is_set() or self.pulse.is_missed else self.count

    def fetch(self, leases: Leases, group_id: int, room: int, now_ms: int) -> bytes | None:
        """What there is for it: see `Leases.fetch`."""
        return leases.fetch(group_id, 0, self.group_id, room, self.max_bytes, now_ms, self.asked)

    def hold(self, frame: bytes) -> None:
        """Its answer waits for its leases to be durable."""
        count = int.from_bytes(frame[_COUNT_AT : _COUNT_AT + 4], "little")
        ids_at, epochs_at = _COUNT_AT + 4, _COUNT_AT + 4 + 24 * count
        self._receipts = frame[ids_at : ids_at + 8 * count], frame[epochs_at : epochs_at + 4 * count]
        self._held, self.is_answered = frame, True
        self._receives = self.pulse.receives
        while self.unwritten and self.unwritten[0].has_left:
            self.unwritten.popleft()
        self.unwritten.append(self)
        self.outgoing.hold(frame)
        self.over.set()

    def let_go(self, frame: bytes) -> None:
        """They are: send it, unless it was taken back meanwhile."""
        if self._held is frame:
            self._held = None
            self.outgoing.let_go(frame)
            self._leaves_at = self.outgoing.put_bytes

    @property
    def has_left(self) -> bool:
        """Whether the operating system has the whole answer: more is not known here."""
        return self._leaves_at is not None and self.outgoing.written_bytes >= self._leaves_at

    @property
    def is_unheard(self) -> bool:
        """Whether nothing came from its client since it was answered."""
        return self._receives == self.pulse.receives

    def take_back(self) -> tuple[list[int], list[int]]:
        """The connection is gone: ids and epochs of what surely never arrived."""
        if self._held is not None:
            self.outgoing.withdraw(self._held)
            self._held = None
        elif self.has_left:
            return [], []
        return self.receipts()

    def receipts(self) -> tuple[list[int], list[int]]:
        """Ids and epochs of its answer."""
        ids, epochs = self._receipts
        return list(memoryview(ids).cast("Q")), list(memoryview(epochs).cast("I"))


Taker = Subscription | Fetching
"""What messages are handed out to."""

Deliver = Callable[[Taker, bytes], None]


@dataclass(slots=True, eq=False)
class Dispatcher:
    """Hands the ready messages of one group to its subscriptions, round robin."""

    _leases: Leases
    """Give messages out."""
    _holders: Holders
    _clock: Clock
    _group_id: int
    _deliver: Deliver
    """Takes each frame."""
    _limiter: Callable[[float], RateLimiter]
    """Gives the bucket, for the rate that holds now, which this group shares with its other shards."""
    _rotation: deque[Taker] = field(default_factory=deque, init=False)
    _bell: Bell = field(default_factory=Bell, init=False)
    _pause_over: Bell = field(default_factory=Bell, init=False)
    _is_stopped: bool = field(default=False, init=False)
    _pause_s: float = field(default=0.0, init=False)

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

    def add(self, taker: Taker) -> None:
        """A subscription joins; it is the next to be served. A request comes after all others: each is a new one."""
        if isinstance(taker, Subscription):
            self._rotation.appendleft(taker)
        else:
            self._rotation.append(taker)
        self._bell.ring()

    def remove(self, taker: Taker) -> None:
        """One leaves."""
        self._rotation.remove(taker)
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
            taker = self._rotation[0]
            room = min(self._room(taker), limits.batch_size, limits.cache_room)
            if limiter is not None and room > 0:
                room = min(room, limiter.allowed(trio.current_time()))
                if room == 0:
                    self._pause_s = limiter.wait_s()
                    break
            if room > 0:
                frame = self._fetch(taker, room)
                if frame is None:
                    # Not this one's fault: it stays first, so that single messages go round as well.
                    break
                handed_out = True
                if frame:
                    count = int.from_bytes(frame[_COUNT_AT : _COUNT_AT + 4], "little")
                    limits.cache_room -= count
                    if limiter is not None:
                        limiter.spend(count)
                    self._deliver(taker, frame)
            self._rotation.rotate(-1)
        return handed_out

    def _room(self, taker: Taker) -> int:
        """How many messages one can take now."""
        if taker.outgoing.is_full:
            taker.outgoing.when_low(self.wake)
            return 0
        return taker.room(self._holders)

    def _fetch(self, taker: Taker, room: int) -> bytes | None:
        try:
            return taker.fetch(self._leases, self._group_id, room, self._clock.now_ms())
        except DiskFull as error:
            _log.error("cannot deliver: the disk is full", group_id=self._group_id, advice=advice_for(error))
            self._pause_s = _RETRY_S
        except BeingHealed as error:
            _log.warning("cannot deliver: a record is damaged", group_id=self._group_id, reason=str(error))
            self._pause_s = _HEAL_S
        return None


@dataclass(slots=True, eq=False)
class Delivery:
    """All dispatchers. Each starts with the first subscription of its group and ends after the last."""

    _leases: Leases
    _groups: Groups
    _holders: Holders
    _clock: Clock
    _nursery: trio.Nursery
    _deliver: Deliver
    """Sends what was given to a subscription or a request as soon as its leases are durable."""
    _on_wake: Callable[[], None] = lambda: None
    """Called when a dispatcher may be about to lease something."""
    _dispatchers: dict[int, Dispatcher] = field(default_factory=dict, init=False)
    _limiters: dict[tuple[int, str], RateLimiter] = field(default_factory=dict, init=False)
    _rate_owners: dict[int, tuple[int, str]] = field(default_factory=dict, init=False)
    _by_holder: dict[int, Subscription] = field(default_factory=dict, init=False)
    _is_stopped: bool = field(default=False, init=False)
    subscribers: int = field(default=0, init=False)

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

    def add(self, taker: Taker) -> None:
        """Start delivering to a subscription, or to a request that waits."""
        taker.is_started = True
        self.subscribers += 1
        if isinstance(taker, Subscription):
            self._by_holder[taker.holder] = taker
        for group_id in taker.group_ids:
            self._add_to(group_id, taker)

    def _add_to(self, group_id: int, taker: Taker) -> None:
        dispatcher = self._dispatchers.get(group_id)
        if dispatcher is not None:
            dispatcher.add(taker)
            return
        dispatcher = self._new_dispatcher(group_id)
        self._rate_owners[group_id] = self._leases.rate_owner(group_id)
        dispatcher.add(taker)
        self._dispatchers[group_id] = dispatcher
        if not self._is_stopped:
            self._nursery.start_soon(dispatcher.run, name=f"group-{group_id}")

    def _new_dispatcher(self, group_id: int) -> Dispatcher:
        limiter = partial(self._limiter, *self._leases.rate_owner(group_id))
        return Dispatcher(self._leases, self._holders, self._clock, group_id, self._deliver, limiter)

    def offer(self, fetching: Fetching) -> None:
        """Give a request what is ready in groups that have nobody who would be given it before."""
        for group_id in fetching.group_ids:
            if group_id in self._dispatchers or self._is_stopped:
                continue
            dispatcher = self._new_dispatcher(group_id)
            dispatcher.add(fetching)
            for _ in range(_TURNS_AT_ONCE):
                if not dispatcher.turn() or fetching.is_answered:
                    break
            if fetching.is_answered:
                return

    def _limiter(self, topic_id: int, group: str, rate: float) -> RateLimiter:
        now_s = trio.current_time()
        limiter = self._limiters.get((topic_id, group))
        if limiter is None:
            self._forget_idle_limiters()
            limiter = self._limiters[topic_id, group] = RateLimiter(rate, now_s)
        limiter.set_rate(rate, now_s)
        return limiter

    def remove(self, taker: Taker) -> None:
        """Stop delivering to a subscription or a request, if it ever began; what it holds is the caller's business."""
        if not taker.is_started:
            return
        taker.is_started = False
        self.subscribers -= 1
        self._by_holder.pop(taker.holder, None)
        for group_id in taker.group_ids:
            dispatcher = self._dispatchers[group_id]
            dispatcher.remove(taker)
            if not dispatcher.subscribers:
                del self._dispatchers[group_id]
                owner = self._rate_owners.pop(group_id)
                if isinstance(taker, Subscription):
                    self._forget_rate(owner)

    def _forget_rate(self, owner: tuple[int, str]) -> None:
        """The next bucket begins empty, so that a subscriber that leaves and comes back gets no more than the rate.
        That of requests stays: each of them would find it empty."""
        if owner not in self._rate_owners.values():
            self._limiters.pop(owner, None)

    def _forget_idle_limiters(self) -> None:
        if len(self._limiters) - len(self._rate_owners) >= _IDLE_LIMITERS:
            owners = set(self._rate_owners.values())
            self._limiters = {owner: one for owner, one in self._limiters.items() if owner in owners}

    def wake(self, group_ids: Iterable[int]) -> None:
        """These groups have new work or new credit."""
        for group_id in group_ids:
            for part in self._groups.parts_of(group_id):
                dispatcher = self._dispatchers.get(part)
                if dispatcher is not None:
                    self._on_wake()
                    dispatcher.wake()

    def wake_holder(self, holder: int) -> None:
        """A subscription has new credit, perhaps in several groups."""
        subscription = self._by_holder.get(holder)
        if subscription is not None:
            self.wake(subscription.group_ids)

    def wake_all(self) -> None:
        """Settings have changed."""
        for dispatcher in self._dispatchers.values():
            dispatcher.settings_changed()

    def stop(self) -> None:
        """Hand out nothing more."""
        self._is_stopped = True
        for dispatcher in self._dispatchers.values():
            dispatcher.stop()
