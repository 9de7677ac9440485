"""`tickwheel cluster init --from` on a real Kafka, as an operator runs it: a broker becomes a cluster, a node of it the
next cluster, as when Kafka has lost the topic, and a node of that a broker again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import trio

from tests.cluster.conftest import Topic
from tests.cluster.test_serving_nodes import PATIENCE_S, tickwheel, wait
from tests.support.cluster.daemons import INIT, NodeDaemon
from tests.support.processes.daemon_harness import Daemon
from tickwheel import sync
from tickwheel_broker.sharedlog.kafka.log import KafkaLog
from tickwheel_broker.sharedlog.shared_log import SharedLogUnavailable

SETTINGS: Final = {"segment_bytes": "28MiB", "ack_wait": "2s", "min_backoff": "100ms", "max_backoff": "2s"}
"""Of a broker, as `INIT` has them."""

KEYS: Final = [f"key-{number}" for number in range(1_200)]
LATER: Final = timedelta(seconds=12)

_SMALL_BATCHES: Final = """
from timerlog.replication import source
source.BATCH_BYTES = 700
from tickwheel_cli.main import main
main()
"""


def init_words(topic: Topic, directory: Path) -> tuple[str, ...]:
    url = f"kafka://{topic.servers}/{topic.name}"
    settings = [word for word in INIT if word not in ("--segment-bytes", "28MiB")]
    return (
        "cluster",
        "init",
        url,
        "--replication-factor",
        "1",
        "--from",
        str(directory),
        *settings,
        "--json",
    )


def init(topic: Topic, directory: Path) -> dict[str, Any]:
    made = tickwheel(*init_words(topic, directory))
    assert made.returncode == 0, made.stderr
    result: dict[str, Any] = json.loads(made.stdout)
    return result


def refused(code: str, *words: str) -> None:
    answer = tickwheel(*words)
    assert (answer.returncode, code in answer.stderr) == (78, True), answer.stderr


def kill_in_the_middle(topic: Topic, directory: Path) -> None:
    """Of an upload in many small batches."""

    async def wait_for_some() -> None:
        async with KafkaLog(f"{topic.servers}", f"tickwheel.{topic.name}") as log:
            while process.poll() is None:
                try:
                    if await log.end() > 20:
                        return
                except SharedLogUnavailable:
                    pass
                await trio.sleep(0.01)

    process = subprocess.Popen(
        [sys.executable, "-c", _SMALL_BATCHES, *init_words(topic, directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        trio.run(wait_for_some)
    finally:
        process.kill()
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -9, out + err


@contextmanager
def nodes(topic: Topic, root: Path, *numbers: int) -> Iterator[list[NodeDaemon]]:
    url = f"kafka://{topic.servers}/{topic.name}"
    all_nodes: list[NodeDaemon] = []
    try:
        for number in numbers:
            all_nodes.append(NodeDaemon(number, url, root / f"node-{number}"))
        yield all_nodes
    finally:
        for node in all_nodes:
            node.end()


def owner(of: list[NodeDaemon]) -> NodeDaemon:
    return wait(lambda: next((one for one in of if one.is_ready()), None), "an owner", of[0])


def keys_in(client: sync.Client) -> list[str]:
    return sorted(row[0] for row in client.query("select key from messages where topic = 't'").rows)


def take(client: sync.Client, count: int) -> set[str]:
    """Receives and acks so many."""
    found: set[str] = set()
    while len(found) < count:
        some = client.fetch("t", count=min(100, count - len(found)), wait=timedelta(seconds=5))
        assert some, f"only {len(found)} of {count}"
        found |= {message.key for message in some}
        some.ack(confirm=True)
    return found


def test_a_broker_a_cluster_the_next_cluster_and_a_broker(topic: Topic, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    with Daemon(alone, **SETTINGS) as broker, sync.Client(broker.url, timeout=10) as client:
        client.send_many("t", [key.encode() * 60 for key in KEYS], keys=KEYS)
        due_s = time.time() + LATER.total_seconds()
        client.send("t", b"later", key="later", delay=LATER)
        done = take(client, 100)
        refused_now = tickwheel(*init_words(topic, alone))
        assert (refused_now.returncode, "is in use" in refused_now.stderr) == (76, True), refused_now.stderr
        broker.kill()

    kill_in_the_middle(topic, alone)
    refused("cluster_unfinished", "cluster", "status", f"kafka://{topic.servers}/{topic.name}")
    refused(
        "cluster_unfinished",
        *("serve", "--cluster", f"kafka://{topic.servers}/{topic.name}", "--node", "1"),
        *("--data", str(tmp_path / "node-1"), "--listen-port", "0"),
    )
    with Daemon(alone, **SETTINGS) as broker:  # nothing was given away yet
        broker.kill()
    made = init(topic, alone)
    assert (made["went_on"], made["from"], made["same_log"]) == (True, "broker", True)
    refused("bad_directory", "serve", "--data", str(alone), "--listen-port", "0")

    with nodes(topic, tmp_path, 1, 2) as both:
        first = owner(both)
        wait(lambda: all(one.standing()["has_joined"] for one in both), "both have joined", first)
        with sync.Client(first.url, timeout=10) as client:
            assert keys_in(client) == sorted([*KEYS, "later"])
            assert not take(client, 500) & done
            first.kill()
        other = owner([one for one in both if one is not first])
        with sync.Client(other.url, timeout=10) as client:
            take(client, len(KEYS) - 100 - 500)
            (later,) = client.fetch("t", count=1, wait=timedelta(seconds=PATIENCE_S))
            assert (later.key, time.time() >= due_s) == ("later", True)
            client.send("t", b"unread", key="unread")
        assert other.stop() == 0

    # Kafka has lost the topic: of what is left, the next cluster is made.
    again = topic._replace(name=f"{topic.name}-again")
    made = init(again, other.directory)
    assert (made["from"], made["same_log"]) == ("replica", False)
    (tmp_path / "again").mkdir()
    with nodes(again, tmp_path / "again", 1) as (one,), sync.Client(owner([one]).url, timeout=10) as client:
        assert take(client, 2) == {"later", "unread"}, "what was not acked"
        client.send("t", b"last", key="last")
        one.stop()

    # And back.
    assert tickwheel("backup", str(tmp_path / "again" / "node-1"), str(tmp_path / "backup")).returncode == 0
    assert tickwheel("restore", str(tmp_path / "backup"), str(tmp_path / "data")).returncode == 0
    with Daemon(tmp_path / "data", **SETTINGS) as broker, sync.Client(broker.url, timeout=10) as client:
        assert "last" in keys_in(client)
