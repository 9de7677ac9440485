"""A node that is chosen and cannot own the log lets another one be chosen, and does not come back at once."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.support.cluster.replicas import GENESIS, SETTINGS
from tests.support.native.driver import NOW_MS
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.node.candidacy import Candidacy
from tickwheel_broker.node.hold_off import HELD_OFF_TIMEOUTS, SILENT_TIMEOUTS, HoldOff
from tickwheel_broker.sharedlog.known_owner import Silence
from tickwheel_broker.sharedlog.node import Node, Role, replica_opener
from tickwheel_broker.sharedlog.replicator import Replicator
from tickwheel_broker.sharedlog.standing import Standing
from tickwheel_simulation.cluster.group import Group
from tickwheel_simulation.cluster.partition import Line, Partition
from timerlog.files.disk import FileDisk
from timerlog.replication.follower import Follower
from timerlog.replication.genesis import genesis_record
from timerlog.store import Store

TIMEOUT_S = 6.0
"""`cluster_timeout`."""

BOUND_S = 2 * TIMEOUT_S
"""Far longer than another node takes to be chosen and to serve."""


class Process:
    """A node, and what a process has around it."""

    def __init__(self, number: int, directory: Path, line: Line, group: Group) -> None:
        directory.mkdir(exist_ok=True)
        disk, clock = FileDisk(directory), TrioClock(NOW_MS)

        def open_store(follower: Follower) -> Store:
            return Store.of(follower.promote(), disk, SETTINGS, clock.now_ms())

        async def serve(_: Store, replicator: Replicator, until: Callable[[], Awaitable[None]]) -> None:
            self.standing.replicator = replicator
            self.began.append(trio.current_time())
            try:
                await replicator.settle()
                await until()
            finally:
                self.standing.replicator = None

        self.number, self.line, self.standing = number, line, Standing("c", number)
        self.seat = group.seat()
        self.candidacy = Candidacy(self.seat, self.standing)
        self.began: list[float] = []
        """When it began to serve."""
        self.node = Node(
            number=number,
            shared=line,
            membership=self.candidacy,
            clock=clock,
            open_replica=replica_opener(directory, disk, SETTINGS, clock),
            open_store=open_store,
            serve=serve,
            owner_timeout_s=TIMEOUT_S / 2,
        )
        silence = Silence(self.node.known_owner, lambda: self.standing.listens)
        self.hold_off = HoldOff(self.candidacy, self.standing, silence, TIMEOUT_S)
        self.node.on_given_up = self.hold_off.begin

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.hold_off.run)
            await self.node.run()

    @property
    def serves(self) -> bool:
        return self.standing.replicator is not None and self.standing.replicator.is_current


Scenario = Callable[[list[Process], Partition], Awaitable[None]]


def run(tmp_path: Path, scenario: Scenario, nodes: int = 3) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            log, group = Partition(random.Random(1)), Group(TIMEOUT_S)
            log.put(genesis_record(GENESIS, 0))
            found = [
                Process(number, tmp_path / f"{number}", Line(log, nursery), group)
                for number in range(1, nodes + 1)
            ]
            nursery.start_soon(group.run)
            for one in found:
                nursery.start_soon(one.run)
                await wait(lambda one=one: one.seat.has_joined)  # type: ignore[misc]
            await wait(lambda: found[0].serves)
            await scenario(found, log)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def wait(is_there: Callable[[], bool], bound_s: float = BOUND_S) -> None:
    with trio.fail_after(bound_s):
        while not is_there():
            await trio.sleep(0.1)


def cut(one: Process) -> None:
    one.line.is_cut = True


def lose_requests(one: Process) -> None:
    one.line.loses_requests = lambda: True


def lose_answers(one: Process) -> None:
    one.line.loses_answers = lambda: True


def refuse(one: Process) -> None:
    one.line.refuses_appends = True


@pytest.mark.promise("in-a-cluster")
@pytest.mark.parametrize("harm", [cut, lose_requests, lose_answers, refuse])
def test_an_owner_that_is_not_confirmed_is_replaced_while_it_lasts(
    tmp_path: Path, harm: Callable[[Process], None]
) -> None:
    async def scenario(nodes: list[Process], log: Partition) -> None:
        one, two, three = nodes
        harm(one)
        await wait(lambda: two.serves or three.serves)
        await trio.sleep(4 * TIMEOUT_S)  # and it does not come back
        assert two.serves or three.serves
        assert (len(one.began), len(two.began) + len(three.began)) == (1, 1)
        assert not one.seat.has_joined

    run(tmp_path, scenario)


def test_one_that_is_chosen_and_cannot_append_is_passed_over(tmp_path: Path) -> None:
    """It hears all that others write, and is the next in the group."""

    async def scenario(nodes: list[Process], log: Partition) -> None:
        one, two, three = nodes
        refuse(two)
        one.seat.left()
        await wait(lambda: three.serves)
        assert two.began == []
        assert two.standing.gave_up_s is not None
        assert (two.node.role, two.standing.has_joined) == (Role.FOLLOWER, False)

    run(tmp_path, scenario)


def test_one_that_cannot_read_its_own_fence_is_passed_over(tmp_path: Path) -> None:
    async def scenario(nodes: list[Process], log: Partition) -> None:
        one, two, three = nodes
        lose_answers(two)
        one.candidacy.left()
        cut(one)
        await wait(lambda: three.serves, BOUND_S + TIMEOUT_S)
        assert two.began == []

    run(tmp_path, scenario)


def test_where_no_other_one_may_be_chosen_it_goes_on(tmp_path: Path) -> None:
    async def scenario(nodes: list[Process], log: Partition) -> None:
        (one,) = nodes
        refuse(one)
        await trio.sleep(10 * TIMEOUT_S)
        assert (one.seat.has_joined, one.standing.gave_up_s) == (True, None)
        one.line.refuses_appends = False
        await wait(lambda: one.serves, TIMEOUT_S)
        assert len(one.began) == 1

    run(tmp_path, scenario, nodes=1)


def test_who_comes_back_with_all_the_others_need_not_be_replaced(tmp_path: Path) -> None:
    """Kafka itself was away for long: the group as well."""

    async def scenario(nodes: list[Process], log: Partition) -> None:
        for one in nodes:
            cut(one)
            one.seat.is_heard = one.seat.hears = lambda: False
        await trio.sleep(TIMEOUT_S - 1)
        for one in nodes:
            one.seat.is_heard = one.seat.hears = lambda: True
        await trio.sleep(2)
        for one in nodes:
            one.line.is_cut = False
        await wait(lambda: nodes[0].serves, TIMEOUT_S)
        assert [len(one.began) for one in nodes] == [1, 0, 0]

    run(tmp_path, scenario)


def test_it_stands_again_after_a_while_and_takes_nothing_away(tmp_path: Path) -> None:
    async def scenario(nodes: list[Process], log: Partition) -> None:
        one, two = nodes
        refuse(one)
        await wait(lambda: two.serves)
        one.line.refuses_appends = False
        await wait(lambda: one.seat.has_joined, (HELD_OFF_TIMEOUTS + 1) * TIMEOUT_S)
        assert one.standing.gave_up_s is None
        await trio.sleep(TIMEOUT_S)
        assert (two.serves, len(one.began), len(two.began)) == (True, 1, 1)

    run(tmp_path, scenario, nodes=2)


def test_it_stands_again_soon_where_no_owner_is_heard(tmp_path: Path) -> None:
    async def scenario(nodes: list[Process], log: Partition) -> None:
        one, two = nodes
        refuse(one)
        await wait(lambda: two.serves)
        one.line.refuses_appends = False
        two.line.is_cut, two.seat.is_heard = True, lambda: False
        await wait(lambda: one.serves, (SILENT_TIMEOUTS + 2) * TIMEOUT_S)

    run(tmp_path, scenario, nodes=2)


def test_where_none_can_append_each_tries_in_turn(tmp_path: Path) -> None:
    async def scenario(nodes: list[Process], log: Partition) -> None:
        for one in nodes:
            refuse(one)
        await trio.sleep(10 * TIMEOUT_S)
        for one in nodes[1:]:
            one.line.refuses_appends = False
        await wait(lambda: any(one.serves for one in nodes), 4 * TIMEOUT_S)

    run(tmp_path, scenario)
