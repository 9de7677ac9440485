"""Nodes of a cluster on a real Kafka: processes that are killed, stopped, drained and started again; and commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from tests.cluster.conftest import Topic
from tests.support.cluster.daemons import NodeDaemon
from tickwheel import sync
from tickwheel.errors import TickwheelError

T = TypeVar("T")

PATIENCE_S = 60.0
BOUND_S = 20.0
"""From the end of an owner to the first answer of the next: far more than it takes, machines are busy."""


def tickwheel(*words: str) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tickwheel", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def wait(find: Callable[[], T | None], what: str, node: NodeDaemon | None = None) -> T:
    """Ask until there is something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        found = find()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} has not come\n{node.events()[-30:] if node else ''}")


class Nodes:
    """Three nodes of one cluster, and what was sent to them."""

    def __init__(self, url: str, root: Path, stack: ExitStack) -> None:
        self.url = url
        self.all: list[NodeDaemon] = []
        for number in (1, 2, 3):
            self.all.append(NodeDaemon(number, url, root / f"node-{number}"))
            stack.callback(self.all[-1].end)
        self.sent: list[str] = []

    def owner(self, *, but: NodeDaemon | None = None) -> NodeDaemon:
        def found() -> NodeDaemon | None:
            return next(
                (one for one in self.all if one is not but and one.is_ready()),
                None,
            )

        return wait(found, "an owner", self.all[0])

    def wait_joined(self, *nodes: NodeDaemon) -> None:
        for node in nodes:
            wait(lambda node=node: node.standing()["has_joined"], f"node {node.number} has joined", node)

    def send(self, owner: NodeDaemon, count: int = 200) -> None:
        keys = [f"key-{len(self.sent) + number}" for number in range(count)]
        with sync.Client(owner.url, timeout=10) as client:
            client.send_many("t", [key.encode() for key in keys], keys=keys)
        self.sent += keys  # all of them are acknowledged

    def check(self, owner: NodeDaemon) -> None:
        """All that was acknowledged is there, once."""
        with sync.Client(owner.url, timeout=10) as client:
            rows = client.query("select key from messages where topic = 't'").rows
        assert sorted(row[0] for row in rows) == sorted(self.sent)


@pytest.fixture
def nodes(topic: Topic, tmp_path: Path) -> Iterator[Nodes]:
    url = f"kafka://{topic.servers}/{topic.name}"
    made = tickwheel("cluster", "init", url, "--replication-factor", "1", "--json")
    assert made.returncode == 0, made.stderr
    with ExitStack() as stack:
        yield Nodes(url, tmp_path, stack)


@pytest.mark.promise("in-a-cluster")
def test_a_killed_owner_is_replaced_and_nothing_is_lost(nodes: Nodes) -> None:
    owner = nodes.owner()
    nodes.send(owner)
    nodes.wait_joined(*nodes.all)
    for _ in range(3):
        owner.kill()
        began_s = time.monotonic()
        following = nodes.owner()
        nodes.send(following)
        assert time.monotonic() - began_s < BOUND_S
        nodes.check(following)
        owner.start()
        nodes.wait_joined(owner)
        owner = following


@pytest.mark.promise("in-a-cluster")
def test_an_owner_that_sleeps_is_replaced_and_answers_nothing_stale(nodes: Nodes) -> None:
    zombie = nodes.owner()
    nodes.send(zombie)
    nodes.wait_joined(*nodes.all)
    with sync.Client(zombie.url, timeout=5) as client:
        client.topics()
        zombie.sleep()
        following = nodes.owner(but=zombie)
        nodes.send(following)
        zombie.wake()

        def answers_well() -> bool:
            with suppress(TickwheelError):  # the client goes on to the new owner by itself
                found = {topic.name: topic.messages for topic in client.topics()}
                assert found["t"] == len(nodes.sent), "a stale answer"
            return zombie.standing()["role"] == "follower"

        wait(answers_well, "the zombie follows again", zombie)
    assert zombie.standing()["role"] == "follower"
    nodes.check(following)


@pytest.mark.promise("in-a-cluster")
def test_drained_and_restarted_one_after_the_other(nodes: Nodes) -> None:
    owner = nodes.owner()
    nodes.send(owner)
    nodes.wait_joined(*nodes.all)
    drained = tickwheel("cluster", "drain", owner.http, "--for", "30s", "--json")
    assert drained.returncode == 0, drained.stderr
    assert json.loads(drained.stdout)["is_drained"] is True
    following = nodes.owner(but=owner)
    nodes.send(following)
    status = tickwheel("cluster", "status", nodes.url, "--json")
    assert json.loads(status.stdout)["owner"] == following.number, status.stderr
    for node in nodes.all:
        assert node.stop() == 0
        place = tickwheel("cluster", "status", "--data", str(node.directory), "--json")
        assert json.loads(place.stdout)["cluster"] == nodes.url.rpartition("/")[2]
        node.start()
        nodes.wait_joined(node)
        nodes.send(nodes.owner())
    nodes.check(nodes.owner())


def test_small_segments_say_with_which_limits_nodes_start(topic: Topic, tmp_path: Path) -> None:
    url = f"kafka://{topic.servers}/{topic.name}"
    made = tickwheel("cluster", "init", url, "--replication-factor", "1", "--segment-bytes", "12MiB")
    assert made.returncode == 0, made.stderr
    options = made.stderr.partition("with: ")[2].split()
    assert options[::2] == ["--max-frame-bytes", "--max-body-bytes"]
    frame, body = options[1::2]
    refused = tickwheel("serve", "--data", str(tmp_path / "x"), "--cluster", url, "--node", "2")
    assert (refused.returncode, "max_frame_bytes" in refused.stderr) == (78, True), refused.stderr
    node = NodeDaemon(1, url, tmp_path / "node", max_frame_bytes=frame, max_body_bytes=body)
    try:
        wait(node.is_ready, "an owner", node)
        with sync.Client(node.url, timeout=10) as client:
            client.send("t", b"kept")
            assert [row[0] for row in client.query("select body from messages").rows] == [b"kept"]
    finally:
        node.end()


def test_what_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    owner = nodes.owner()
    again = tickwheel("cluster", "init", nodes.url, "--replication-factor", "1")
    assert (again.returncode, "cluster_exists" in again.stderr) == (1, True)
    owner.stop()
    plain = tickwheel("serve", "--data", str(owner.directory), "--listen-port", "0")
    assert (plain.returncode, "belongs to a node of cluster" in plain.stderr) == (78, True)
    repair = tickwheel("repair", str(owner.directory))
    assert "belongs to a node of cluster" in repair.stderr
    other = tickwheel("cluster", "status", nodes.url + "x")
    assert (other.returncode, "no_cluster" in other.stderr) == (78, True), other.stderr
    assert len(other.stderr.splitlines()) == 2, "what is wrong, and what to do"
    copies = tickwheel("cluster", "init", nodes.url + "x", "--wait", "1s")  # three, of one broker
    assert (copies.returncode, "--replication-factor 1" in copies.stderr) == (1, True), copies.stderr
    missing = tickwheel("serve", "--data", str(tmp_path / "x"), "--cluster", nodes.url + "x", "--node", "1")
    assert (missing.returncode, "no_cluster" in missing.stderr) == (78, True), missing.stderr
    assert "replica" not in os.listdir(tmp_path / "x")
