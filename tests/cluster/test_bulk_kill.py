"""Bulk jobs in a cluster on a real Kafka: nodes are killed at any moment of a job, which comes again with its number.

A job counts on all nodes, whole and once. In the end all replicas have the same bytes and the same state, also one that
is made from what the partition has left.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress

import pytest
import trio

from tests.cluster.conftest import Topic
from tests.cluster.test_serving_nodes import Nodes, nodes
from tests.support.cluster.kafka import records_of
from tests.support.cluster.replicas import check_replicas
from tests.support.run.profile import amount, limit_s, seed
from tests.support.stores.bulk import columns, prepare
from tickwheel.errors import TickwheelError
from tickwheel.sync import Client
from tickwheel_broker.config.cluster_url import parse_cluster_url
from tickwheel_broker.sharedlog.kafka.log import KafkaLog
from tickwheel_broker.sharedlog.shared_log import Stored
from timerlog.settings import StoreSettings
from timerlog.store import Store

__all__ = ["nodes"]

COUNT = 20_000
BODY = b"b" * 1_000
DUE_MS = 4_000_000_000_000
MOST_S = 0.6
"""A job takes so long, until it is a part of the log of all nodes."""


def hand_in(url: str, job: str, begun: threading.Event) -> int:
    """What a driver does, whatever came of the job before. How many messages it has."""
    keys = [f"{job}-{number}".encode() for number in range(COUNT)]
    part = columns([DUE_MS] * COUNT, bodies=[BODY] * COUNT, keys=keys)
    with Client(url, timeout=60) as client:
        prepare(client, "jobs", part, job, f"run-{time.time_ns()}")
        begun.set()
        return client.adopt_job(job).messages


@pytest.mark.timeout(limit_s(600))
def test_a_job_counts_whole_and_once(nodes: Nodes, topic: Topic) -> None:
    drawn = seed("bulk kill")
    rng = random.Random(drawn)
    print("seed", drawn)
    nodes.wait_joined(*nodes.all)
    kills = amount("bulk_kills")
    counted_before = 0
    for turn in range(kills):
        owner = nodes.owner()
        killed = owner if turn % 3 < 2 else next(node for node in nodes.all if node is not owner)
        job, begun, found = f"{rng.getrandbits(128):032x}", threading.Event(), list[int]()

        def drive(
            url: str = owner.url, job: str = job, begun: threading.Event = begun, found: list[int] = found
        ) -> None:
            with suppress(TickwheelError):
                found.append(hand_in(url, job, begun))
            begun.set()

        driver = threading.Thread(target=drive)
        driver.start()
        assert begun.wait(60)
        delay_s = rng.random() * MOST_S
        time.sleep(delay_s)
        killed.kill()
        driver.join()
        following = nodes.owner(but=killed)
        with Client(following.url, timeout=10) as client:
            counted_before += client.plan_job(["jobs"], job=job).adopted is not None
        assert hand_in(following.url, job, threading.Event()) == COUNT
        with Client(following.url, timeout=10) as client:
            (stats,) = client.topics()
            assert stats.scheduled == COUNT * (turn + 1)
        print(f"{'owner' if killed is owner else 'follower'} killed after {delay_s:.2f} s, answered: {found}")
        killed.start()
        nodes.wait_joined(killed)
    print(f"{counted_before} of {kills} jobs counted before they came again")
    for node in nodes.all:
        assert node.stop() == 0

    async def read() -> list[Stored]:
        async with KafkaLog(topic.servers, parse_cluster_url(nodes.url).topic) as log:
            return await records_of(log)

    def check(store: Store) -> None:
        (found,) = store.look.topics()
        assert found["scheduled"] == COUNT * kills

    new = nodes.all[0].directory.parent / "new"
    new.mkdir()
    directories = [*(node.directory for node in nodes.all), new]
    check_replicas(directories, trio.run(read), StoreSettings(), time.time_ns() // 1_000_000, check)
