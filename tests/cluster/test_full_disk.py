"""The disk of a node that owns the log of a real Kafka is full: another node goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.conftest import Topic
from tests.cluster.test_serving_nodes import wait
from tests.support.cluster.daemons import NodeDaemon
from tests.support.stores.small_disk import fill, small_tmpfs
from tickwheel import sync
from tickwheel.errors import DiskFull
from tickwheel_bench.cluster.serving import make_cluster

DISK_BYTES = 512 << 20
PATIENCE_S = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path / "disk", DISK_BYTES) as path:
        yield path


def test_a_node_that_has_room_goes_on(topic: Topic, tmp_path: Path, disk: Path) -> None:
    url = f"kafka://{topic.servers}/{topic.name}"
    make_cluster(url, 1, "--segment-bytes", "28MiB")
    with ExitStack() as stack:
        small = NodeDaemon(1, url, disk / "node-1")
        stack.callback(small.end)
        wait(small.is_ready, "an owner")
        large = NodeDaemon(2, url, tmp_path / "node-2")
        stack.callback(large.end)
        wait(lambda: large.standing()["has_joined"], "another node")
        ballast = disk / "ballast"
        sent: list[str] = []
        refused = 0
        with sync.Client(f"{small.url},{large.url}", timeout=PATIENCE_S) as client:
            while not large.is_ready():
                fill(ballast)  # also what was just given back
                key = f"key-{len(sent)}"
                try:
                    client.send("t", bytes(500_000), key=key)
                    sent.append(key)
                except DiskFull:
                    refused += 1
            client.send("t", b"there is room", key="the last")
            rows = client.query("select key from messages where topic = 't'").rows
        assert refused
        assert sorted(row[0] for row in rows) == sorted([*sent, "the last"])
        found = small.standing()
        assert (found["is_disk_full"], found["has_joined"]) == (True, False)
        ballast.unlink()
        wait(lambda: small.standing()["has_joined"], "room")
        assert small.standing()["is_disk_full"] is False
        assert large.is_ready(), "nothing is handed back"
        assert [large.stop(), small.stop()] == [0, 0]
