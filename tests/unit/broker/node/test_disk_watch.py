"""When a node without room on its disk stands to own the log, and when it does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio
from trio.testing import MockClock

from tests.unit.broker.sharedlog.test_clock_skew import Group
from tickwheel_broker.background.disk_room import Room
from tickwheel_broker.node.candidacy import Candidacy
from tickwheel_broker.node.disk_watch import FULL_LOOK_S, FULL_S, LOOK_S, DiskWatch
from tickwheel_broker.sharedlog.known_owner import KnownOwner, Silence
from tickwheel_broker.sharedlog.standing import Standing
from timerlog.replication.rule import Said

PATIENCE_S = 30.0
KEPT_BYTES = 1_000
NO_TIME_S = 0.01


@dataclass
class Node:
    """What stands around the watch of one."""

    group: Group = field(default_factory=Group)
    standing: Standing = field(default_factory=lambda: Standing("c", 1))
    known_owner: KnownOwner = field(default_factory=KnownOwner)
    free_bytes: int = 10_000
    refused: int = 0
    has_others: bool = True

    def __post_init__(self) -> None:
        self.candidacy = Candidacy(self.group, self.standing)
        self.candidacy.joined()

        self.group.others = lambda: self.has_others

        async def look() -> Room:
            return Room(self.free_bytes, KEPT_BYTES)

        self.watch = DiskWatch(
            candidacy=self.candidacy,
            standing=self.standing,
            silence=Silence(self.known_owner, lambda: self.standing.listens),
            look_at_room=look,
            count_refused=lambda: self.refused,
            patience_s=PATIENCE_S,
        )

    def own(self, owns: bool) -> None:
        self.standing.replicator = object() if owns else None  # type: ignore[assignment]

    async def gives_up(self) -> bool:
        """Whether it hands over what it owns."""
        with trio.move_on_after(NO_TIME_S):
            await self.candidacy.wait_not_chosen()
            return True
        return False

    async def look(self) -> None:
        """Let the watch look."""
        await trio.sleep((FULL_LOOK_S if self.standing.is_disk_full else LOOK_S) + NO_TIME_S)


def simulated(scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def main() -> None:
        node = Node()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.watch.run)
            await scenario(node)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_an_owner_hands_over_where_another_node_stands() -> None:
    async def scenario(node: Node) -> None:
        node.own(True)
        await node.look()
        assert not await node.gives_up()
        node.refused, node.has_others = 1, False
        await node.look()
        assert (node.standing.is_disk_full, await node.gives_up()) == (True, False)
        node.has_others = True
        await node.look()
        assert await node.gives_up()

    simulated(scenario)


def test_it_stands_again_when_there_is_more_room_than_before() -> None:
    async def scenario(node: Node) -> None:
        node.free_bytes = 300
        node.watch.was_full()
        await node.look()
        assert (node.standing.is_disk_full, node.group.is_member) == (True, False)
        await trio.sleep(FULL_S)
        node.free_bytes = 1_299
        await node.look()
        assert not node.group.is_member
        node.free_bytes = 1_300
        await node.look()
        assert (node.standing.is_disk_full, node.group.is_member) == (False, True)

    simulated(scenario)


def test_room_that_the_system_tells_of_counts_after_a_while_only() -> None:
    async def scenario(node: Node) -> None:
        node.watch.was_full()
        await node.look()
        assert not node.group.is_member
        await trio.sleep(FULL_S - 2 * FULL_LOOK_S)
        assert not node.group.is_member
        await trio.sleep(3 * FULL_LOOK_S)
        assert node.group.is_member

    simulated(scenario)


def test_rather_a_node_without_room_than_none() -> None:
    async def scenario(node: Node) -> None:
        node.free_bytes = 0
        node.watch.was_full()
        for _ in range(5):
            node.known_owner.hear(Said.FENCED, memoryview(b""))
            await trio.sleep(PATIENCE_S - FULL_LOOK_S)
            assert not node.group.is_member
        await trio.sleep(3 * FULL_LOOK_S)
        assert (node.standing.is_disk_full, node.group.is_member) == (True, True)
        node.known_owner.hear(Said.FENCED, memoryview(b""))
        await node.look()
        assert not node.group.is_member

    simulated(scenario)


def test_a_node_that_could_not_listen_does_not_take_silence_for_a_lost_owner() -> None:
    async def scenario(node: Node) -> None:
        node.free_bytes = 0
        node.watch.was_full()
        node.candidacy.left()  # its replica cannot be opened
        await trio.sleep(3 * PATIENCE_S)
        node.candidacy.joined()
        assert (node.standing.is_disk_full, node.group.is_member) == (True, False)
        await trio.sleep(PATIENCE_S + 2 * FULL_LOOK_S)
        assert node.group.is_member

    simulated(scenario)
