"""The broker's parts and how they hold together, without sockets, signals or threads of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

import trio

from tickwheel.protocol.bodies.requests import encode_body
from tickwheel.protocol.bodies.settling import LeaseTime, Revoke
from tickwheel.protocol.frames import HEADER_BYTES, FrameType, encode_frame
from tickwheel.protocol.messages import decode_deliver
from tickwheel_broker import logs
from tickwheel_broker.background import retention
from tickwheel_broker.background.bulk_jobs import Adopting
from tickwheel_broker.background.forecasts import Forecasts
from tickwheel_broker.background.purge import Purging
from tickwheel_broker.background.queries import Queries
from tickwheel_broker.background.schedules import Schedules
from tickwheel_broker.bell import Bell
from tickwheel_broker.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.counters import Counters
from tickwheel_broker.delivery import Delivery, Subscription
from tickwheel_broker.errors import advice_for
from tickwheel_broker.group_commit import GroupCommit, SyncRunner
from tickwheel_broker.monitoring.vitals import Vitals
from tickwheel_broker.net.receive_room import ReceiveRoom
from tickwheel_broker.requests.groups import Readers
from tickwheel_broker.requests.remembered import AtWork
from tickwheel_broker.security.access import Access
from tickwheel_broker.services import Services
from timerlog.errors import DiskFull
from timerlog.store import Store

HOUSEKEEPING_S = 1.0
RELEASE_STEP = 1_024
"""As many messages are given back at once; each may become a dead letter."""

MAX_BULK_AT_ONCE = 4
"""So many requests that change many messages work beside each other, and as many that look at many; the others wait for
their turn."""

_STEP_BACK_MS = 1_000

_log = logs.get_logger("core")


class Broker:
    """Engine, group commit, services and delivery. Make it inside trio; `run` works until cancelled."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        clock: Clock,
        runner: SyncRunner,
        nursery: trio.Nursery,
        access: Access | None = None,
    ) -> None:
        """`nursery` takes the dispatchers, one task a group. Without `access` everybody may do everything."""
        self.settings = settings
        self.store = store
        self.clock = clock
        self.access = access or Access(clock)
        self.version = version("tickwheel")
        self.name = f"tickwheel/{self.version}"
        self.counters = Counters()
        self.held_subscriptions = 0
        self.is_draining = False
        self.clock_set_back = 0
        """How often the wall clock was."""
        self.house_rounds = 0
        """How often the housekeeping was done."""
        self.topics_changed = Bell()
        self.at_work = AtWork()
        self.bulk = trio.CapacityLimiter(MAX_BULK_AT_ONCE)
        self.looking = trio.CapacityLimiter(MAX_BULK_AT_ONCE)
        self._started_s = trio.current_time()
        self.started_ms = clock.now_ms()
        self.commit = GroupCommit(
            store,
            runner,
            on_durable=self._durable_moved,
            durability=settings.durability,
            sync_interval_s=settings.sync_interval_ms / 1_000,
            is_about_to_deliver=lambda: self.services.is_about_to_move,
        )
        self.receive_room = ReceiveRoom(settings.max_receive_bytes)
        self.queries = Queries(
            store, clock, settings.max_frame_bytes, self.commit.tell, self.counters.refusal
        )
        self.forecasts = Forecasts(store, clock)
        self.delivery = Delivery(store, clock, nursery, self._deliver, self.commit.be_patient)
        self.services = Services(
            store,
            clock,
            max_backlog_messages=settings.max_backlog_messages,
            wake_groups=self.delivery.wake,
            mark_dirty=self.commit.mark_dirty,
        )
        self.schedules = Schedules(self)
        self.purging = Purging(self, runner)
        self.adopting = Adopting(self, runner)
        self.readers = Readers(self)
        self.vitals = Vitals(self)

    async def run(self) -> None:
        """Group commit, the five services and the housekeeping. Raises SyncFailed when the disk fails."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.commit.run)
            nursery.start_soon(self.services.run)
            nursery.start_soon(self._keep_house)
            nursery.start_soon(retention.keep, self)
            nursery.start_soon(self.schedules.run)
            nursery.start_soon(self.purging.run)
            nursery.start_soon(self.adopting.run)
            nursery.start_soon(self.adopting.sweep)

    def after_change(self) -> None:
        """Messages were changed: timers may be earlier, and subscribers may hold what is no longer theirs."""
        self.services.timers_changed()
        self.delivery.wake(self.store.take_woken())
        for revoked in self.store.take_revoked():
            subscription = self.delivery.holder_of(revoked.holder)
            if subscription is not None:
                body = Revoke(subscription.number, revoked.ids, revoked.epochs)
                self.commit.tell(subscription.outgoing, encode_frame(FrameType.REVOKE, 0, encode_body(body)))
            self.delivery.wake_holder(revoked.holder)
        self.commit.mark_dirty()

    def give_back(self, subscription: Subscription) -> int:
        """End a subscription and give its messages to others at once; how many there were. When the broker is
        stopping, that they were delivered is no attempt: it is not for the subscriber's sake."""
        self._forget(subscription)
        is_attempt = not self.is_draining
        released = self._take_back(subscription)
        try:
            released += self.store.release_holder(
                subscription.holder, self.clock.now_ms(), is_attempt=is_attempt
            )
        except DiskFull as error:
            self._tell_of_kept(subscription, error)
        self.delivery.wake_group(subscription.group_id)
        self.commit.mark_dirty()
        return released

    def give_back_in_steps(self, subscription: Subscription) -> Callable[[], Awaitable[int]]:
        """Like `give_back`, for so many messages that others should have their turn meanwhile: at once nothing more is
        delivered to the subscription; what is returned gives its messages back."""
        self._forget(subscription)
        holder, released = subscription.holder, self._take_back(subscription)

        async def work() -> int:
            nonlocal released
            try:
                while some := self.store.release_some(
                    holder, self.clock.now_ms(), RELEASE_STEP, is_attempt=not self.is_draining
                ):
                    released += some
                    self.delivery.wake_group(subscription.group_id)
                    self.commit.mark_dirty()
                    await trio.lowlevel.checkpoint()
            except DiskFull as error:
                self._tell_of_kept(subscription, error)
            finally:
                self.store.drop_holder(holder)
            return released

        return work

    def _tell_of_kept(self, subscription: Subscription, error: DiskFull) -> None:
        _log.error(
            "messages of a subscriber that left stay leased: the disk is full",
            group_id=subscription.group_id,
            advice=advice_for(error),
        )

    def lose(self, subscription: Subscription) -> None:
        """The connection is gone: what the subscriber holds stays leased, because it may still be at work. What was to
        be sent to it, and waited for the disk, goes to others at once."""
        if self.is_draining:
            self.give_back(subscription)
            return
        self._forget(subscription)
        if self._take_back(subscription):
            self.delivery.wake_group(subscription.group_id)
            self.commit.mark_dirty()
        self.store.drop_holder(subscription.holder)

    def return_unseen(self, subscription: Subscription, ids: Sequence[int], epochs: Sequence[int]) -> int:
        """Deliver nothing more to a subscription that is about to leave, and take back what it has not looked at; how
        many messages."""
        subscription.is_leaving = True
        self.delivery.remove(subscription)
        returned = self._take_back(subscription)
        if ids:
            returned += self.store.return_unseen(
                subscription.group_id, subscription.holder, ids, epochs, self.clock.now_ms()
            )
        if returned:
            self.delivery.wake_group(subscription.group_id)
            self.commit.mark_dirty()
        return returned

    def tell_of_leases(self, subscriptions: Iterable[Subscription]) -> None:
        """Other settings may hold: a client that renews leases must know how long they last before it is given one."""
        for subscription in subscriptions:
            ack_wait_ms = self.store.ack_wait_ms(subscription.group_id)
            if subscription.lease_told_ms not in (0, ack_wait_ms):
                subscription.lease_told_ms = ack_wait_ms
                body = LeaseTime(subscription.number, ack_wait_ms)
                self.commit.tell(subscription.outgoing, encode_frame(FrameType.LEASE, 0, encode_body(body)))

    def _take_back(self, subscription: Subscription) -> int:
        """What waits for the disk to be sent to a subscription that ends never leaves: it is no attempt, and goes to
        others. How many messages."""
        returned = 0
        for frame in subscription.take_held():
            delivery = decode_deliver(frame[HEADER_BYTES:])
            try:
                returned += self.store.return_unseen(
                    subscription.group_id,
                    subscription.holder,
                    delivery.ids,
                    delivery.epochs,
                    self.clock.now_ms(),
                )
            except DiskFull as error:
                self._tell_of_kept(subscription, error)
        return returned

    def stats(self) -> dict[str, Any]:
        """See `tickwheel.stats.Stats`."""
        return self.store.stats(self.clock.now_ms()) | {
            "connections": self.counters.connections,
            "subscribers": self.delivery.subscribers,
            "uptime_ms": round((trio.current_time() - self._started_s) * 1_000),
            "version": self.version,
            "refusals": dict(self.counters.refusals),
        }

    def topic_entry(self, topic_id: int) -> dict[str, Any]:
        """See `tickwheel.stats.TopicStats`."""
        entry = self.store.topic_entry(topic_id)
        for group in entry["groups"]:
            group["subscribers"] = self.delivery.subscribers_of(group["group_id"])
        return entry

    def _forget(self, subscription: Subscription) -> None:
        self.delivery.remove(subscription)
        self.readers.left(subscription.group_id)
        self.held_subscriptions -= 1

    def _deliver(self, subscription: Subscription, frame: bytes) -> None:
        """Messages were given out: they leave when their leases are durable, whose ends are on the wheel now."""
        subscription.hold(frame)
        self.commit.when_durable(self.store.appended_position, subscription.let_go, frame)
        self.services.timers_changed()

    def _durable_moved(self) -> None:
        self.services.durable_moved()

    async def _keep_house(self) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING_S)
            now_ms = self.clock.now_ms()
            # It may have been ahead between two looks only: then the wheel has turned that far, and waits there.
            ahead_ms = self.store.wheel.tick_ms - now_ms
            back_ms = max(self.clock.take_step_back_ms(), ahead_ms)
            if back_ms > _STEP_BACK_MS:
                _log.warning("the wall clock was set back", by_ms=back_ms)
                self.clock_set_back += 1
                self._turn_back(now_ms, back_ms)
            self.readers.keep(now_ms)
            self.store.check_directory()
            self.store.housekeeping(now_ms)
            self._tell_of_unburied()
            self.house_rounds += 1

    def _turn_back(self, now_ms: int, back_ms: int) -> None:
        try:
            moved = self.store.clock_went_back(now_ms, back_ms)
        except DiskFull as error:
            _log.error("leases given out meanwhile last too long: the disk is full", advice=advice_for(error))
        else:
            if moved:
                _log.warning("leases and waits from before were turned back as well", messages=moved)
        self.services.timers_changed()

    def _tell_of_unburied(self) -> None:
        """Once a second at most for each group and reason: the same may happen to many messages again and again."""
        for unburied in self.store.take_unburied():
            _log.error(
                "messages cannot become dead letters, and are delivered again",
                topic=unburied.topic,
                group=unburied.group,
                messages=unburied.messages,
                code=unburied.error.code,
                reason=str(unburied.error),
                advice=advice_for(unburied.error),
            )
