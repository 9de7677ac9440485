"""What a node of a cluster does for its clients in tests, and what must be true of all nodes afterwards."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from tests.support.cluster.replicas import SETTINGS, check_replicas
from tests.support.native.driver import MIB
from tests.support.native.frames import ack_payload, delivered, send
from tickwheel_broker.clock.clock import Clock
from tickwheel_broker.sharedlog.node import Membership, Node, replica_opener
from tickwheel_broker.sharedlog.replicator import Replicator
from tickwheel_broker.sharedlog.shared_log import SharedLog
from timerlog.background import WaitDurable
from timerlog.engine.deliver import NoFrame
from timerlog.errors import BeingHealed
from timerlog.files.disk import FileDisk
from timerlog.purge.drop import DropTicket, FreeTicket
from timerlog.replication.follower import Follower
from timerlog.store import Store

DAY_MS = 90_000_000
"""And a bit: what is acked goes then."""


class ClusterLoad:
    """Sends, deliveries, acks and purges at whichever node owns the log, and a ledger of what was committed."""

    def __init__(self, rng: random.Random, root: Path, clock: Clock) -> None:
        """``root``: below it each node has a directory."""
        self._rng, self._root, self.clock = rng, root, clock
        self.committed: dict[bytes, int] = {}
        self.given: dict[tuple[int, int], int] = {}
        self.acked: set[int] = set()
        self.segments_trimmed = 0
        self.terms: set[int] = set()
        self.serving: int | None = None
        """The node that serves now."""
        self.rests = False
        """While it does, nothing is sent."""
        self._sent = 0

    def node(self, number: int, shared: SharedLog, membership: Membership) -> Node:
        """One that is started, for the first time or again."""
        directory = self._root / f"node-{number}"
        directory.mkdir(exist_ok=True)
        disk = FileDisk(directory)

        def open_store(follower: Follower) -> Store:
            opened = follower.promote()
            return Store.of(opened, disk, SETTINGS, self.clock.now_ms(), follower.healing)

        async def serve(store: Store, replicator: Replicator, until: Callable[[], Awaitable[None]]) -> None:
            self.serving = number
            await self._serve(store, replicator, until)

        open_replica = replica_opener(directory, disk, SETTINGS, self.clock)
        return Node(
            number=number,
            shared=shared,
            membership=membership,
            clock=self.clock,
            open_replica=open_replica,
            open_store=open_store,
            serve=serve,
        )

    async def _serve(
        self, store: Store, replicator: Replicator, until: Callable[[], Awaitable[None]]
    ) -> None:
        self.terms.add(replicator.term)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._work, store, replicator)
            await until()
            nursery.cancel_scope.cancel()
        await self._commit(store, replicator)

    async def _commit(self, store: Store, replicator: Replicator) -> None:
        ticket = store.begin_sync()
        if ticket is None:
            await replicator.settle()
        else:
            await replicator.commit(ticket)
            store.finish_sync(ticket)

    async def _work(self, store: Store, replicator: Replicator) -> None:
        topic = store.topics.open("t", self.clock.now_ms())
        group = store.groups.open(topic, "g", self.clock.now_ms())
        holder = store.holders.acquire(group)
        while True:
            now_ms = self.clock.now_ms()
            self._sent += 1
            key = b"key-%d" % self._sent
            number = store.tables.next_id
            store.produce.ingest(send(topic, [b"x" * 700], keys=[key], times_ms=[now_ms]), now_ms)
            if self._rng.random() < 0.02:
                store.log.roll()
            await self._commit(store, replicator)
            self.committed[key] = number
            moved = self._move(store, now_ms)
            frame: bytes | NoFrame = NoFrame.NOTHING
            with suppress(BeingHealed):
                frame = store.deliver.fetch(group, holder, 1, 8, MIB, now_ms) if moved else frame
            await self._commit(store, replicator)
            if frame:
                self._give(*delivered(frame), replicator.term)
                ids, epochs = delivered(frame)
                store.deliver.ack(ack_payload(group, ids[:4], epochs[:4]), 1, now_ms)
                self.acked.update(ids[:4])
            if self._rng.random() < 0.02:
                await self._purge(store, replicator)
            await trio.sleep(self._rng.random() * 0.05)
            while self.rests:
                await trio.sleep(1)

    async def _purge(self, store: Store, replicator: Replicator) -> None:
        """Stopping anywhere in it is what a crash does, or another owner."""
        job = store.purger.start()
        while not job.is_done:
            match store.purger.step(self.clock.now_ms() + DAY_MS):
                case WaitDurable():
                    await self._commit(store, replicator)
                case DropTicket() | FreeTicket() as ticket:
                    ticket.run()
            await trio.sleep(self._rng.random() * 0.002)
        assert job.error is None or isinstance(job.error, BeingHealed), job.error
        self.segments_trimmed += job.report.segments

    @staticmethod
    def _move(store: Store, now_ms: int) -> bool:
        batch = store.enqueue_get.take(1_000)
        due = store.enqueue_put.link(batch, now_ms) if batch is not None else None
        if due is not None:
            store.dequeue_put_message.move(store.dequeue_get_message.look_up(due, now_ms), now_ms)
        return due is not None

    def _give(self, ids: list[int], epochs: list[int], term: int) -> None:
        for one in zip(ids, epochs, strict=True):
            assert one not in self.given, f"given out twice with one epoch: {one}"
            self.given[one] = term

    def check(self, records: Sequence[tuple[int, bytes]]) -> None:
        """All nodes, and one that begins with what the log has left, have what was committed, and the same state.
        ``records``: those that are left, each with its offset."""
        directories = [self._root / f"node-{number}" for number in range(4)]
        directories[3].mkdir()
        check_replicas(directories, records, SETTINGS, self.clock.now_ms(), self._check_store)

    def _check_store(self, store: Store) -> None:
        for key, message_id in self.committed.items():
            may_be_purged = message_id in self.acked
            assert store.select.find("t", [key.decode()])[0] in (
                (message_id, 0) if may_be_purged else (message_id,)
            ), f"{key!r} is lost"
