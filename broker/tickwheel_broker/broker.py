"""The broker's parts and how they hold together, without sockets, signals or threads of its own."""

from __future__ import annotations

import trio

from tickwheel.protocol.bodies.requests import encode_body
from tickwheel.protocol.bodies.settling import Revoke
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel_broker.background.bulk_jobs import BulkJobs
from tickwheel_broker.background.forecasts import Forecasts
from tickwheel_broker.background.housekeeping import Housekeeping
from tickwheel_broker.background.purge import Purging
from tickwheel_broker.background.queries import Queries
from tickwheel_broker.background.readers import Readers
from tickwheel_broker.background.retention import Retention
from tickwheel_broker.background.steps import StepRunner
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.counters import Counters
from tickwheel_broker.delivery.delivery import Delivery
from tickwheel_broker.delivery.probing import Probing
from tickwheel_broker.delivery.subscriptions import Fetches, Subscriptions
from tickwheel_broker.delivery.takers import Taker
from tickwheel_broker.documents.endpoints import Endpoints
from tickwheel_broker.documents.schedules import Schedules
from tickwheel_broker.group_commit import Committer, DiskCommitter, GroupCommit, InPlace, SyncRunner
from tickwheel_broker.lifetime import Lifetime
from tickwheel_broker.net.receive_room import ReceiveRoom
from tickwheel_broker.net.turns import Turns, counted_ns
from tickwheel_broker.security.access import Access
from tickwheel_broker.services import Services
from timerlog.store import Store


class Broker:
    """Wires the parts up to subscriptions, and acts on what a change means to several of them. Make it inside trio;
    `run` works until cancelled. No part is given the broker itself."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        clock: Clock,
        runner: SyncRunner,
        nursery: trio.Nursery,
        access: Access | None = None,
        committer: Committer | None = None,
    ) -> None:
        """`nursery` takes the dispatchers, one task a group. Without `access` every client may do everything. Without
        `committer` the log becomes durable by what `runner` syncs."""
        self.settings = settings
        self.store = store
        self.clock = clock
        self.access = access or Access(clock)
        self.lifetime = Lifetime(clock)
        self.counters = Counters()
        self.commit = GroupCommit(
            store=store,
            committer=committer or DiskCommitter(runner),
            on_durable=lambda: self.services.durable_moved(),
            durability=settings.durability,
            sync_interval_s=settings.sync_interval_ms / 1_000,
            is_about_to_deliver=lambda: self.services.is_about_to_move,
        )
        self.receive_room = ReceiveRoom(settings.max_receive_bytes)
        self.turns = Turns(counted_ns()) if isinstance(runner, InPlace) else Turns()
        self.queries = Queries(
            log=store.log,
            tables=store.tables,
            clock=clock,
            max_frame_bytes=settings.max_frame_bytes,
            tell=self.commit.tell,
            heal=store.select.heal,
            refusal=self.counters.refusal,
        )
        self.forecasts = Forecasts(store.look, clock)
        self._make_delivery(nursery)
        self._make_background(runner)

    def _make_delivery(self, nursery: trio.Nursery) -> None:
        store, clock = self.store, self.clock
        self.delivery = Delivery(
            leases=store.deliver,
            groups=store.groups,
            holders=store.holders,
            clock=clock,
            nursery=nursery,
            deliver=self._deliver,
            on_wake=self.commit.be_patient,
        )
        self.readers = Readers(store.groups, clock)
        self.subscriptions = Subscriptions(
            groups=store.groups,
            holders=store.holders,
            leases=store.deliver,
            settle=store.settle,
            clock=clock,
            commit=self.commit,
            delivery=self.delivery,
            readers=self.readers,
            rest=self.rest,
        )
        self.probing = Probing(store.deliver, store.holders, self.delivery)
        self.fetches = Fetches(
            groups=store.groups,
            holders=store.holders,
            settle=store.settle,
            clock=clock,
            delivery=self.delivery,
            readers=self.readers,
            subscriptions=self.subscriptions,
            probing=self.probing,
        )
        store.holders.stands_still = self.subscriptions.stands_still
        store.holders.fetched_unseen = self.probing.fetched_unseen

    def _make_background(self, runner: SyncRunner) -> None:
        """What goes on beside connections."""
        store, clock, settings = self.store, self.clock, self.settings
        self.services = Services(
            store, clock, max_backlog_messages=settings.max_backlog_messages, publish=self.publish
        )
        self.schedules = Schedules(
            change=store.change,
            select=store.select,
            produce=store.produce,
            commit=store.commit,
            topics=store.topics,
            tables=store.tables,
            clock=clock,
            rest=self.rest,
        )
        self.retention = Retention(
            change=store.change, select=store.select, tables=store.tables, clock=clock, rest=self.rest
        )
        self.purging = Purging(
            purger=store.purger,
            clock=clock,
            services=self.services,
            settings=settings,
            steps=StepRunner(self.commit, runner),
        )
        self.bulk_jobs = BulkJobs(
            adopter=store.adopter,
            clock=clock,
            data_dir=settings.data_dir,
            steps=StepRunner(self.commit, runner),
            rest=self.rest,
        )
        self.endpoints = Endpoints(
            change=store.change, groups=store.groups, tables=store.tables, readers=self.readers, clock=clock
        )
        self.housekeeping = Housekeeping(store, clock, self.readers, self.rest)

    async def run(self) -> None:
        """Group commit, the five services and what goes on beside them. Raises SyncFailed when the disk fails."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.commit.run)
            nursery.start_soon(self.services.run)
            nursery.start_soon(self.housekeeping.run)
            nursery.start_soon(self.retention.run)
            nursery.start_soon(self.schedules.run)
            nursery.start_soon(self.purging.run)
            nursery.start_soon(self.bulk_jobs.run)
            nursery.start_soon(self.bulk_jobs.sweep)
            nursery.start_soon(self.probing.run)

    def publish(self) -> None:
        """Act on what the engine's calls have changed since this was done last: to be called after each that may change
        something, also when it raised."""
        changed = self.store.changes.take()
        if changed.timers_moved:
            self.services.timers_changed()
        self.subscriptions.lapsed(changed.lapsed)
        self.delivery.wake(changed.woken)
        for revoked in changed.revoked:
            subscription = self.delivery.holder_of(revoked.holder)
            if subscription is not None:
                body = Revoke(subscription.number, revoked.ids, revoked.epochs)
                self.commit.tell(subscription.outgoing, encode_frame(FrameType.REVOKE, 0, encode_body(body)))
            self.delivery.wake_holder(revoked.holder)
        if self.store.log.telling_position > self.store.log.durable_position:
            self.commit.mark_dirty()

    async def rest(self) -> None:
        """Between two steps of work that takes long: publish, then let others have their turn."""
        self.publish()
        await trio.lowlevel.checkpoint()

    def drain(self) -> None:
        """Take no more sends and deliver nothing more: the broker is about to stop."""
        self.lifetime.is_draining = True
        self.delivery.stop()
        self.fetches.stop_all()

    def _deliver(self, taker: Taker, frame: bytes) -> None:
        """Messages were given out: they leave when their leases are durable, whose ends are on the wheel now."""
        taker.hold(frame)
        self.commit.when_durable(self.store.log.appended_position, taker.let_go, frame)
        self.probing.watch(taker)
        self.publish()
