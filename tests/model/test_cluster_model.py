"""Three nodes of a cluster in one process, by seeds: any of them is told at any moment that it owns the log, lines are
cut, appends fail. What was committed is there in the end, on every node, and all of them have the same state."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.support.cluster.load import ClusterLoad
from tests.support.cluster.replicas import GENESIS, SETTINGS
from tests.support.native.driver import NOW_MS
from tests.support.run.profile import amount, seed
from tests.support.stores.damage import flip
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.sharedlog import healing
from tickwheel_simulation.cluster.assigner import Assigner
from tickwheel_simulation.cluster.partition import Line, Partition, PartitionFaults
from tickwheel_simulation.determinism import repeatable
from timerlog.layout import SEGMENT_HEADER_BYTES
from timerlog.replication.genesis import genesis_record

FLIPS = 10
"""So many bytes are damaged in a run with rotting disks, or more."""


class Run:
    """One seed."""

    def __init__(self, number: int, root: Path, *, rots: bool = False) -> None:
        """``rots``: disks damage what they have."""
        self._rng, self._root, self._rots = random.Random(number), root, rots
        self.first_offset = self._flips = 0

    async def main(self) -> None:
        async with trio.open_nursery() as nursery:
            log = Partition(self._rng, PartitionFaults(fails=self._rng.choice([0.0, 0.02, 0.1])))
            log.put(genesis_record(GENESIS, 0))
            self.load = ClusterLoad(self._rng, self._root, TrioClock(NOW_MS))
            assigners = [Assigner() for _ in range(3)]
            lines = [Line(log, nursery) for _ in range(3)]
            scopes = [trio.CancelScope() for _ in range(3)]
            for number in range(3):
                nursery.start_soon(self._keep_alive, number, lines[number], assigners[number], scopes)
            if self._rots:
                nursery.start_soon(self._rot)
            await self._disturb(assigners, lines, scopes)
            log.faults = PartitionFaults()
            for line in lines:
                line.is_cut = False
            for number, assigner in enumerate(assigners):
                assigner.choose(number == 0)
            count = len(self.load.committed)
            with trio.fail_after(600):
                while len(self.load.committed) <= count or (self._rots and self._flips < FLIPS):
                    await trio.sleep(1)
            if self._rots:
                self.load.rests = True
                await trio.sleep(20 * healing.SCRUB_EVERY_S)
            for scope in scopes:
                scope.cancel()
            nursery.cancel_scope.cancel()
        self.first_offset = log.first_offset
        self.load.check(list(enumerate(log.records))[log.first_offset :])

    async def _keep_alive(
        self, number: int, line: Line, assigner: Assigner, scopes: list[trio.CancelScope]
    ) -> None:
        """A node is started, killed, and started again."""
        while True:
            with trio.CancelScope() as scopes[number]:
                await self.load.node(number, line, assigner).run()
            await trio.sleep(self._rng.random())

    async def _rot(self) -> None:
        """A byte of any record that a node has, now and then."""
        while not self.load.rests:
            await trio.sleep(self._rng.expovariate(1))
            segments = sorted(self._root.glob("node-*/commitlog/*.log"))
            if not segments:
                continue
            segment = self._rng.choice(segments)
            used = len(segment.read_bytes().rstrip(b"\0"))
            if used > SEGMENT_HEADER_BYTES:
                at = self._rng.randrange(SEGMENT_HEADER_BYTES, used)
                flip(segment.parents[1], int(segment.stem) + at, SETTINGS.segment_bytes)
                self._flips += 1

    async def _disturb(
        self, assigners: list[Assigner], lines: list[Line], scopes: list[trio.CancelScope]
    ) -> None:
        assigners[0].choose(True)
        for _ in range(25):
            await trio.sleep(self._rng.expovariate(1))
            number = self._rng.randrange(3)
            match self._rng.choice(["choose", "choose", "choose", "cut", "kill", "faults"]):
                case "choose":
                    assigners[number].choose(self._rng.random() < 0.6)
                case "cut":
                    lines[number].is_cut = not lines[number].is_cut
                case "kill":
                    scopes[number].cancel()


def run_seed(number: int, *, rots: bool = False) -> Run:
    root = Path(tempfile.mkdtemp(prefix="tickwheel-cluster-"))
    try:
        run = Run(number, root, rots=rots)
        with repeatable(number):
            trio.run(run.main, clock=MockClock(autojump_threshold=0))
    finally:
        shutil.rmtree(root)
    return run


def seeds(name: str, count: int) -> range:
    first = seed(name)
    return range(first, first + count)


@pytest.mark.promise("in-a-cluster")
def test_what_was_committed_is_on_every_node() -> None:
    for number in seeds("cluster model", amount("cluster_runs")):
        print("seed", number)
        run_seed(number)


def test_runs_go_somewhere() -> None:
    """The seeds are constants and time is simulated: each run of this test counts the same."""
    runs = [run_seed(number) for number in range(5)]
    assert sum(len(run.load.terms) for run in runs) > 10
    assert sum(len(run.load.committed) for run in runs) > 500
    assert sum(len(run.load.given) for run in runs) > 200
    assert sum(run.load.segments_trimmed for run in runs) > 10
    assert sum(run.first_offset > 0 for run in runs) > 2


def test_what_disks_damage_is_healed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes have the same bytes in the end."""
    monkeypatch.setattr(healing, "SCRUB_EVERY_S", 1.0)
    for number in seeds("rotting model", amount("rotting_runs")):
        print("seed", number)
        run_seed(number, rots=True)
