"""The broker's parts and how they hold together, without sockets, signals or threads of its own."""

from __future__ import annotations

import trio

from tickwheel.protocol.bodies.requests import encode_body
from tickwheel.protocol.bodies.settling import Revoke
from tickwheel.protocol.frames import FrameType, encode_frame
from tickwheel_broker.background.bulk_jobs import BulkJobs
from tickwheel_broker.background.forecasts import Forecasts
from tickwheel_broker.background.housekeeping import Housekeeping
from tickwheel_broker.background.probing import Probing
from tickwheel_broker.background.purge import Purging
from tickwheel_broker.background.queries import Queries
from tickwheel_broker.background.readers import Readers
from tickwheel_broker.background.retention import Retention
from tickwheel_broker.background.schedules import Schedules
from tickwheel_broker.background.steps import StepRunner
from tickwheel_broker.clock import Clock
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.counters import Counters
from tickwheel_broker.delivery import Delivery, Taker
from tickwheel_broker.documents.endpoints import Endpoints
from tickwheel_broker.group_commit import Committer, DiskCommitter, GroupCommit, InPlace, SyncRunner
from tickwheel_broker.lifetime import Lifetime
from tickwheel_broker.net.receive_room import ReceiveRoom
from tickwheel_broker.net.turns import Turns, counted_ns
from tickwheel_broker.security.access import Access
from tickwheel_broker.services import Services
from tickwheel_broker.subscriptions import Fetches, Subscriptions
from timerlog.store import Store


class Broker:
    """Wires the parts up to subscriptions, and acts on what a change means to several of them. Make it inside trio;
    `run` works until cancelled. No part is given the broker itself."""

    def __init__(
        self,
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
            store,
            committer or DiskCommitter(runner),
            on_durable=lambda: self.services.durable_moved(),
            durability=settings.durability,
            sync_interval_s=settings.sync_interval_ms / 1_000,
            is_about_to_deliver=lambda: self.services.is_about_to_move,
        )
        self.receive_room = ReceiveRoom(settings.max_receive_bytes)
        self.turns = Turns(counted_ns()) if isinstance(runner, InPlace) else Turns()
        self.queries = Queries(
            store.log, store.tables, clock, settings.max_frame_bytes, self.commit.tell, store.select.heal,
            self.counters.refusal,
        )  # fmt: skip
        self.forecasts = Forecasts(store.look, clock)
        self.delivery = Delivery(
            store.deliver, store.groups, store.holders, clock, nursery, self._deliver, self.commit.be_patient
        )
        self.services = Services(
            store, clock, max_backlog_messages=settings.max_backlog_messages, publish=self.publish
        )
        self.schedules = Schedules(
            store.change, store.select, store.produce, store.commit, store.topics, store.tables, clock,
            self.publish,
        )  # fmt: skip
        self.retention = Retention(store.change, store.select, store.tables, clock, self.publish)
        self.purging = Purging(store.purger, clock, self.services, settings, StepRunner(self.commit, runner))
        self.bulk_jobs = BulkJobs(
            store.adopter, clock, settings.data_dir, StepRunner(self.commit, runner), self.publish
        )
        self.readers = Readers(store.groups, clock, self.publish)
        self.endpoints = Endpoints(
            store.change, store.groups, store.tables, self.readers, clock, self.publish
        )
        self.housekeeping = Housekeeping(store, clock, self.readers, self.publish)
        self.subscriptions = Subscriptions(
            store.groups, store.holders, store.deliver, store.settle, clock, self.commit, self.delivery,
            self.readers, self.publish,
        )  # fmt: skip
        self.probing = Probing(store.deliver, store.holders, self.delivery)
        self.fetches = Fetches(
            store.groups, store.holders, store.settle, clock, self.delivery, self.readers, self.subscriptions,
            self.probing, self.publish,
        )  # fmt: skip
        store.holders.stands_still = self.subscriptions.stands_still
        store.holders.fetched_unseen = self.probing.fetched_unseen

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
        self.commit.mark_dirty()

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
