"""Links that are cut, each direction by itself, between any two machines of a cluster: the nodes, and three brokers of
Kafka, of which one leads the log's partition and one coordinates the group.

Real nodes, in simulated time. What the oracle asks: while a follower reaches leader and coordinator, a cut that lasts
must not keep the cluster from serving.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio
from trio.testing import MockClock

from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.errors import first_error
from tickwheel_broker.node.candidacy import Candidacy
from tickwheel_broker.node.hold_off import HoldOff
from tickwheel_broker.sharedlog.known_owner import Silence
from tickwheel_broker.sharedlog.node import Node, replica_opener
from tickwheel_broker.sharedlog.replicator import BEAT_S, Replicator
from tickwheel_broker.sharedlog.standing import Standing
from tickwheel_simulation.cluster.group import SESSION_S, Group
from tickwheel_simulation.cluster.partition import Line, Partition
from tickwheel_simulation.determinism import repeatable, stream
from tickwheel_simulation.disk import Disk, View
from tickwheel_simulation.machine import LOG_ID
from tickwheel_simulation.oracle import Violation
from tickwheel_simulation.scene import START_MS
from timerlog.replication.follower import Follower
from timerlog.replication.genesis import genesis_of, genesis_record
from timerlog.settings import StoreSettings
from timerlog.store import Store

MACHINES: Final = 3
TIMEOUT_S: Final = SESSION_S
"""`cluster_timeout`."""

BOUND_S: Final = 5 * TIMEOUT_S
"""So long a cluster may serve nobody although a node could: two others may be tried first."""

CUT_S: Final = 2 * BOUND_S
MENDED_S: Final = 2 * TIMEOUT_S
ELECTION_S: Final = 3.0
NEWS_S: Final = 2 * BEAT_S + 1
"""So late a node hears of another leader where the one before goes on to answer: see `kafka.leader`."""

_STEP_S: Final = 0.1
_SETTINGS: Final = StoreSettings(segment_bytes=6 << 20, max_frame_bytes=1 << 16, max_topics=16, max_groups=16)

Link = tuple[str, str]
"""Who sends, and who hears it: `node 0`, `broker 2`."""


@dataclass
class Links:
    """Those that are cut."""

    cut: set[Link] = field(default_factory=set)

    def carries(self, one: str, other: str) -> bool:
        """Whether what one says comes to the other."""
        return (one, other) not in self.cut

    def join(self, one: str, other: str) -> bool:
        """Whether both hear each other."""
        return self.carries(one, other) and self.carries(other, one)


class Kafka:
    """Which broker leads, and which coordinates."""

    def __init__(self, links: Links, partition: Partition, leader: int, coordinator: int) -> None:
        self._links, self._partition = links, partition
        self.leader, self.coordinator = leader, coordinator

    async def run(self) -> None:
        """A leader that no other broker follows is replaced after a while, and so is the group's."""
        alone_s = dict.fromkeys(range(MACHINES), 0.0)
        while True:
            await trio.sleep(_STEP_S)
            for broker in alone_s:
                alone_s[broker] = 0.0 if self._is_followed(broker) else alone_s[broker] + _STEP_S
            if alone_s[self.leader] >= ELECTION_S:
                self.leader = self._next(self.leader)
                self._partition.change_leader(0)
            if alone_s[self.coordinator] >= ELECTION_S:
                self.coordinator = self._next(self.coordinator)

    def _is_followed(self, broker: int) -> bool:
        return any(
            self._links.join(f"broker {broker}", f"broker {other}")
            for other in range(MACHINES)
            if other != broker
        )

    def _next(self, before: int) -> int:
        return next((one for one in range(MACHINES) if one != before and self._is_followed(one)), before)


class Member:
    """A node."""

    def __init__(self, number: int, world: World, nursery: trio.Nursery) -> None:
        self.name, self._world = f"node {number}", world
        self._leader = world.kafka.leader
        """As it knows it."""
        self.line, self.seat, self.standing = (
            Line(world.partition, nursery),
            world.group.seat(),
            Standing("simulated", number),
        )
        self.line.loses_requests = lambda: not self._hears_leader(True)
        self.line.loses_answers = lambda: not self._hears_leader(False)
        self.seat.is_heard = lambda: world.links.carries(self.name, world.coordinator)
        self.seat.hears = lambda: world.links.carries(world.coordinator, self.name)
        clock, view = TrioClock(START_MS), View(Disk(world.random(self.name)), lambda: None)

        def open_store(follower: Follower) -> Store:
            opened, now_ms = follower.promote(), clock.now_ms()
            return Store.of(opened, view, _SETTINGS, now_ms, follower.healing)

        async def serve(_: Store, replicator: Replicator, until: Callable[[], Awaitable[None]]) -> None:
            self.standing.replicator = replicator
            world.counts["takeovers"] += 1
            try:
                await replicator.settle()
                await until()
            finally:
                self.standing.replicator = None

        candidacy = Candidacy(self.seat, self.standing)
        opener = replica_opener(None, view, _SETTINGS, clock)
        self._node = Node(
            number=number,
            shared=self.line,
            membership=candidacy,
            clock=clock,
            open_replica=opener,
            open_store=open_store,
            serve=serve,
            owner_timeout_s=TIMEOUT_S / 2,
        )
        silence = Silence(self._node.known_owner, lambda: self.standing.listens)
        self._hold_off = HoldOff(candidacy, self.standing, silence, TIMEOUT_S)
        self._node.on_given_up = self._hold_off.begin

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hold_off.run)
            nursery.start_soon(self._hear_of_leaders)
            await self._node.run()

    async def _hear_of_leaders(self) -> None:
        while True:
            if self._leader != self._world.kafka.leader:
                await trio.sleep(NEWS_S)
                self._leader = self._world.kafka.leader
            await trio.sleep(_STEP_S)

    def _hears_leader(self, is_request: bool) -> bool:
        world = self._world
        if self._leader != world.kafka.leader:
            return False  # who leads no more takes nothing, and has nothing
        ends = (self.name, world.leader) if is_request else (world.leader, self.name)
        return world.links.carries(*ends)

    @property
    def serves(self) -> bool:
        """Whether it would answer."""
        return self.standing.replicator is not None and self.standing.replicator.is_current

    @property
    def could_serve(self) -> bool:
        """Whether it reaches all that it needs."""
        world = self._world
        return world.links.join(self.name, world.leader) and world.links.join(self.name, world.coordinator)


