"""Forks whose output is read: what tests use of `subprocess.Popen`."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import BinaryIO

from tests.support.clients import forking
from tests.support.processes import stalls


class Piped:
    """A running program; `stdout` and `stderr` are pipes, and it is given no input."""

    def __init__(
        self,
        code: str,
        *arguments: str,
        modules: tuple[str, ...],
        folder: Path,
        environment: Mapping[str, str],
    ) -> None:
        out, its_out = os.pipe()
        err, its_err = os.pipe()
        self.stdout: BinaryIO = open(out, "rb")  # noqa: SIM115
        self.stderr: BinaryIO = open(err, "rb")  # noqa: SIM115
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            self._forked = forking.start(
                code,
                *arguments,
                modules=modules,
                files=(nothing, its_out, its_err),
                folder=folder,
                environment=environment,
            )
        finally:
            for file in (nothing, its_out, its_err):
                os.close(file)
        self.pid = self._forked.pid
        self.poll = self._forked.poll
        self.wait = self._forked.wait
        self.send_signal = self._forked.send_signal
        self.terminate = self._forked.terminate
        self.kill = self._forked.kill

    @property
    def returncode(self) -> int | None:
        """How it ended, once somebody has waited for that."""
        return self._forked.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """All that it still says, when it has ended. Raises if a step held its event loop for long."""
        end = None if timeout is None else time.monotonic() + timeout
        said = dict.fromkeys((self.stdout, self.stderr), b"")

        def read(file: BinaryIO) -> None:
            said[file] = file.read()

        readers = [Thread(target=read, args=(file,), daemon=True) for file in said if not file.closed]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(_left(end))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self.wait(_left(end))
        for file in said:
            file.close()
        stalls.fail_for_lines(said[self.stderr])
        return said[self.stdout], said[self.stderr]

    def __enter__(self) -> Piped:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())
