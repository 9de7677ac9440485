"""Two processes with the number of one node: the one that does not own the log ends, and says why."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
from trio.testing import MockClock

from tests.support.clients.waiting import until
from tests.support.cluster.replicas import GENESIS, SETTINGS
from tests.support.native.driver import NOW_MS
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.errors import first_error
from tickwheel_broker.sharedlog.known_owner import OwnWords
from tickwheel_broker.sharedlog.node import Node, Role, replica_opener
from tickwheel_broker.sharedlog.own_number import NodeNumberTaken
from tickwheel_broker.sharedlog.replicator import BEAT_S, Replicator
from tickwheel_simulation.cluster.assigner import Assigner
from tickwheel_simulation.cluster.partition import Line, Partition
from timerlog.files.disk import FileDisk
from timerlog.replication.follower import Follower
from timerlog.replication.genesis import genesis_record
from timerlog.replication.record import Writer, fence
from timerlog.store import Store


class Process:
    """A node with a number, a directory and a name that is its own."""

    def __init__(self, number: int, name: str, directory: Path, line: Line) -> None:
        directory.mkdir(exist_ok=True)
        disk, clock = FileDisk(directory), TrioClock(NOW_MS)

        def open_store(follower: Follower) -> Store:
            return Store.of(follower.promote(), disk, SETTINGS, clock.now_ms())

        async def serve(_: Store, replicator: Replicator, until: Callable[[], Awaitable[None]]) -> None:
            await replicator.settle()
            self.owned = True
            await until()

        self.line, self.assigner, self.owned = line, Assigner(), False
        self.error: BaseException | None = None
        self.life = trio.CancelScope()
        opener = replica_opener(directory, disk, SETTINGS, clock)
        url = f"tickwheel://{name}:7411"
        self.node = Node(
            number=number,
            shared=line,
            membership=self.assigner,
            clock=clock,
            open_replica=opener,
            open_store=open_store,
            serve=serve,
            own=OwnWords(url, process=f"{name}-{id(self)}"),
        )

    async def run(self) -> None:
        with self.life:
            try:
                await self.node.run()
            except* NodeNumberTaken as group:
                self.error = first_error(group)

    async def wait_ended(self) -> BaseException:
        await until(lambda: self.error is not None)
        assert self.error is not None
        return self.error


class Cluster:
    """A shared log, and processes that are started."""

    def __init__(self, root: Path, nursery: trio.Nursery) -> None:
        self._root, self._nursery = root, nursery
        self.log = Partition(random.Random(1))
        self.log.put(genesis_record(GENESIS, 0))

    def start(self, number: int, name: str) -> Process:
        process = Process(number, name, self._root / name, Line(self.log, self._nursery))
        self._nursery.start_soon(process.run)
        return process


def in_cluster(tmp_path: Path, scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    """Time passes when all wait."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await scenario(Cluster(tmp_path, nursery))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_one_that_follows_ends_and_the_owner_goes_on(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = cluster.start(1, "first"), cluster.start(1, "second")
        other = cluster.start(2, "other")
        await trio.sleep(10 * BEAT_S)
        assert not first.error, "none of them is known yet"
        assert not second.error
        first.assigner.choose(True)
        error = await second.wait_ended()
        assert "Another process is node 1" in str(error)
        assert "tickwheel://first:7411" in str(error)
        late = cluster.start(1, "late")
        await late.wait_ended()
        await trio.sleep(10 * BEAT_S)
        assert (first.node.role, first.error, other.error) == (Role.OWNER, None, None)

    in_cluster(tmp_path, scenario)


def test_of_two_that_are_chosen_at_once_one_is_left(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        processes = [cluster.start(1, "first"), cluster.start(1, "second")]
        for one in processes:
            one.assigner.choose(True)
        await until(lambda: any(one.error for one in processes))
        (left,) = [one for one in processes if not one.error]
        await until(lambda: left.owned and left.node.role is Role.OWNER)
        await trio.sleep(10 * BEAT_S)
        assert (left.node.role, left.error) == (Role.OWNER, None)

    in_cluster(tmp_path, scenario)


def test_an_owner_that_another_process_replaces_ends(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = cluster.start(1, "first")
        first.assigner.choose(True)
        await until(lambda: first.owned)
        first.line.is_cut = True
        second = cluster.start(1, "second")
        second.assigner.choose(True)
        await until(lambda: second.owned)
        first.line.is_cut = False
        await first.wait_ended()
        assert (second.node.role, second.error) == (Role.OWNER, None)

    in_cluster(tmp_path, scenario)


def test_a_node_that_is_started_again_owns_again_and_so_does_a_machine_in_its_place(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        for name in ("first", "first", "replaced"):
            process = cluster.start(1, name)
            process.assigner.choose(True)
            await until(lambda process=process: process.owned)  # type: ignore[misc]
            await trio.sleep(5 * BEAT_S)
            process.assigner.choose(False)
            await until(lambda process=process: process.node.role is Role.FOLLOWER)  # type: ignore[misc]
            process.owned = False
            process.assigner.choose(True)
            await until(lambda process=process: process.owned)  # type: ignore[misc]
            process.life.cancel()
            await trio.sleep(BEAT_S)
            assert process.error is None

    in_cluster(tmp_path, scenario)


def test_what_the_process_before_had_on_its_way_is_no_other_process(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        process = cluster.start(1, "first")
        await until(lambda: process.node.role is Role.FOLLOWER)
        before = Writer(1, 7, 0)
        cluster.log.put(fence(1, 7, NOW_MS, b"tickwheel://first:7411\nprocess=before"))
        cluster.log.put(before.beat(NOW_MS + 400))
        await trio.sleep(10)
        assert process.error is None
        process.assigner.choose(True)
        await until(lambda: process.owned)
        process.assigner.choose(False)
        await until(lambda: process.node.role is Role.FOLLOWER)
        cluster.log.put(fence(1, 20, NOW_MS + 2_000, b"process=another"))
        await process.wait_ended()

    in_cluster(tmp_path, scenario)
