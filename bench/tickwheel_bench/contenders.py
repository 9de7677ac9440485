"""Servers that Tickwheel is measured against, and Tickwheel itself in the same role.

Each is a process of its own on loopback, as durable as it can be unless it is told otherwise.
"""

from __future__ import annotations

import shutil
import subprocess
from abc import abstractmethod
from pathlib import Path
from typing import Final

from tickwheel_bench.processes import free_port
from tickwheel_bench.program import installed
from tickwheel_bench.server import Server

RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class Contender(Server):
    """A server that takes messages of its clients."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for its clients."""

    @staticmethod
    def missing() -> str | None:
        """Why this machine has no such server, and what brings it; None if it has."""
        return None


class Tickwheel(Contender):
    """``tickwheel serve``."""

    def __init__(self, directory: Path, *flags: str) -> None:
        super().__init__(directory)
        self._flags = flags

    @property
    def url(self) -> str:
        """See Contender."""
        return f"tickwheel://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """See Background."""
        place = ["--data", str(self.directory / "data"), "--listen-port", str(self.port)]
        return [installed("tickwheel"), "serve", *place, *self._flags]


class Redis(Contender):
    """Redis writes each change to its disk before it answers (appendfsync always), if it `is_durable`."""

    def __init__(self, directory: Path, *, is_durable: bool = True) -> None:
        super().__init__(directory)
        self._is_durable = is_durable

    @property
    def url(self) -> str:
        """See Contender."""
        return f"redis://127.0.0.1:{self.port}/0"

    @staticmethod
    def missing() -> str | None:
        """See Contender."""
        if shutil.which("redis-server") is not None:
            return None
        return "redis-server is not on this machine: `apt-get install redis-server` brings it"

    def command(self) -> list[str]:
        """See Background."""
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes" if self._is_durable else "no",
            "appendfsync": "always",
        }
        return ["redis-server", *(word for name, value in options.items() for word in (f"--{name}", value))]


class RabbitMQ(Contender):
    """Queues on the disk, and publishers wait until theirs have been written (``confirm_publish``)."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._names_port, self._nodes_port = free_port(), free_port()

    @staticmethod
    def missing() -> str | None:
        """See Contender."""
        if RABBITMQ.exists():
            return None
        return f"{RABBITMQ} is not on this machine: `apt-get install rabbitmq-server` brings it"

    @property
    def url(self) -> str:
        """See Contender."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def command(self) -> list[str]:
        """See Background."""
        return [str(RABBITMQ)]

    def environment(self) -> dict[str, str]:
        """See Background."""
        plugins = self.directory / "plugins"
        plugins.write_text("[].\n")
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._nodes_port),
            "RABBITMQ_MNESIA_BASE": str(self.directory),
            "RABBITMQ_LOG_BASE": str(self.directory),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": loopback,
        }

    def stop(self) -> None:
        """See Background. Erlang's register of names is ours, too."""
        super().stop()
        epmd = shutil.which("epmd")
        if epmd is not None:
            subprocess.run([epmd, "-port", str(self._names_port), "-kill"], capture_output=True, check=False)
