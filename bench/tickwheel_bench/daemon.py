"""A real broker in a process of its own, for one benchmark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tickwheel_bench.processes import children_of

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Daemon:
    """``tickwheel serve`` on a directory. Use as a context manager; ``kill`` ends it as a crash would."""

    def __init__(self, directory: Path, *flags: str, program: Sequence[str] = ()) -> None:
        """`program` instead of ``tickwheel``: one that does the same under other circumstances."""
        self.directory = directory
        self.started = time.perf_counter()
        own = program or [str(Path(sys.executable).with_name("tickwheel"))]
        command = [*own, "serve", "--json", "--data", str(directory), "--listen-port", "0"]
        self._log = open(directory.parent / "broker.log", "ab")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=self._log)
        self.announced = self._read_announced()
        self.url = str(self.announced["urls"][0])

    def _read_announced(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = Path(self._log.name).read_text()[-2000:]
            raise RuntimeError(f"the broker did not start: {said}")
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        """Processor seconds used so far."""
        return cpu_s_of(self.pid)

    def children_cpu_s(self) -> float:
        """The same of the processes that it has started, such as the one that serves HTTP."""
        return sum(cpu_s_of(child) for child in children_of(self.pid))

    def memory_bytes(self, field: str) -> int:
        """A field of /proc/PID/status: ``RssAnon``, ``RssFile``, ``VmHWM``."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        raise KeyError(field)

    def kill(self) -> None:
        """As a crash: no chance to write anything."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def cpu_s_of(pid: int) -> float:
    """Processor seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def disk_bytes(directory: Path) -> int:
    """What all files of a data directory occupy."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
