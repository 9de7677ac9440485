"""Brokers of Celery, each a server of its own on loopback, which can be killed and comes back with its data."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tickwheel_bench.daemon import cpu_s_of
from tickwheel_bench.processes import children_of, free_port, guard, wait_until
from tickwheel_bench.redis_server import command as redis_command

VISIBILITY_S: Final = 5
"""After so long Redis gives a task again that was not acked. An hour is the default: a killed worker's tasks would wait
so long."""
_RABBITMQ: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class Broker(ABC):
    """A server, and how Celery reaches it. Use as a context manager."""

    options: Mapping[str, Any] = {}
    """Celery's ``broker_transport_options``."""
    killed_options: Mapping[str, Any] = {}
    """More of them where workers are killed. Elsewhere Redis would give tasks again that only wait in a worker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Celery's ``broker_url``."""

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it in the foreground."""

    def environment(self) -> dict[str, str]:
        """Added to ours."""
        return {}

    def cpu_s(self) -> float:
        """Processor seconds that the server has used so far, with what it has started."""
        assert self._process is not None
        return sum(map(cpu_s_of, _family(self._process.pid)))

    def start(self) -> None:
        """Returns when it takes connections."""
        with open(self.directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment()},
                start_new_session=True,  # a script may be before the server: they are one group
            )
        self._guard = guard(-self._process.pid)
        wait_until(self._listens, lambda: f"it did not start: see {self.directory}/server.log")

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def kill(self) -> None:
        """As a crash."""
        assert self._process is not None
        self._end()

    def stop(self) -> None:
        """In good order."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(60)
            self._end()

    def _end(self) -> None:
        assert self._process is not None
        assert self._guard is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._guard.kill()
        self._guard.wait()
        self._process = None

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Tickwheel(Broker):
    """``tickwheel serve``."""

    @property
    def url(self) -> str:
        """See `Broker`."""
        return f"tickwheel://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """See `Broker`."""
        program = str(Path(sys.executable).with_name("tickwheel"))
        place = ["--data", str(self.directory / "data"), "--listen-port", str(self.port)]
        return [program, "serve", *place, "--ack-wait", f"{VISIBILITY_S}s"]


class Redis(Broker):
    """Each change is on the disk before it is answered."""

    killed_options: Mapping[str, Any] = {"visibility_timeout": VISIBILITY_S}

    @property
    def url(self) -> str:
        """See `Broker`."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        """See `Broker`."""
        return redis_command(self.directory, self.port)


class RabbitMQ(Broker):
    """Queues on the disk, and publishers wait until theirs have been written (``confirm_publish``)."""

    options: Mapping[str, Any] = {"confirm_publish": True}

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._names_port, self._nodes_port = free_port(), free_port()

    @property
    def url(self) -> str:
        """See `Broker`."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def command(self) -> list[str]:
        """See `Broker`."""
        return [str(_RABBITMQ)]

    def environment(self) -> dict[str, str]:
        """See `Broker`."""
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
        """See `Broker`. Erlang's register of names is ours, too."""
        super().stop()
        epmd = shutil.which("epmd")
        if epmd is not None:
            subprocess.run([epmd, "-port", str(self._names_port), "-kill"], capture_output=True, check=False)


def _family(pid: int) -> list[int]:
    return [pid, *(one for child in children_of(pid) for one in _family(child))]


def installed() -> dict[str, type[Broker]]:
    """Those that this machine has: ``apt-get install redis-server rabbitmq-server`` brings the others."""
    found: dict[str, type[Broker]] = {"tickwheel": Tickwheel}
    if shutil.which("redis-server"):
        found["redis"] = Redis
    if _RABBITMQ.exists():
        found["rabbitmq"] = RabbitMQ
    return found
