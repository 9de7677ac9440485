"""What a node follows and owns, in turns."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from tests.support.clients.waiting import until
from tests.support.cluster.replicas import GENESIS, SETTINGS
from tests.support.native.driver import NOW_MS
from tests.support.native.frames import send
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.sharedlog.node import Node, replica_opener
from tickwheel_broker.sharedlog.replicator import Replicator
from tickwheel_simulation.cluster.assigner import Assigner
from tickwheel_simulation.cluster.partition import Line, Partition
from timerlog.files.disk import FileDisk
from timerlog.replication.follower import Follower
from timerlog.replication.genesis import genesis_record
from timerlog.store import Store


async def test_what_was_appended_behind_the_last_commit_is_committed(
    tmp_path: Path, autojump_clock: object
) -> None:
    """A node that has served gives the log up, and can own it again."""
    shared, clock = Partition(random.Random(1)), TrioClock(NOW_MS)
    shared.put(genesis_record(GENESIS, 0))
    disk, assigner = FileDisk(tmp_path), Assigner()
    ends: list[int] = []

    def open_store(follower: Follower) -> Store:
        return Store.of(follower.promote(), disk, SETTINGS, clock.now_ms())

    async def serve(
        store: Store, replicator: Replicator, wait_not_chosen: Callable[[], Awaitable[None]]
    ) -> None:
        await wait_not_chosen()
        store.log.roll()
        store.produce.ingest(send(store.topics.open("t", NOW_MS), [b"body"]), NOW_MS)
        ends.append(store.log.appended_position)

    async with trio.open_nursery() as nursery:
        opener = replica_opener(tmp_path, disk, SETTINGS, clock)
        node = Node(
            number=1,
            shared=Line(shared, nursery),
            membership=assigner,
            clock=clock,
            open_replica=opener,
            open_store=open_store,
            serve=serve,
        )
        nursery.start_soon(node.run)
        for owned in range(1, 4):
            await until(lambda: assigner.has_joined)
            assigner.choose(True)
            await until(lambda: not assigner.has_joined or node.role.value == "owner")
            assigner.choose(False)
            await until(lambda owned=owned: len(ends) == owned)  # type: ignore[misc]
        nursery.cancel_scope.cancel()
    assert ends == sorted(set(ends))
