"""What is measured: a broker of Tickwheel with its gateway, and RocketMQ itself, each with the same clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from tickwheel_bench.daemon import Daemon
from tickwheel_bench.rocketmq.their_server import Options, RocketMQ, Topic, rocketmq
from tickwheel_bench.usage import Processes

OURS: Final = "tickwheel"
THEIRS: Final = {"rocketmq-async": "ASYNC", "rocketmq-sync": "SYNC"}
"""RocketMQ as it is by default, which answers before the disk has a message, and as it is durable."""


class Server(Protocol):
    """Clients of RocketMQ can be its clients."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str: ...

    @property
    def broker_url(self) -> str:
        """For clients of Tickwheel; empty: there is none."""

    @property
    def processes(self) -> Processes: ...

    def create(self, topic: str, *, is_delayed: bool = False) -> None:
        """A topic, so that clients find it."""


class Ours:
    """A broker of Tickwheel, durable, with the gateway that it has started."""

    name = OURS

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        (self.address,) = daemon.announced["rocketmq"]

    @property
    def broker_url(self) -> str:
        """See Server."""
        return self._daemon.url

    @property
    def processes(self) -> Processes:
        """See Server."""
        return self._daemon.processes("gateway")

    def create(self, topic: str, *, is_delayed: bool = False) -> None:
        """They are made when they are used."""


class Theirs:
    """RocketMQ: a name server, and broker and proxy in one process."""

    broker_url = ""

    def __init__(self, name: str, server: RocketMQ) -> None:
        self.name = name
        self.address = server.address
        self._server = server

    @property
    def processes(self) -> Processes:
        """See Server."""
        names, broker = self._server.pids
        return {"name server": [names], "broker and proxy": [broker]}

    def create(self, topic: str, *, is_delayed: bool = False) -> None:
        """See Server."""
        self._server.create([Topic(topic, "DELAY" if is_delayed else "NORMAL")])


@contextmanager
def running(name: str, directory: Path) -> Iterator[Server]:
    """One that runs; `name` is one of OURS and THEIRS."""
    directory.mkdir(parents=True)
    if name == OURS:
        flags = ("--durability", "always", "--rocketmq", "--rocketmq-listen", "127.0.0.1:0")
        with Daemon(directory, *flags) as daemon:
            yield Ours(daemon)
        return
    flush = THEIRS[name]
    with rocketmq(directory, Options(flush="SYNC" if flush == "SYNC" else "ASYNC")) as server:
        yield Theirs(name, server)
