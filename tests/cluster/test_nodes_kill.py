"""Three nodes on a real Kafka: they are killed, hang, leave, are drained, and Kafka is killed, in the middle of work.

What was committed is on every node in the end, all have the same state, and nothing was given out twice with one epoch.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
import trio

from tests.cluster.conftest import Topic
from tests.support.cluster.kafka import ALONE, records_of
from tests.support.cluster.load import ClusterLoad
from tests.support.cluster.replicas import GENESIS
from tests.support.native.driver import NOW_MS
from tests.support.run.profile import amount, limit_s, seed
from tickwheel_bench.cluster.kafka import Kafka
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.node.candidacy import Candidacy, Reason
from tickwheel_broker.sharedlog.kafka.group import KafkaGroup
from tickwheel_broker.sharedlog.kafka.log import KafkaLog
from tickwheel_broker.sharedlog.kafka.topic import create_topic
from tickwheel_broker.sharedlog.standing import Standing
from timerlog.replication.genesis import genesis_record

NODES = 3
SESSION_S = 1.5
PATIENCE_S = 120.0
KINDS = ("node and Kafka", "node", "hang", "drain", "Kafka", "leave")
COMMITS = 30
"""So many more there must be after each of them."""


class Cluster:
    """The nodes, and what happens to them."""

    def __init__(self, kafka: Kafka, topic: Topic, load: ClusterLoad, rng: random.Random) -> None:
        self._kafka, self._topic, self._load, self._rng = kafka, topic, load, rng
        self._candidacies: dict[int, Candidacy] = {}
        self._lives = [trio.CancelScope() for _ in range(NODES)]
        self._works = [trio.CancelScope() for _ in range(NODES)]
        self._healthy = [threading.Event() for _ in range(NODES)]
        self._may_start = [trio.Event() for _ in range(NODES)]

    async def keep_alive(self, number: int) -> None:
        """A node is started, killed, and started again."""
        while True:
            self._healthy[number].set()
            self._may_start[number] = trio.Event()
            with trio.CancelScope() as self._lives[number]:
                async with self._group(number) as group:
                    candidacy = self._candidacies[number] = Candidacy(
                        group, Standing(self._topic.name, number)
                    )
                    with trio.CancelScope() as self._works[number]:
                        async with KafkaLog(*self._topic) as log:
                            await self._load.node(number, log, candidacy).run()
                    # As a process that is gone: it does not say that it leaves.
                    await self._may_start[number].wait()
            await trio.sleep(self._rng.random())

    def _group(self, number: int) -> KafkaGroup:
        is_healthy = self._healthy[number].is_set
        return KafkaGroup(*self._topic, f"group-{self._topic.name}", SESSION_S, is_healthy=is_healthy)

    async def goes_on(self, besides: int | None = None) -> None:
        """Returns when more was committed, by another node than this one."""
        count, load = len(self._load.committed), self._load
        if besides is not None:
            while load.serving == besides:
                await trio.sleep(0.01)
            count = len(load.committed)
        while len(load.committed) < count + COMMITS:
            await trio.sleep(0.01)

    async def happens(self, kind: str) -> None:
        """To the node that serves."""
        number = self._load.serving
        assert number is not None
        match kind:
            case "node" | "node and Kafka":
                self._healthy[number].clear()
                self._works[number].cancel()
                if kind == "node and Kafka":
                    await self._restart_kafka()
                await self.goes_on(besides=number)
                self._may_start[number].set()
            case "hang":
                self._healthy[number].clear()
                await self.goes_on(besides=number)
                self._healthy[number].set()
            case "drain":
                self._candidacies[number].withdraw(Reason.DRAINED)
                await self.goes_on(besides=number)
                self._candidacies[number].stand_again(Reason.DRAINED)
            case "Kafka":
                await self._restart_kafka()
                await self.goes_on()
            case "leave":
                self._lives[number].cancel()
                await self.goes_on()

    async def _restart_kafka(self) -> None:
        self._kafka.kill()
        await trio.to_thread.run_sync(self._kafka.start)


@pytest.mark.timeout(limit_s(900))
async def test_nothing_is_lost(kafka: Kafka, topic: Topic, tmp_path: Path) -> None:
    drawn = seed("nodes kill")
    print("seed", drawn)
    rng = random.Random(drawn)
    await create_topic(*topic, ALONE)
    load = ClusterLoad(rng, tmp_path, TrioClock(NOW_MS))
    cluster = Cluster(kafka, topic, load, rng)
    async with KafkaLog(*topic) as log:
        await log.append([genesis_record(GENESIS, 0)])
        async with trio.open_nursery() as nursery:
            for number in range(NODES):
                nursery.start_soon(cluster.keep_alive, number)
            with trio.fail_after(PATIENCE_S):
                await cluster.goes_on()
            for turn in range(amount("cluster_kills")):
                kind = KINDS[turn % len(KINDS)]
                began_s = trio.current_time()
                with trio.fail_after(PATIENCE_S):
                    await cluster.happens(kind)
                print(f"{kind}: {trio.current_time() - began_s:.1f} s, {len(load.committed)} committed")
            nursery.cancel_scope.cancel()
        records = await records_of(log)
    load.check(records)
    print(f"{len(load.terms)} terms, {len(load.given)} given out, {load.segments_trimmed} segments trimmed")
    assert len(load.terms) > 1
    assert load.given
