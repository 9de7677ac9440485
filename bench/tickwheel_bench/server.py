"""Programs of others beside Tickwheel, as processes of our own: they write logs, and leave nothing that runs."""

from __future__ import annotations

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from tickwheel_bench.processes import (
    PATIENCE_S,
    cpu_s_of,
    family_of,
    free_port,
    guard,
    listens,
    memory_bytes_of,
    wait_until,
)

_SHOWN: Final = 2_000
"""How many characters of a log tell why a program did not start."""


class Background(ABC):
    """A program and what it starts, one group of processes: they end when ours ends, however that comes. Use as a
    context manager."""

    end_within_s = PATIENCE_S
    """How long it may take to end in good order."""

    def __init__(self, log: Path) -> None:
        self.log = log.absolute()
        self.directory = self.log.parent
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command that starts it in the foreground."""

    def environment(self) -> Mapping[str, str]:
        """Variables that are added to ours."""
        return {}

    @property
    def pid(self) -> int:
        """The id of the process that was started first."""
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """Processor seconds used so far, with what it has started."""
        return sum(map(cpu_s_of, family_of(self.pid)))

    def memory_bytes(self, field: str) -> int:
        """A field of /proc/PID/status of the process that was started first."""
        assert self.is_running(), self.report()
        return memory_bytes_of(self.pid, field)

    def is_running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._process is not None and self._process.poll() is None

    def report(self) -> str:
        """The end of the log, for an error."""
        return f"the end of {self.log}:\n{self.log.read_text(errors='replace')[-_SHOWN:]}"

    def start(self) -> None:
        """Starts the program, and returns at once."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, **self.environment()},
                start_new_session=True,
            )
        self._guard = guard(-self._process.pid)

    def kill(self) -> None:
        """Ends all of its processes, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it in good order; after a while without mercy."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None or self._guard is None:
            return
        self._process.send_signal(how)
        self._process.send_signal(signal.SIGCONT)  # in case it was stopped
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self.end_within_s)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._guard.kill()  # before another process gets the number of this one
        self._guard.communicate()
        self._process = self._guard = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Server(Background):
    """A server on a free port of loopback. It can be killed, and comes back on the same port with its data."""

    up_within_s = PATIENCE_S
    """How long it may take to start."""

    def __init__(self, directory: Path, log: str = "server.log", port: int = 0) -> None:
        """`port`: where it listens [default: a free one]."""
        super().__init__(directory / log)
        self.port = port or free_port()

    def start(self) -> None:
        """Returns when it is up."""
        super().start()
        wait_until(self._is_up_or_failed, self.report, self.up_within_s)

    def is_up(self) -> bool:
        """Whether it takes connections."""
        return listens(self.port)

    def _is_up_or_failed(self) -> bool:
        assert self.is_running(), self.report()
        return self.is_up()
