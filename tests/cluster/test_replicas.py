"""Replicas on a real Kafka: what is not needed any more goes from it, and what a disk damages is had from it again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from tests.cluster.conftest import Topic
from tests.support.clients.waiting import until
from tests.support.cluster.kafka import ALONE, records_of
from tests.support.cluster.load import ClusterLoad
from tests.support.cluster.replicas import GENESIS, SETTINGS
from tests.support.native.driver import NOW_MS
from tests.support.stores.damage import flip
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.sharedlog import healing
from tickwheel_broker.sharedlog.kafka.log import KafkaLog
from tickwheel_broker.sharedlog.kafka.topic import create_topic
from tickwheel_simulation.cluster.assigner import Assigner
from timerlog.replication.genesis import genesis_record

PATIENCE_S = 60.0


async def test_what_is_trimmed_goes_from_kafka_and_damage_is_healed_from_it(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(healing, "SCRUB_EVERY_S", 0.5)
    await create_topic(*topic, ALONE)
    load = ClusterLoad(random.Random(7), tmp_path, TrioClock(NOW_MS))
    assigners = [Assigner() for _ in range(3)]
    async with KafkaLog(*topic) as log:
        await log.append([genesis_record(GENESIS, 0)])
        async with trio.open_nursery() as nursery:

            async def run(number: int) -> None:
                async with KafkaLog(*topic) as shared:
                    await load.node(number, shared, assigners[number]).run()

            nursery.start_soon(run, 0)
            nursery.start_soon(run, 1)
            assigners[0].choose(True)
            with trio.fail_after(PATIENCE_S):
                while await log.first() == 0:
                    await trio.sleep(0.1)
            nursery.start_soon(run, 2)  # it never sees what is gone
            await until(lambda: assigners[2].has_joined)
            await until(lambda: all(len(segments(tmp_path, number)) > 1 for number in range(3)))
            for number in range(3):
                await is_healed(tmp_path, number)
            assigners[0].choose(False)
            assigners[2].choose(True)
            await until(lambda: load.serving == 2)
            count = len(load.committed)
            await until(lambda: len(load.committed) > count + 10)
            nursery.cancel_scope.cancel()
        records = await records_of(log)
    assert records[0][0] > 0
    load.check(records)


def segments(root: Path, number: int) -> list[Path]:
    return sorted((root / f"node-{number}" / "commitlog").glob("*.log"))


async def is_healed(root: Path, number: int) -> None:
    """Some bytes of a segment that is not written any more, until they are as they were."""
    segment = segments(root, number)[0]
    whole = segment.read_bytes()
    rng = random.Random(number)
    for _ in range(5):
        position = int(segment.stem) + rng.randrange(64, len(whole.rstrip(b"\0")))
        flip(root / f"node-{number}", position, SETTINGS.segment_bytes)
    assert segment.read_bytes() != whole
    await until(lambda: not segment.exists() or segment.read_bytes() == whole)
