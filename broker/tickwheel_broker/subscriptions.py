"""How subscriptions begin and end: who counts as a reader of a group, and what becomes of the messages of one that
leaves."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import trio

from tickwheel.protocol.bodies.requests import encode_body
from tickwheel.protocol.bodies.settling import LeaseTime
from tickwheel.protocol.frames import HEADER_BYTES, FrameType, encode_frame
from tickwheel.protocol.messages import decode_deliver
from tickwheel_broker import logs
from tickwheel_broker.background.readers import Readers
from tickwheel_broker.bell import Bell
from tickwheel_broker.clock import Clock
from tickwheel_broker.delivery import Delivery, Fetching, Subscription, Taker
from tickwheel_broker.errors import advice_for
from tickwheel_broker.group_commit import GroupCommit
from tickwheel_broker.net.outgoing import Outgoing
from tickwheel_broker.net.pulse import ASKED_AT, Pulse
from timerlog.engine.deliver import Deliver
from timerlog.engine.groups import Groups, Holders
from timerlog.engine.settle import Settle
from timerlog.errors import DiskFull, UnknownGroup
from timerlog.layout import UInt32Array, UInt64Array

RELEASE_STEP = 1_024
"""As many messages are given back at once; each may become a dead letter."""

_LOOKED_EVERY_S: Final = 1.0
_LOOKED_AFTER_S: Final = 0.02
_LOOKED_AT_ONCE: Final = 256
_RETURNS_S: Final = 0.2
_ENDED_S: Final = 10.0
"""So long after the end of its lease a fetch is remembered: a busy broker ends leases late."""

_log = logs.get_logger("core")


@dataclass(slots=True, eq=False)
class Subscriptions:
    """The subscriptions of all connections, from SUBSCRIBE to their end."""

    _groups: Groups
    _holders: Holders
    _leases: Deliver
    _settle: Settle
    _clock: Clock
    _commit: GroupCommit
    _delivery: Delivery
    _readers: Readers
    _publish: Callable[[], None]
    """Tells of what the engine has changed."""
    held: int = field(default=0, init=False)
    """How many there are, also those that are not delivered to yet."""
    _lost_still: set[int] = field(default_factory=set, init=False)
    """Numbers of subscribers that stood still when their connections were lost, until others have them."""

    def begin(
        self,
        *,
        number: int,
        group_id: int,
        credit: int,
        batch: int,
        outgoing: Outgoing,
        pulse: Pulse,
        tells_attempts: bool = False,
    ) -> Subscription:
        """There is one more; it is not delivered to before `start`."""
        subscription = Subscription(
            number=number,
            group_id=group_id,
            group_ids=self._groups.parts_of(group_id),
            holder=self._acquire(group_id),
            credit=credit,
            batch=batch,
            outgoing=outgoing,
            pulse=pulse,
            tells_attempts=tells_attempts,
        )
        self.held += 1
        self._readers.joined(group_id)
        return subscription

    def _acquire(self, group_id: int) -> int:
        holder = self._holders.acquire(group_id)
        self._lost_still.discard(holder)
        return holder

    def start(self, subscription: Subscription) -> None:
        """Its client knows of it: deliver to it, unless it is about to leave."""
        if not subscription.is_leaving:
            self.tell_of_leases([subscription])
            self._delivery.add(subscription)

    def ack_wait_ms(self, group_id: int) -> int:
        """For how long a message of a group is leased."""
        return self._leases.ack_wait_ms(group_id)

    def lapsed(self, holders: Iterable[int]) -> None:
        """Leases under these numbers have ended: see `Pulse`."""
        for holder in holders:
            subscription = self._delivery.holder_of(holder)
            if subscription is not None:
                subscription.pulse.lapsed()

    def stands_still(self, holder: int) -> bool:
        """Whether nobody can have seen what is leased under a number, and was not, as its subscriber stands still."""
        subscription = self._delivery.holder_of(holder)
        if subscription is None:
            return holder in self._lost_still
        return subscription.pulse.stands_still(self.ack_wait_ms(subscription.group_id) / 1_000)

    def outstanding(self, subscription: Subscription) -> int:
        """How many messages a subscription holds."""
        return self._holders.outstanding(subscription.holder)

    def give_back(self, subscription: Subscription) -> int:
        """End a subscription and give its messages to others at once; how many there were."""
        self._forget(subscription)
        released = self._take_back(subscription)
        try:
            released += self._settle.release_holder(subscription.holder, self._clock.now_ms())
        except DiskFull as error:
            _tell_of_kept(subscription, error)
        self._publish()
        return released

    def give_back_in_steps(self, subscription: Subscription) -> Callable[[], Awaitable[int]]:
        """Like `give_back`, for so many messages that others should have their turn meanwhile: at once nothing more is
        delivered to the subscription; what is returned gives its messages back."""
        self._forget(subscription)
        holder, released = subscription.holder, self._take_back(subscription)

        async def work() -> int:
            nonlocal released
            try:
                while some := self._settle.release_some(holder, self._clock.now_ms(), RELEASE_STEP):
                    released += some
                    self._publish()
                    await trio.lowlevel.checkpoint()
            except DiskFull as error:
                _tell_of_kept(subscription, error)
            finally:
                self._holders.drop(holder)
            return released

        return work

    def lose(self, subscription: Subscription) -> None:
        """The connection is gone, also because the broker stops: what the subscriber holds stays leased, because it may
        still be at work. What was to be sent to it, and waited for the disk, goes to others at once."""
        is_still = self.stands_still(subscription.holder)
        self._forget(subscription)
        if self._take_back(subscription):
            self._publish()
        if is_still:
            self._lost_still.add(subscription.holder)
        self._holders.drop(subscription.holder)

    def return_unseen(self, subscription: Subscription, ids: Sequence[int], epochs: Sequence[int]) -> int:
        """Deliver nothing more to a subscription that is about to leave, and take back what it has not looked at; how
        many messages."""
        subscription.is_leaving = True
        self._delivery.remove(subscription)
        returned = self._take_back(subscription)
        if ids:
            returned += self._settle.return_unseen(
                subscription.group_id, subscription.holder, ids, epochs, self._clock.now_ms()
            )
        if returned:
            self._publish()
        return returned

    def tell_of_leases(self, subscriptions: Iterable[Subscription]) -> None:
        """Other settings may hold: a client that renews leases must know how long they last before it is given one."""
        for subscription in subscriptions:
            ack_wait_ms = self._leases.ack_wait_ms(subscription.group_id)
            if subscription.lease_told_ms not in (0, ack_wait_ms):
                subscription.lease_told_ms = ack_wait_ms
                body = LeaseTime(subscription.number, ack_wait_ms)
                self._commit.tell(subscription.outgoing, encode_frame(FrameType.LEASE, 0, encode_body(body)))

    def _take_back(self, subscription: Subscription) -> int:
        """What waits for the disk to be sent to a subscription that ends never leaves: it is no attempt, and goes to
        others. How many messages."""
        returned = 0
        for frame in subscription.take_held():
            delivery = decode_deliver(frame[HEADER_BYTES:])
            try:
                returned += self._settle.return_unseen(
                    subscription.group_id,
                    subscription.holder,
                    delivery.ids,
                    delivery.epochs,
                    self._clock.now_ms(),
                )
            except DiskFull as error:
                _tell_of_kept(subscription, error)
        return returned

    def _forget(self, subscription: Subscription) -> None:
        self._delivery.remove(subscription)
        self._readers.left(subscription.group_id)
        self.held -= 1


@dataclass(slots=True, eq=False)
class Probing:
    """Asks who holds messages, or waits for some, for a sign of life, once a part of a lease has passed without a word.
    While nobody does, it costs nothing."""

    _leases: Deliver
    _holders: Holders
    _delivery: Delivery
    _watched: dict[Taker, None] = field(default_factory=dict, init=False)
    _still: list[Fetching] = field(default_factory=list, init=False)
    """Answered fetches whose clients stood still when they were looked at."""
    _returning: deque[tuple[float, Pulse, Sequence[Taker]]] = field(default_factory=deque, init=False)
    """Who stood still and is given messages again at a time, on trio's clock."""
    _bell: Bell = field(default_factory=Bell, init=False)
    _next_s: float = field(default=math.inf, init=False)
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

    def readmit(self, pulse: Pulse, takers: Sequence[Taker]) -> None:
        """A client was heard again: give these what they were not given meanwhile. Who stood still has a moment to say
        what it has done: an ack counts until its message is given out again."""
        if not pulse.is_missed:
            self._wake(takers)
        else:
            self._returning.append((trio.current_time() + _RETURNS_S, pulse, takers))
            self._bell.ring()

    def _wake(self, takers: Sequence[Taker]) -> None:
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
                self._wake(takers)
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


