"""A real broker in a process of its own, for one benchmark."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import anyio

from tickwheel import Client
from tickwheel_bench.processes import family_of
from tickwheel_bench.program import Program, installed
from tickwheel_bench.usage import Processes

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Daemon(Program):
    """``tickwheel serve`` on a directory. Use as a context manager; ``kill`` ends it as a crash would."""

    def __init__(self, directory: Path, *flags: str, program: Sequence[str] = ()) -> None:
        """`program` instead of ``tickwheel``: one that does the same under other circumstances."""
        self.directory = directory
        command = [
            *(program or [installed("tickwheel")]),
            "serve",
            "--json",
            "--data",
            str(directory),
            "--listen-port",
            "0",
        ]
        self._log = open(directory.parent / "broker.log", "ab")  # noqa: SIM115 - closed with the process
        super().__init__([*command, "--listen-port", "0", *flags], limit_s=None, errors=self._log)
        try:
            self.announced: dict[str, Any] = self.line()
        except RuntimeError:
            said = Path(self._log.name).read_text()[-2000:]
            raise RuntimeError(f"the broker did not start: {said}") from None
        self.url = str(self.announced["urls"][0])

    def processes(self, children: str) -> Processes:
        """The broker's process, and by the name `children` those that it has started, such as one that serves HTTP."""
        pid, *started = family_of(self.pid)
        return {children: started, "broker": [pid]}

    def run(self, work: Callable[[Client, *Ts], Awaitable[T]], *arguments: *Ts, timeout_s: float = 30.0) -> T:
        """Runs `work` to its end, in asyncio and with a new client. `timeout_s`: what a request may take."""

        async def connected() -> T:
            async with Client(self.url, timeout=timeout_s) as client:
                return await work(client, *arguments)

        return anyio.run(connected, backend="asyncio")

    def stop(self) -> None:
        """Ends it in good order."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(60)
        super().stop()
        self._log.close()


def disk_bytes(directory: Path) -> int:
    """What all files of a data directory occupy."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
