"""All dispatchers: which group has subscribers, which subscription holds what, and the rates of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import trio

from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.delivery.dispatcher import Deliver, Dispatcher
from tickwheel_broker.delivery.rate import RateLimiter
from tickwheel_broker.delivery.takers import Fetching, Subscription, Taker
from timerlog.engine.deliver import Deliver as Leases
from timerlog.engine.groups import Groups, Holders

_TURNS_AT_ONCE = 8
"""How often a request looks for messages in one turn of the loop, when many are passed over."""
_IDLE_LIMITERS = 1_000


class Delivery:
    """All dispatchers. Each starts with the first subscription of its group and ends after the last."""

    def __init__(
        self,
        *,
        leases: Leases,
        groups: Groups,
        holders: Holders,
        clock: Clock,
        nursery: trio.Nursery,
        deliver: Deliver,
        on_wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._leases = leases
        self._groups = groups
        self._holders = holders
        self._clock = clock
        self._nursery = nursery
        self._deliver = deliver
        """Sends what was given to a subscription or a request as soon as its leases are durable."""
        self._on_wake = on_wake
        """Called when a dispatcher may be about to lease something."""
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
        return Dispatcher(
            leases=self._leases,
            holders=self._holders,
            clock=self._clock,
            group_id=group_id,
            deliver=self._deliver,
            limiter=limiter,
        )

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
