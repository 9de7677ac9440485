"""Three Kafka brokers beside a cluster of two nodes: what clients get, and how long they wait when a broker is lost."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio
from confluent_kafka.admin import AdminClient

from tickwheel import Client
from tickwheel_bench.cluster.kafka import LIBS, Kafka, is_there, three_brokers
from tickwheel_bench.cluster.serving import make_cluster, serving
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.processes import wait_until
from tickwheel_broker.config.cluster_url import parse_cluster_url

_TIMES: Final = 5
_PAUSE_S: Final = 0.01


def cluster_of_three(directory: Path, scale: float) -> dict[str, Any]:
    """The same as with one broker; then the one that leads the log is killed, and comes back, several times."""
    if not is_there():
        return {"skipped": f"no Kafka in {LIBS}: `make kafka` fetches it"}
    with three_brokers(directory / "kafka") as brokers:
        servers = ",".join(broker.servers for broker in brokers)
        figures = serving(directory / "nodes", scale, servers, copies=3)
        waited_s = _lose_brokers(directory / "lost", f"kafka://{servers}/lost", brokers)
        return figures | {
            "lost_broker_s": {"p50": median(waited_s), "longest": max(waited_s), "all": waited_s}
        }


def _lose_brokers(directory: Path, url: str, brokers: list[Kafka]) -> list[float]:
    """From each kill to the answer of a send that came after it, in s."""
    make_cluster(url, 3)
    directory.mkdir(parents=True)
    cluster = parse_cluster_url(url)
    topic, admin = cluster.topic, AdminClient({"bootstrap.servers": cluster.servers})
    waited_s = []
    with (
        Daemon(directory / "one", "--cluster", url, "--node", "1") as owner,
        Daemon(directory / "two", "--cluster", url, "--node", "2"),
    ):
        for _ in range(_TIMES):
            wait_until(lambda: _copies(admin, topic) == len(brokers), lambda: "a copy of the log is missing")
            (leader,) = [broker for broker in brokers if broker.number == _leader(admin, topic)]
            waited_s.append(round(owner.run(_lose, leader), 2))
            leader.start()
    return waited_s


async def _lose(client: Client, broker: Kafka) -> float:
    for _ in range(100):
        await client.send("t", b"before")
        await anyio.sleep(_PAUSE_S)
    await anyio.to_thread.run_sync(broker.kill)
    began_s = time.perf_counter()
    await client.send("t", b"after")
    return time.perf_counter() - began_s


def _leader(admin: AdminClient, topic: str) -> int:
    return int(admin.list_topics(topic, timeout=10).topics[topic].partitions[0].leader)


def _copies(admin: AdminClient, topic: str) -> int:
    return len(admin.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs)