class World:
    """One seed."""

    def __init__(self, seed: int, cuts: int) -> None:
        self._seed, self._cuts = seed, cuts
        self._rng = self.random("cuts")
        self.links, self.group, self.partition = Links(), Group(TIMEOUT_S), Partition(self.random("log"))
        self.kafka = Kafka(self.links, self.partition, *self._rng.sample(range(MACHINES), 2))
        self.members: list[Member] = []
        self.counts: Counter[str] = Counter()

    def random(self, purpose: str) -> random.Random:
        """See `determinism.stream`."""
        return stream(self._seed, purpose)

    @property
    def leader(self) -> str:
        """Its name."""
        return f"broker {self.kafka.leader}"

    @property
    def coordinator(self) -> str:
        """Its name."""
        return f"broker {self.kafka.coordinator}"

    async def main(self) -> None:
        """Cuts, one after the other."""
        genesis = genesis_of("simulated", 0, LOG_ID, _SETTINGS)
        self.partition.put(genesis_record(genesis, 0))
        async with trio.open_nursery() as nursery:
            self.members = [Member(number, self, nursery) for number in range(MACHINES)]
            for work in (self.group.run, self.kafka.run, self._watch, *(one.run for one in self.members)):
                nursery.start_soon(work)
            for _ in range(self._cuts):
                await trio.sleep(MENDED_S)
                cut = self._draw()
                self.counts[cut] += 1
                await trio.sleep(CUT_S)
                self.links.cut.clear()
            await trio.sleep(BOUND_S)
            nursery.cancel_scope.cancel()

    def _draw(self) -> str:
        """Cut one link of those that there are, in one direction or both, or all of one broker to the others. Returns
        what it was."""
        rng = self._rng
        owner = next((one.name for one in self.members if one.serves), self.members[0].name)
        other = next(
            f"broker {one}"
            for one in range(MACHINES)
            if one not in (self.kafka.leader, self.kafka.coordinator) or one == MACHINES - 1
        )
        machines = {
            "owner": owner,
            "leader": self.leader,
            "coordinator": self.coordinator,
            "other broker": other,
            "follower": rng.choice([one.name for one in self.members if one.name != owner]),
        }
        if rng.random() < 0.2:
            alone = rng.choice([self.leader, self.coordinator])
            others = [f"broker {one}" for one in range(MACHINES) if f"broker {one}" != alone]
            pairs, what = [(alone, one) for one in others], "a broker from the others"
        else:
            one, two = rng.sample(sorted(machines), 2)
            pairs, what = [(machines[one], machines[two])], f"{one} to {two}"
        self.links.cut.update(pairs)
        if rng.random() < 0.5:
            self.links.cut.update((two, one) for one, two in pairs)
        return what

    async def _watch(self) -> None:
        """Raises Violation."""
        unserved_s, could_s = 0.0, dict.fromkeys(self.members, 0.0)
        longest_s = 0.0
        while True:
            await trio.sleep(_STEP_S)
            unserved_s = 0.0 if any(one.serves for one in self.members) else unserved_s + _STEP_S
            longest_s = max(longest_s, unserved_s)
            self.counts["longest gap, in seconds"] = math.ceil(longest_s)
            for member in self.members:
                could_s[member] = could_s[member] + _STEP_S if member.could_serve else 0.0
                if min(unserved_s, could_s[member]) > BOUND_S:
                    raise Violation(
                        f"nobody serves for {BOUND_S:.0f} s although {member.name} reaches leader and "
                        f"coordinator; cut: {sorted(self.links.cut)}"
                    )


def run_cuts(seed: int, cuts: int = 6) -> Counter[str]:
    """What happened. Raises Violation."""
    with repeatable(seed):
        world = World(seed, cuts)
        try:
            trio.run(world.main, clock=MockClock(autojump_threshold=0))
        except BaseExceptionGroup as group:
            raise first_error(group) from group
    return world.counts
