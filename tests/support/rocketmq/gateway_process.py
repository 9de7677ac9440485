"""`tickwheel gateway` as a process."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import TracebackType

from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S


class Gateway:
    """The process."""

    def __init__(self, url: str, folder: Path, *flags: str) -> None:
        shell = Shell(folder, url)
        self.process = shell.start(
            "gateway", "--json", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *flags
        )
        line = self.process.stdout.readline()
        assert line, self.said()
        told = json.loads(line)
        (self.address,) = told["listen"]
        self.metrics = told["metrics"]

    def said(self) -> str:
        """On standard error, all of it: when it has ended."""
        return self.process.stderr.read().decode()

    def end(self, *how: signal.Signals) -> int:
        """Ask it to end, and wait until it has."""
        for one in how or (signal.SIGTERM,):
            self.process.send_signal(one)
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Gateway:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
