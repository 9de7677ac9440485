"""A program in a process of its own that prints lines of JSON: a broker, a client, a load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import IO, Any, Final, Self

from tickwheel_bench.processes import cpu_s_of, memory_bytes_of

LIMIT_S: Final = 900.0
"""How long a load may take that should take a minute or two: slower loads are of no interest."""


def module_command(module: str, *words: object) -> list[str]:
    """The command that runs a module of these benchmarks, or of Tickwheel."""
    return [sys.executable, "-m", module, *map(str, words)]


def installed(name: str) -> str:
    """The path of a program that is installed beside this Python."""
    return str(Path(sys.executable).with_name(name))


class Program:
    """A program that runs, and prints a line of JSON now and then. As a context manager it is ended, however it is."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        limit_s: float | None = LIMIT_S,
        errors: IO[Any] | int | None = None,
    ) -> None:
        """`limit_s`: it is ended after that, and its lines end. `errors`: where it complains, or our own place."""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        self._is_late = False
        self._limit_s = limit_s
        self._timer = Timer(limit_s or 0.0, self._end_late)
        self._timer.daemon = True
        if limit_s is not None:
            self._timer.start()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def cpu_s(self) -> float:
        """Processor seconds used so far, while it runs."""
        return cpu_s_of(self.pid)

    def memory_bytes(self, field: str = "RssAnon") -> int:
        """A field of /proc/PID/status."""
        return memory_bytes_of(self.pid, field)

    def line(self) -> Any:
        """Returns what it says next. Raises RuntimeError if it ends instead."""
        for line in self.lines():
            return line
        raise RuntimeError("it has said nothing")

    def last(self) -> Any:
        """Closes its input, and returns what it says last. Raises RuntimeError if it does not end well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        said = list(self.lines())
        if not said:
            raise RuntimeError("it has said nothing")
        return said[-1]

    def lines(self) -> Iterator[Any]:
        """What it says, as it says it. Raises RuntimeError if it ends otherwise than well."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)
        code = self._process.wait()
        if self._is_late:
            raise RuntimeError(f"it was not done within {self._limit_s:.0f} s")
        if code:
            raise RuntimeError(f"it ended with {code}")

    def kill(self) -> None:
        """Ends it as a crash would: no chance to write anything."""
        self._process.kill()
        self._process.wait()

    def _end_late(self) -> None:
        self._is_late = True
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends it, if it has not ended."""
        self._timer.cancel()
        self.kill()
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