@dataclass(slots=True, eq=False)
class Fetches:
    """The requests for messages of all connections, from FETCH to their end. While one waits it counts as a
    subscription."""

    _groups: Groups
    _holders: Holders
    _settle: Settle
    _clock: Clock
    _delivery: Delivery
    _readers: Readers
    _subscriptions: Subscriptions
    _probing: Probing
    _publish: Callable[[], None]
    """Tells of what the engine has changed."""
    _waiting: dict[Fetching, None] = field(default_factory=dict, init=False)

    def offer(self, fetching: Fetching) -> None:
        """Give it what is ready and nobody else waits for."""
        self._groups.read_once(fetching.group_id, self._clock.now_ms())
        self._delivery.offer(fetching)

    def begin_to_wait(self, fetching: Fetching) -> None:
        """Give it what gets ready, when it is its turn, until `stop`. Raises TooManySubscriptions."""
        fetching.holder = self._holders.acquire(fetching.group_id)
        fetching.since_ms = self._clock.now_ms()
        self._waiting[fetching] = None
        self._subscriptions.held += 1
        self._readers.joined(fetching.group_id)
        self._delivery.add(fetching)
        self._probing.watch(fetching)

    def is_waiting(self, group_id: int) -> bool:
        """Whether a request waits for messages of a group."""
        return any(fetching.group_id == group_id for fetching in self._waiting)

    def stop(self, fetching: Fetching) -> None:
        """It waits no longer; what it was given meanwhile is its own."""
        fetching.over.set()
        if fetching not in self._waiting:
            return
        del self._waiting[fetching]
        self._subscriptions.held -= 1
        self._delivery.remove(fetching)
        self._readers.left(fetching.group_id)
        self._holders.drop(fetching.holder)

    def stop_all(self) -> None:
        """Nothing more is handed out: all that wait are answered without messages."""
        for fetching in list(self._waiting):
            self.stop(fetching)

    def lose(self, fetching: Fetching) -> None:
        """The connection is gone: what surely never arrived goes to others at once. The rest stays leased."""
        ids, epochs = fetching.take_back()
        if not ids:
            return
        try:
            self._settle.give_back(fetching.group_id, ids, epochs, self._clock.now_ms())
        except UnknownGroup:
            return  # it was deleted meanwhile
        except DiskFull as error:
            _tell_of_kept(fetching, error)
        self._publish()


def _tell_of_kept(taker: Taker, error: DiskFull) -> None:
    _log.error(
        "messages of a subscriber that left stay leased: the disk is full",
        group_id=taker.group_id,
        advice=advice_for(error),
    )
