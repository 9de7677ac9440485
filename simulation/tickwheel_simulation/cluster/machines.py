"""A cluster: two or three machines with a real node on each, which share a simulated partition.

Who is to own the log is said by an arbitrary assigner: to one of them, to none, to two, at any moment.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import trio

from tickwheel_broker.config.settings import Settings
from tickwheel_broker.sharedlog.node import Node, replica_opener
from tickwheel_broker.sharedlog.replicator import Replicator
from tickwheel_simulation.claims import Claims
from tickwheel_simulation.clock import WallClock
from tickwheel_simulation.cluster.assigner import Assigner
from tickwheel_simulation.cluster.partition import Line, Partition, PartitionFaults
from tickwheel_simulation.cluster.processes import HERE, Stops
from tickwheel_simulation.disk import Disk, View
from tickwheel_simulation.machine import LOG_ID, Machine, replayed_state
from tickwheel_simulation.oracle import Violation
from tickwheel_simulation.scene import START_MS, Scene
from timerlog.errors import DiskFull
from timerlog.files.holes import Holes
from timerlog.replication import record
from timerlog.replication.follower import Follower
from timerlog.replication.genesis import genesis_of, genesis_record
from timerlog.replication.origin import Origin, origin_of
from timerlog.store import Store

MAX_CLOCK_SKEW_MS = 250

_DRAIN_S = 10.0
"""So long a node may take to stop in order."""

_STALE_S = 45.0
"""So much later than it was given an answer may still be on its way to the one that acts on it."""


@dataclass(frozen=True)
class ClusterProfile:
    """What a seed makes likely in a cluster. Rates are per ten simulated seconds."""

    machines: int
    delay_s: float
    fails: float
    read_delay_s: float
    record_bytes: int
    """What one record of the partition carries at most: with little of it, many batches have several."""
    reassigned: float
    leader_changes: float
    line_cuts: float
    rolls: float
    stops: float
    """Of processes, as by SIGSTOP."""
    clocks_ms: tuple[int, ...]
    """By how much each machine's clock is before that of the clients."""

    @staticmethod
    def draw(rng: random.Random) -> ClusterProfile:
        """The profile of a seed."""
        machines = rng.choice((2, 3, 3))
        largest_ms = rng.choice((0, MAX_CLOCK_SKEW_MS))
        return ClusterProfile(
            machines=machines,
            delay_s=rng.choice((0.001, 0.01, 0.1)),
            fails=rng.choice((0.0, 0.01, 0.08)),
            read_delay_s=rng.choice((0.001, 0.01, 0.2)),
            record_bytes=rng.choice((400, 4_000, record.MAX_BODY_BYTES)),
            reassigned=rng.choice((0.3, 1.5, 4.0)),
            leader_changes=rng.choice((0.0, 0.5)),
            line_cuts=rng.choice((0.0, 0.6)),
            rolls=rng.choice((0.0, 1.0, 4.0)),
            stops=rng.choice((0.0, 0.8)),
            clocks_ms=tuple(rng.randint(0, largest_ms) - largest_ms // 2 for _ in range(machines)),
        )


class Member(Machine):
    """A machine of the cluster: a replica on a disk of its own, and a broker while it owns the log."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        number: int,
        claims: Claims,
        settings: Settings,
        disk: Disk,
        clock: WallClock,
    ) -> None:
        super().__init__(
            scene=cluster.scene,
            claims=claims,
            settings=settings,
            disk=disk,
            clock=clock,
            name=f"machine {number}",
        )
        self._cluster, self.number = cluster, number
        self.assigner = Assigner()
        self.line: Line | None = None

    async def start(self) -> None:
        """Begins, and does not wait until it owns anything."""
        self.is_wanted = True
        self.assigner.stop(False)
        self._is_wanted_again.set()

    async def stop(self) -> None:
        """Stops in order; returns when it has ended, however."""
        self.is_wanted = False
        self.assigner.stop(True)
        if self.view is not None:
            self.note("stop")
        with trio.move_on_after(_DRAIN_S):
            while self.broker is not None:
                await trio.sleep(0.1)
        if self._scope is not None:
            self._scope.cancel()
        while self.view is not None:
            await trio.sleep(0.1)

    def kill(self, *, power: bool) -> None:
        """See `Machine`. A process that is stopped can be killed, too."""
        super().kill(power=power)
        self._cluster.stops.go_on(self)

    def note(self, what: str, **details: object) -> None:
        """For the trace."""
        self.scene.note(f"{self.name}: {what}", **details)

    async def _work(self, view: View) -> bool:
        assert self.line is not None
        self.line.is_down = lambda: view.is_dead

        open_tables = replica_opener(self._tables, view, self.store_settings, self.clock)

        def open_replica(origin: Origin) -> Follower:
            Holes.are_read_only = True
            self.clock.forget_step_back()
            follower = open_tables(origin)
            self.note("follows", end=follower.end, offset=follower.offset)
            return follower

        def open_store(follower: Follower) -> Store:
            opened, now_ms = follower.promote(), self.clock.now_ms()
            return Store.of(opened, view, self.store_settings, now_ms, follower.healing)

        async def serve(store: Store, replicator: Replicator, until: Callable[[], Awaitable[None]]) -> None:
            self._begin_life()
            self.note("owns", term=replicator.term, end=store.log.appended_position)
            self._cluster.took_over(self, replicator.term)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._roll, store)
                    await self._serve(store, view, replicator, until)
                    nursery.cancel_scope.cancel()
            finally:
                self.note("owns no more")
                self._disconnect()
                self._running = self.broker = None
                self._cluster.serves_no_more(self)

        with trio.CancelScope() as self._scope:
            node = Node(
                number=self.number,
                shared=self.line,
                membership=self.assigner,
                clock=self.clock,
                open_replica=open_replica,
                open_store=open_store,
                serve=serve,
            )
            await node.run()
        return False

    async def _roll(self, store: Store) -> None:
        """Segments end early, so that some of them can be purged, and the partition trimmed."""
        rolls = self._cluster.profile.rolls
        while rolls:
            await trio.sleep(self._rng.expovariate(rolls / 10))
            with suppress(DiskFull):
                store.log.roll()
                self.scene.count("rolls")

    def _ended(self) -> None:
        """What it leased is looked at when another one takes over."""

    def replica(self) -> Replica:
        """What this machine has, once it has followed to the end."""
        before = HERE.set(self)
        try:
            return self._cluster.replica(self.disk, self._tables)
        finally:
            HERE.reset(before)


class Replica(NamedTuple):
    """One that has followed to the end."""

    state: str
    segments: dict[int, bytes]


class Cluster:
    """All machines of a run."""

    def __init__(self, scene: Scene, claims: Claims, settings: Settings) -> None:
        self.scene = scene
        self._rng = scene.random("cluster")
        self.profile = profile = ClusterProfile.draw(self._rng)
        faults = PartitionFaults(profile.delay_s, profile.fails)
        self.partition = Partition(scene.random("partition"), faults)
        self.stops = Stops()
        scene.disks = [Disk(scene.random(f"disk {number}")) for number in range(profile.machines)]
        clocks = [WallClock(START_MS + by_ms) for by_ms in profile.clocks_ms]
        scene.clock_lead_ms = max(0, *profile.clocks_ms)
        scene.clock_lag_ms = max(0, *(-by_ms for by_ms in profile.clocks_ms))
        self.members = [
            Member(cluster=self, number=number, claims=claims, settings=settings, disk=disk, clock=clock)
            for number, (disk, clock) in enumerate(zip(scene.disks, clocks, strict=True))
        ]
        for member, by_ms in zip(self.members, profile.clocks_ms, strict=True):
            member.clock_is_behind_ms = max(profile.clocks_ms) - by_ms
        self.genesis = genesis_of("simulated", 0, LOG_ID, self.members[0].store_settings)
        self.partition.records.append(genesis_record(self.genesis, 0))
        self._is_on = trio.Event()
        self._assigning = trio.CancelScope()
        self._owner: Member | None = None
        self._term = 0
        self._replaced: set[Member] = set()
        """Those that serve although another one has taken over."""
        self._stale_until_s = -1.0
        scene.oracle.is_stale = self._is_stale
        scene.is_shared = True

    def described(self) -> dict[str, object]:
        """For people."""
        return asdict(self.profile)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, nodes write records as small as the profile says, and can be stopped."""
        small = mock.patch.object(record, "MAX_BODY_BYTES", self.profile.record_bytes)
        with small, self.stops.installed():
            yield

    # -- life --

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for member in self.members:
                member.line = Line(self.partition, nursery, read_delay_s=self.profile.read_delay_s)
                nursery.start_soon(member.run)
            while True:
                await self._is_on.wait()
                await self._assign()

    async def _assign(self) -> None:
        """While the machines are on, and not calm."""
        rng = self._rng
        with trio.CancelScope() as self._assigning:
            self._choose([rng.choice(self.members)])
            if self.scene.is_calm:
                await trio.sleep_forever()
            while True:
                await trio.sleep(rng.expovariate(self.profile.reassigned / 10))
                chosen = rng.choices((1, 0, 2, len(self.members)), (10, 1, 3, 1))[0]
                self._choose(rng.sample(self.members, chosen))

    def _choose(self, chosen: list[Member]) -> None:
        self.scene.note("chosen", members=[one.number for one in chosen])
        self.scene.count("assignments")
        for member in self.members:
            member.assigner.choose(member in chosen)

    async def start(self) -> None:
        """Returns when a node serves."""
        self._is_on.set()
        for member in self.members:
            await member.start()
        while not any(member.broker is not None for member in self.members):
            await trio.sleep(0.1)

    async def stop(self) -> None:
        """Stops all in order; returns when they have ended, however."""
        self._is_on = trio.Event()
        self._assigning.cancel()
        async with trio.open_nursery() as nursery:
            for member in self.members:
                nursery.start_soon(member.stop)

    def kill(self, *, power: bool) -> None:
        """Ends all of them now."""
        for member in self.members:
            member.is_wanted = False
            member.kill(power=power)

    @property
    def is_wanted(self) -> bool:
        """Whether they run."""
        return any(member.is_wanted for member in self.members)

    @is_wanted.setter
    def is_wanted(self, is_wanted: bool) -> None:
        for member in self.members:
            member.is_wanted = is_wanted

    def one(self) -> Member:
        """One to which something is done: rather the owner."""
        owner = self._owner
        return owner if owner is not None and self._rng.random() < 0.4 else self._rng.choice(self.members)

    def calm_down(self) -> None:
        """No more faults, and one node is chosen."""
        self.partition.faults = PartitionFaults()
        for member in self.members:
            assert member.line is not None
            member.line.is_cut = False
            self.stops.go_on(member)
        self._assigning.cancel()

    def close(self) -> None:
        """At the end of the run."""
        for member in self.members:
            member.close()

    # -- who owns the log --

    def took_over(self, member: Member, term: int) -> None:
        """It has read its own FENCE."""
        self.scene.count("takeovers")
        if term < self._term:  # it is slow: there is one of a later term already
            self._replaced.add(member)
            return
        self._term = term
        self._replaced |= {one for one in self.members if one.broker is not None and one is not member}
        self._owner = member
        self.scene.oracle.took_over(member.life)

    def serves_no_more(self, member: Member) -> None:
        """It has noticed that it was replaced, or was not chosen any more."""
        if member in self._replaced:
            self._replaced.discard(member)
            self._stale_until_s = trio.current_time()

    def _is_stale(self) -> bool:
        return bool(self._replaced) or trio.current_time() < self._stale_until_s + _STALE_S

    # -- the end --

    def check_at_end(self) -> str:
        """All replicas have the same bytes and the same state, which is returned; the partition alone gives it, too."""
        disk = Disk(self.scene.random("a new one"))
        new = self.replica(disk, None)
        disk.close()
        for member in self.members:
            found = member.replica()
            for base in found.segments.keys() | new.segments.keys():
                if new.segments.get(base) != found.segments.get(base):
                    raise Violation(f"{member.name} has other bytes in segment {base}")
            if found.state != new.state:
                raise Violation(f"{member.name} has another state")
            if replayed_state(member.disk, member.store_settings, self.scene.clock.now_ms()) != new.state:
                raise Violation(f"a replay of the log of {member.name} gives another state")
        return new.state

    def replica(self, disk: Disk, directory: Path | None) -> Replica:
        """One that has these tables, or none yet, once it has followed to the end."""
        settings, now_ms = self.members[0].store_settings, self.scene.clock.now_ms()
        view, records = View(disk, lambda: None), self.partition.records
        origin = origin_of(list(enumerate(records))[self.partition.first_offset :])
        assert origin is not None, "it begins with a whole record"
        follower = replica_opener(directory, view, settings, self.scene.clock)(origin)
        for offset in range(follower.offset + 1, len(records)):
            follower.take(offset, records[offset])
        while follower.trim_step():
            pass
        end = follower.end
        segments = {
            base: inode.content()[: min(end - base, settings.segment_bytes)]
            for base, inode in disk.segments.items()
            if base < end
        }
        store = Store.of(follower.promote(), view, settings, now_ms)
        state = store.look.state_hash()
        store.close(clean=False)
        return Replica(state, segments)
