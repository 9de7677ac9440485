"""Three daemons of a cluster on a real Kafka, under mixed load: each kind of harm, many times. A ledger is outside.

Nothing that was acknowledged is lost or doubled, nothing comes early beyond the difference of the nodes' clocks, and
nothing is given out twice with one epoch. In the end all replicas have the same bytes and the same state, also one that
is made from what the partition has left.

`TICKWHEEL_CLUSTER_HARMS=300 TICKWHEEL_CLUSTER_KINDS="owner,zombie"` is how to try more of some kinds.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

import pytest
import trio

from tests.cluster.conftest import Topic
from tests.crash.test_kill_loop import check_schedule, check_store, told
from tests.support.clients.crash_load import Ledger, MixedLoad, now_ms
from tests.support.clients.shifted_clock import ShiftedClock, clock_library
from tests.support.cluster.daemons import INIT, SKEW_MS, ClusterDaemons, NodeDaemon
from tests.support.cluster.kafka import records_of
from tests.support.cluster.replicas import check_replicas
from tests.support.run.profile import amount, limit_s, seed, some_of
from tests.support.stores.small_disk import small_tmpfs
from tickwheel_bench.cluster.kafka import Kafka
from tickwheel_bench.cluster.serving import make_cluster
from tickwheel_broker.config.cluster_url import parse_cluster_url
from tickwheel_broker.sharedlog.kafka.log import KafkaLog
from timerlog.settings import StoreSettings

EACH: Final = amount("cluster_harms")
A_LOOP: Final = 20
"""Of each kind, until all replicas are compared."""

LOOPS: Final = -(-EACH // A_LOOP)
DISK_BYTES: Final = 768 << 20
SETTINGS: Final = StoreSettings()


class ClusterMixedLoad(MixedLoad):
    """Less of it, for a machine that runs all of the cluster and Kafka; and clients that soon notice a silent node."""

    pause_s = 0.1
    quiet = 8
    options = {"keepalive": 1.0}  # noqa: RUF012


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path / "disk", DISK_BYTES) as path:
        yield path


@pytest.mark.timeout(limit_s(1_200))
@pytest.mark.parametrize("loop", range(LOOPS))
async def test_nothing_is_lost_or_doubled(
    kafka: Kafka, topic: Topic, tmp_path: Path, disk: Path, loop: int
) -> None:
    drawn = seed(f"daemons kill {loop}")
    print(f"seed {drawn}")
    rng, ledger = random.Random(drawn), Ledger()
    url = f"kafka://{topic.servers}/{topic.name}"
    await trio.to_thread.run_sync(make_cluster, url, 1, *INIT)
    library = clock_library(tmp_path)
    clock = ShiftedClock(tmp_path / "shift")
    shifted = ("env", f"LD_PRELOAD={library}", f"TICKWHEEL_CLOCK_SHIFT={tmp_path / 'shift'}", sys.executable)
    with ExitStack() as stack:
        nodes = []
        for number, root, program in (
            (1, disk, ()),
            (2, tmp_path, ()),
            (3, tmp_path, shifted),
        ):
            nodes.append(NodeDaemon(number, url, root / f"node-{number}", program))
            stack.callback(nodes[-1].end)
        daemons = ClusterDaemons(nodes, kafka, ledger, rng, clock, disk)
        kinds = [kind for kind in os.environ.get("TICKWHEEL_CLUSTER_KINDS", "").split(",") if kind]
        load = ClusterMixedLoad([node.url for node in nodes], ledger, drawn)

        async def until() -> None:
            await daemons.wait_joined()
            for _ in range(min(A_LOOP, EACH - loop * A_LOOP)):
                each = kinds or some_of(list(daemons.kinds), 2)
                for kind in rng.sample(each, len(each)):
                    began_s = trio.current_time()
                    await daemons.harm(kind)
                    gaps = ", ".join(f"{gap_s:.2f}" for gap_s in daemons.gaps_s[kind][-3:])
                    print(
                        f"{kind}: answers after {gaps} s, whole after {trio.current_time() - began_s:.2f} s"
                    )

        await load.run(until)
        for node in nodes:
            assert await trio.to_thread.run_sync(node.stop) == 0
    for kind, gaps_s in daemons.gaps_s.items():
        if gaps_s:
            print(
                f"{kind}: {len(gaps_s)} times, first answer p50 {median(gaps_s):.2f} s, at most {max(gaps_s):.2f} s"
            )
    print(told(ledger), f", earliest {ledger.earliest_ms} ms")
    assert ledger.received_after_confirmed_ack == []
    assert ledger.earliest_ms >= -SKEW_MS, "it came early"
    assert set(ledger.given.values()) == {1}, "given out twice with one epoch"
    check_schedule(ledger)
    async with KafkaLog(topic.servers, parse_cluster_url(url).topic) as log:
        records = await records_of(log)
    new = tmp_path / "new"
    new.mkdir()
    directories = [*(node.directory for node in nodes), new]
    await trio.to_thread.run_sync(
        check_replicas, directories, records, SETTINGS, now_ms(), lambda store: check_store(store, ledger)
    )
    shutil.rmtree(new)
