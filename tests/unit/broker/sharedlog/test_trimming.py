"""The owner deletes from the shared log what no node needs any more, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest import mock

import trio

from tests.support.clients.waiting import until
from tests.support.cluster.replicas import GENESIS, SETTINGS, Replicas, work
from tests.support.native.driver import NOW_MS
from tests.support.native.frames import send
from tests.support.stores.purging import LATER_MS
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.sharedlog.node import Node, replica_opener
from tickwheel_broker.sharedlog.replicator import Replicator
from tickwheel_broker.sharedlog.shared_log import SharedLogUnavailable
from tickwheel_broker.sharedlog.trimming import TRIM_S, Trimming
from tickwheel_simulation.cluster.assigner import Assigner
from tickwheel_simulation.cluster.partition import Line, Partition
from timerlog.background import WaitDurable
from timerlog.files.disk import FileDisk
from timerlog.purge.drop import DropTicket, FreeTicket
from timerlog.replication.follower import Follower
from timerlog.replication.genesis import genesis_record
from timerlog.replication.places import Places
from timerlog.store import Store


async def test_it_deletes_up_to_the_first_segment_that_is_left(
    tmp_path: Path, autojump_clock: object
) -> None:
    replicas = Replicas(tmp_path)
    owner = replicas.owner(1, 1)
    store, places = owner.store, owner.places
    async with trio.open_nursery() as nursery:
        shared = Partition(random.Random(1))
        line = Line(shared, nursery)
        nursery.start_soon(Trimming(line, store.log, places, lambda: False).run)
        work(owner, 20)
        await trio.sleep(2 * TRIM_S)
        assert shared.first_offset == 0, "nothing has gone yet"
        owner.purge(LATER_MS)
        shared.records += replicas.partition.records
        expected = owner.trimmed_offset
        with mock.patch.object(Line, "delete_before", side_effect=SharedLogUnavailable("not now")) as delete:
            await trio.sleep(2.5 * TRIM_S)
        assert delete.call_count > 1, "it tries again"
        assert shared.first_offset == 0
        await trio.sleep(2 * TRIM_S)
        assert shared.first_offset == expected
        with mock.patch.object(Line, "delete_before") as delete:
            await trio.sleep(3 * TRIM_S)
        assert not delete.called, "once is enough"
        nursery.cancel_scope.cancel()
    assert expected is not None
    assert replicas.partition.records[expected][40 + 8] == 16, "a BASE record"
    assert all(place.end > store.log.segments[0] for place in (*places.all, *places.starts))
    store.close(clean=False)


async def test_where_a_start_is_not_known_nothing_is_deleted(tmp_path: Path, autojump_clock: object) -> None:
    """A node that has lost its list of places."""
    replicas = Replicas(tmp_path)
    owner = replicas.owner(1, 1)
    work(owner, 20)
    owner.purge(LATER_MS)
    async with trio.open_nursery() as nursery:
        shared = Partition(random.Random(1))
        disk = owner.store.disk
        disk.remove("places")
        segment_bytes = owner.store.log.segment_bytes
        await Trimming(
            Line(shared, nursery), owner.store.log, Places(disk, segment_bytes), lambda: False
        ).trim()
    assert shared.first_offset == 0
    owner.store.close(clean=False)


async def test_a_node_that_was_cut_off_is_made_anew(tmp_path: Path, autojump_clock: object) -> None:
    """What it would read next was deleted meanwhile."""
    async with trio.open_nursery() as nursery:
        shared, clock = Partition(random.Random(1)), TrioClock(NOW_MS)
        shared.put(genesis_record(GENESIS, 0))
        lines = [Line(shared, nursery) for _ in range(2)]
        assigners = [Assigner() for _ in range(2)]
        states: list[str] = []

        def node(number: int) -> Node:
            directory = tmp_path / f"node-{number}"
            directory.mkdir()
            disk = FileDisk(directory)

            def open_store(follower: Follower) -> Store:
                return Store.of(follower.promote(), disk, SETTINGS, clock.now_ms())

            async def serve(
                store: Store, replicator: Replicator, until: Callable[[], Awaitable[None]]
            ) -> None:
                async def commit() -> None:
                    ticket = store.begin_sync()
                    if ticket is not None:
                        await replicator.commit(ticket)
                        store.finish_sync(ticket)

                if number == 0:
                    await _send_and_purge(store, commit)
                await commit()
                states.append(store.look.state_hash())
                await until()

            opener = replica_opener(directory, disk, SETTINGS, clock)
            return Node(
                number=number,
                shared=lines[number],
                membership=assigners[number],
                clock=clock,
                open_replica=opener,
                open_store=open_store,
                serve=serve,
            )

        for number in range(2):
            nursery.start_soon(node(number).run)
        await until(lambda: assigners[1].has_joined)
        lines[1].is_cut = True
        assigners[0].choose(True)
        await until(lambda: shared.first_offset > 10)
        lines[1].is_cut = False
        await trio.sleep(1)
        await until(lambda: assigners[1].has_joined)
        assigners[0].choose(False)
        assigners[1].choose(True)
        await until(lambda: len(states) == 2)
        assert states[0] == states[1]
        nursery.cancel_scope.cancel()


async def _send_and_purge(store: Store, commit: Callable[[], Awaitable[None]]) -> None:
    topic = store.topics.open("t", NOW_MS)
    for number in range(20):
        store.produce.ingest(send(topic, [b"body"] * 20, times_ms=[LATER_MS] * 20), NOW_MS)
        if number % 5 == 4:
            store.log.roll()
        await commit()
    store.change.cancel(range(1, 300), NOW_MS)
    job = store.purger.start()
    while not job.is_done:
        match store.purger.step(NOW_MS):
            case WaitDurable():
                await commit()
            case DropTicket() | FreeTicket() as ticket:
                ticket.run()
    assert job.report.segments > 1
