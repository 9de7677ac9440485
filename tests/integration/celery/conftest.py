"""A daemon for the tests of this folder, and workers of Celery as programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import TracebackType

import pytest

from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel_bench.processes import wait_until

_numbers = count()


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all that does not stop it. Leases are short, so that they are renewed, and end, within a test."""
    with Daemon(tmp_path_factory.mktemp("celery") / "data", ack_wait="3s") as one:
        yield one


@pytest.fixture
def queue() -> str:
    """A queue that no other test uses."""
    return f"queue-{next(_numbers)}"


class Worker:
    """``celery -A app worker`` on a program of a test."""

    def __init__(self, program: str, directory: Path, *arguments: str, **environment: str) -> None:
        """`program` makes `app`, in a module `app`."""
        (directory / "app.py").write_text(program)
        self.log = directory / f"worker-{next(_numbers)}.log"
        self.name = f"w{next(_numbers)}@test"
        self._words = ["-A", "app", "worker", "-l", "INFO", "-n", self.name, *arguments]
        self._directory = directory
        self._environment = {**os.environ, "PYTHONPATH": str(directory), **environment}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", *self._words],
                cwd=self._directory,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that all of its processes can be killed
            )
        self.wait_for(" ready.")
        return self

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until it is in the log so often."""
        wait_until(lambda: self.log.read_text().count(text) >= times, lambda: self.log.read_text())

    def kill(self) -> None:
        """SIGKILL, for all of its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def suspend(self) -> None:
        """SIGSTOP, for all of its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """The end of that."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
