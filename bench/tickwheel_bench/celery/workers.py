"""The program ``celery``, in a process of its own, with the children of its pool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tickwheel_bench.celery.app import ENVIRONMENT
from tickwheel_bench.processes import children_of, guard


class Worker:
    """``celery worker``. Use as a context manager."""

    def __init__(self, told: str, log: Path, *flags: str) -> None:
        """`told`: see `app.settings`."""
        self._log = log
        command = [
            *(sys.executable, "-m", "celery", "-A", "tickwheel_bench.celery.app", "worker"),
            *(
                "--loglevel",
                "WARNING",
                "--without-gossip",
                "--without-mingle",
                "--hostname",
                f"{log.stem}@%h",
            ),
            *flags,
        ]
        with open(log, "ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, ENVIRONMENT: told},
                start_new_session=True,
            )
        self._guard = guard(self._process.pid)

    @property
    def pid(self) -> int:
        """Of the process that talks to the broker."""
        return self._process.pid

    def rss_bytes(self) -> int:
        """Memory of that process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"the worker has ended: see {self._log}")

    def kill(self) -> None:
        """As a crash, with its children."""
        children = children_of(self.pid)
        self._process.kill()
        self._process.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._gone()

    def stop(self) -> None:
        """In good order; after a while without mercy."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
                return
        self._gone()

    def _gone(self) -> None:
        self._guard.kill()
        self._guard.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
