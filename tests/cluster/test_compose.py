"""deploy/compose.yaml: its settings exist, and three brokers of Kafka and three nodes run with them, as processes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.clients.http_client import get
from tests.support.cluster.kafka import needs_kafka
from tickwheel import sync
from tickwheel_bench.cluster.kafka import Kafka, start_all
from tickwheel_bench.processes import free_port
from tickwheel_broker.config.fields import FIELDS
from tickwheel_broker.config.load import load

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose.yaml"
BROKERS, NODES = ("kafka1", "kafka2", "kafka3"), ("node1", "node2", "node3")
PATIENCE_S = 120.0


def services() -> dict[str, Any]:
    loaded = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    found: dict[str, Any] = loaded["services"]
    assert found.keys() == {*BROKERS, *NODES}
    volumes = [volume.partition(":")[0] for one in found.values() for volume in one["volumes"]]
    assert sorted(volumes) == sorted(loaded["volumes"])
    return found


def environment_of(service: str) -> dict[str, str]:
    """As compose gives it: values are text."""
    return {name: str(value) for name, value in services()[service]["environment"].items()}


def properties_of(broker: str) -> dict[str, str]:
    """What Kafka's image makes of it."""
    found = environment_of(broker)
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in found.items()
        if name.startswith("KAFKA_")
    }


@pytest.mark.parametrize("node", NODES)
def test_the_settings_of_the_nodes_exist_and_fit(node: str) -> None:
    environment = environment_of(node)
    assert environment.keys() <= {field.variable for field in FIELDS.values()}
    settings = load(environment=environment, flags={"data_dir": "/var/lib/tickwheel"}).settings
    assert f"node{settings.node}" == node
    servers = settings.cluster.removeprefix("kafka://").partition("/")[0].split(",")
    assert [server.partition(":")[0] for server in servers] == list(BROKERS)
    published = [port.split(":") for port in services()[node]["ports"]]
    assert {host for host, _, _ in published} == {"127.0.0.1"}, "it is insecure"
    (port,) = [port for _, port, inside in published if inside == "7411"]
    assert settings.advertised_url == f"tickwheel://127.0.0.1:{port}"
    ours = {int(properties_of(broker)["group.min.session.timeout.ms"]) for broker in BROKERS}
    assert max(ours) <= settings.cluster_timeout_ms


def test_a_lost_broker_costs_nothing() -> None:
    for broker in BROKERS:
        found = properties_of(broker)
        assert f"kafka{found['node.id']}" == broker
        assert found["advertised.listeners"] == f"PLAINTEXT://{broker}:9092"
        assert f"{found['node.id']}@{broker}:9093" in found["controller.quorum.voters"].split(",")
        assert found["offsets.topic.replication.factor"] == "3"
        assert found["min.insync.replicas"] == "2"
        (volume,) = services()[broker]["volumes"]
        assert volume.partition(":")[2] == found["log.dirs"], "what it has outlives the container"


class Machines:
    """The containers as processes, whose names are ports of this machine."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self._root, self._stack = root, stack
        self.brokers: dict[str, Kafka] = {}
        self._ports = {f"{name}:{port}": free_port() for name in BROKERS for port in ("9092", "9093")}
        self._ports |= {f"{name}:{port}": free_port() for name in NODES for port in ("7411", "7412")}
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def here(self, text: str) -> str:
        for name, port in self._ports.items():
            text = text.replace(name, f"127.0.0.1:{port}")
        return text

    def http(self, node: str) -> str:
        return f"http://127.0.0.1:{self._ports[f'{node}:7412']}"

    def url(self) -> str:
        return "tickwheel://" + ",".join(f"127.0.0.1:{self._ports[f'{node}:7411']}" for node in NODES)

    def start_brokers(self) -> None:
        for name in BROKERS:
            settings = {key: self.here(value) for key, value in properties_of(name).items()}
            listeners = [f"PLAINTEXT://{name}:9092", f"CONTROLLER://{name}:9093"]
            settings["listeners"] = self.here(",".join(listeners))
            settings["log.dirs"] = str(self._root / name / "data")
            self.brokers[name] = broker = Kafka(self._root / name, dict(settings))
            broker.port = self._ports[f"{name}:9092"]
            self._stack.callback(broker.kill)
        start_all(self.brokers.values())

    def environment(self, node: str) -> Mapping[str, str]:
        ours = {
            **environment_of(node),
            "TICKWHEEL_LISTEN_HOST": "127.0.0.1",
            "TICKWHEEL_HTTP_HOST": "127.0.0.1",
            "TICKWHEEL_LISTEN_PORT": str(self._ports[f"{node}:7411"]),
            "TICKWHEEL_HTTP_PORT": str(self._ports[f"{node}:7412"]),
            "TICKWHEEL_HTTP_LISTEN": "true",  # as the image has it
            "TICKWHEEL_ADVERTISED_URL": f"tickwheel://127.0.0.1:{self._ports[f'{node}:7411']}",
            "TICKWHEEL_DATA_DIR": str(self._root / node),
        }
        return os.environ | {name: self.here(value) for name, value in ours.items()}

    def run(self, words: str) -> None:
        """The command that the file says, in the container of a node."""
        _, node, words = words.split(maxsplit=2)
        done = subprocess.run(
            [sys.executable, "-m", "tickwheel", *shlex.split(self.here(words))],
            env=self.environment(node), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def start_nodes(self) -> None:
        for node in NODES:
            with (self._root / f"{node}.log").open("wb") as log:
                self.nodes[node] = process = subprocess.Popen(
                    [sys.executable, "-m", "tickwheel", "serve"],
                    env=self.environment(node), stdout=log, stderr=log,
                )  # fmt: skip
            self._stack.callback(process.wait)
            self._stack.callback(process.kill)

    def wait(self, said: str, *nodes: str) -> str:
        """The first of the nodes whose `/readyz` says so."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            for node in nodes:
                try:
                    if said in get(f"{self.http(node)}/readyz").text:
                        return node
                except OSError:
                    pass  # it has not begun to listen
            time.sleep(0.1)
        logs = [(self._root / f"{node}.log").read_text()[-2_000:] for node in nodes]
        raise AssertionError("\n".join([f"{said} was not said", *logs]))


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(tmp_path, stack)


@needs_kafka
def test_three_brokers_and_three_nodes_with_these_settings_lose_one_of_each(machines: Machines) -> None:
    (words,) = re.findall(r"compose.yaml (run --rm .*)", COMPOSE.read_text(encoding="utf-8"))
    machines.start_brokers()
    machines.run(words.replace("run --rm", "run"))
    machines.start_nodes()
    owner = machines.wait('"role":"owner"', *NODES)
    for node in NODES:
        machines.wait('"has_joined":true', node)
    with sync.Client(machines.url(), timeout=60) as client:
        client.send("t", b"before", key="1")
        machines.nodes[owner].kill()
        machines.brokers[BROKERS[0]].kill()
        left = [node for node in NODES if node != owner]
        assert machines.wait('"role":"owner"', *left) in left
        client.send("t", b"after", key="2")
        with client.subscribe("t", group="g") as subscription:
            bodies = set()
            for message in subscription:
                bodies.add(message.body)
                message.ack(confirm=True)
                if len(bodies) == 2:
                    break
    assert bodies == {b"before", b"after"}
