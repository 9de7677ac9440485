"""A real Kafka of our own, for benchmarks and tests: brokers from the jars that `make kafka` has fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

from tickwheel_bench.processes import free_port
from tickwheel_bench.server import Server

LIBS: Final = Path(
    os.environ.get("KAFKA_LIBS", Path(__file__).resolve().parents[3] / "build" / "kafka" / "libs")
)
_CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qk"


def is_there() -> bool:
    """Whether this machine can run Kafka."""
    return any(LIBS.glob("kafka_2.13-*.jar")) and shutil.which("java") is not None


class Kafka(Server):
    """One broker that is its own controller. What it has is below `directory`, and stays there when it is killed."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, object] | None = None,
        *,
        number: int = 1,
        controllers: Mapping[int, int] | None = None,
    ) -> None:
        """`settings`: more of the broker's. `controllers`: the controller's port of each broker, where there are
        several, by their numbers."""
        super().__init__(directory, "kafka.log")
        controllers = controllers or {number: free_port()}
        self.number = number
        self._properties = directory / "server.properties"
        listener = f"PLAINTEXT://127.0.0.1:{self.port}"
        properties: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": ",".join(
                f"{one}@127.0.0.1:{port}" for one, port in controllers.items()
            ),
            "listeners": f"{listener},CONTROLLER://127.0.0.1:{controllers[number]}",
            "advertised.listeners": listener,
            "controller.listener.names": "CONTROLLER",
            "log.dirs": directory / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            "auto.create.topics.enable": "true",  # as Kafka has it: no client of ours may cause it
            "num.partitions": 1,
            "log.cleaner.enable": "false",
            # One that was killed may come back when its session has ended.
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 500,
            **(settings or {}),
        }
        self._settings = properties
        self.configure({})

    def configure(self, settings: Mapping[str, object]) -> None:
        """More of its settings, or others, before it starts."""
        self._settings |= settings
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))

    @property
    def servers(self) -> str:
        """For `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @staticmethod
    def _java(main: str, *words: str) -> list[str]:
        options = ["-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        return ["java", *options, "-cp", f"{LIBS}/*", main, *words]

    def command(self) -> list[str]:
        """See Background."""
        return self._java("kafka.Kafka", str(self._properties))

    def start(self) -> None:
        """Returns when it takes connections."""
        if not (self.directory / "data").is_dir():
            words = ("format", "-t", _CLUSTER_ID, "-c", str(self._properties))
            subprocess.run(self._java("kafka.tools.StorageTool", *words), check=True, capture_output=True)
        super().start()


@contextmanager
def kafka(directory: Path, settings: dict[str, object] | None = None) -> Iterator[Kafka]:
    """One that runs."""
    broker = Kafka(directory, settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


@contextmanager
def three_brokers(directory: Path) -> Iterator[list[Kafka]]:
    """That run and keep copies of each other's topics."""
    controllers = {number: free_port() for number in (1, 2, 3)}
    settings: dict[str, object] = {"offsets.topic.replication.factor": 3, "min.insync.replicas": 2}
    brokers = [
        Kafka(directory / f"kafka{number}", settings, number=number, controllers=controllers)
        for number in controllers
    ]
    with ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.kill)
        start_all(brokers)
        yield brokers


def start_all(brokers: Iterable[Kafka]) -> None:
    """At once: one alone has no majority, and does not start."""
    threads = [Thread(target=broker.start) for broker in brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
