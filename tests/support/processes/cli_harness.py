"""Runs `tickwheel` as a user's shell does, and a daemon of its own kind.

A command that is run to its end runs in the process of the tests, where nothing has to be imported anew, or in a fork;
`test_cli_processes.py` compares that with the real program. What is started and left running is a process: the real
program, or a fork, which begins at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any
from unittest import mock

import sniffio
from click.testing import CliRunner

from tests.support.clients import forking
from tests.support.processes import stalls
from tests.support.processes.piped import Piped
from tests.support.run.warned import filters_of_a_process
from tickwheel_cli.main import root

PATIENCE_S = 60.0
SPARK_PATIENCE_S = 540.0  # several start at once, on a machine that may be busy
"""How long anything may take before a test gives up; far more than it needs, because machines are busy."""

PROGRAM = [sys.executable, "-c", "from tickwheel_cli.main import main; main()"]
_MAIN = "from tickwheel_cli.main import main; main()"
_FORKED = f"from tests.support.run import warned; warned.apply_filters(); {_MAIN}"
_WATCHES = {
    "web": "from tests.support.processes.web_stalls import watch_web as watch",
    "push": "from tests.support.processes.stalls import watch_this_process as watch",
    "gateway": "from tests.support.processes.stalls import watch_this_process as watch",
}
"""Of the commands whose event loops must not be held, by what they are called."""
_MODULES = (
    "tests.support.processes.stalls",
    "tests.support.processes.web_stalls",
    "tests.support.run.warned",
    "tickwheel_cli.main",
    "tickwheel_cli.beside.push",
    "tickwheel_cli.running.serve",
    "tickwheel_cli.beside.web",
    "tickwheel.client",
    "tickwheel_broker.config.load",
    "tickwheel_broker.daemon",
    "tickwheel_push.process",
    "tickwheel_web.application",
    "tickwheel_web.server",
    "numpy",
)
_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TICKWHEEL_")}


class Shell:
    """A directory in which commands are run; with a `url`, against that broker."""

    def __init__(self, directory: Path, url: str | None = None) -> None:
        self.directory = directory
        self.environment = {**_ENVIRONMENT, "PYTHONWARNINGS": filters_of_a_process()}
        if url is not None:
            self.environment["TICKWHEEL_URL"] = url

    def popen(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command and do not wait for it."""
        return subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def start(self, *arguments: str) -> Piped:
        """Like `popen`, without the second of a processor that the real program takes to begin. A step that holds the
        event loop of `web`, `push` or `gateway` for long fails the test that asks what they have said to the end."""
        watch = _WATCHES.get(arguments[0])
        return Piped(
            _FORKED if watch is None else f"{watch}; watch({stalls.limit_ms()}); {_FORKED}",
            *arguments,
            modules=_MODULES,
            folder=self.directory,
            environment=self.environment,
        )

    def run(
        self, *arguments: str, stdin: bytes = b"", code: int | None = 0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end; it must end with exit code `code` (None: with any)."""
        needs_process = arguments[:1] in _PROCESSES
        needs_fork = not needs_process and _is_in_a_loop()
        run = self.run_process if needs_process else self.run_forked if needs_fork else self.run_here
        done = run(arguments, stdin)
        what = f"{arguments} ended with {done.returncode}\n{done.stdout!r}\n{done.stderr.decode()}"
        assert code is None or done.returncode == code, what
        return done

    def run_process(
        self, arguments: tuple[str, ...], stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the real program to its end."""
        return subprocess.run(
            [*PROGRAM, *arguments],
            cwd=self.directory,
            env=self.environment,
            input=stdin,
            capture_output=True,
            timeout=SPARK_PATIENCE_S if arguments[:1] == ("pipeline",) else PATIENCE_S,
            check=False,
        )

    def run_forked(
        self, arguments: tuple[str, ...], stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end in a process of its own, where nothing has to be imported anew either."""
        with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
            given.write(stdin)
            given.seek(0)
            code = forking.start(
                _FORKED,
                *arguments,
                modules=_MODULES,
                files=(given.fileno(), output.fileno(), errors.fileno()),
                folder=self.directory,
                environment=self.environment,
            ).wait(PATIENCE_S)
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(arguments, code, output.read(), errors.read())

    def run_here(self, arguments: tuple[str, ...], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end in this process, from the same directory and with the same environment."""
        with chdir(self.directory), mock.patch.dict(os.environ, self.environment, clear=True):
            result = CliRunner(catch_exceptions=False).invoke(
                root, list(arguments), input=stdin, prog_name="tickwheel"
            )
        return subprocess.CompletedProcess(
            arguments, result.exit_code, result.stdout_bytes, result.stderr_bytes
        )

    def text(self, *arguments: str, stdin: bytes = b"") -> str:
        """What a command prints."""
        return self.run(*arguments, stdin=stdin).stdout.decode()

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """What a command prints with `--json`."""
        return json.loads(self.text(*arguments, "--json", stdin=stdin))

    def error(self, *arguments: str, code: int, stdin: bytes = b"") -> dict[str, Any]:
        """The typed error that a command ends with."""
        failed = self.run("--json", *arguments, stdin=stdin, code=code)
        error: dict[str, Any] = json.loads(failed.stderr.decode().splitlines()[-1])["error"]
        return error


_PROCESSES = [
    ("serve",),
    ("web",),
    ("push",),
    ("pipeline",),
    ("demo",),
    ("bench",),
    ("simulate",),
    ("gateway",),
]
"""What handles signals, or settings of the whole process, such as its priority."""


def _is_in_a_loop() -> bool:
    """Commands have a loop of their own, and listen for signals: neither is possible within another loop, or outside of
    the main thread."""
    try:
        sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return threading.current_thread() is not threading.main_thread()
    return True


class Serve:
    """`tickwheel serve` on a directory, on a free port and a Unix socket."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self._shell = Shell(directory)
        self._flags = flags
        self._process: Piped | None = None
        self.urls: list[str] = []

    def __enter__(self) -> Serve:
        arguments = ["serve", "--data", "data", "--listen-port", "0", "--unix-socket", "s.sock", "--json"]
        self._process = self._shell.start(*arguments, *self._flags)
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate(timeout=PATIENCE_S)
            raise AssertionError(f"serve did not start: {errors.decode()}")
        self.urls = json.loads(line)["urls"]
        return self

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.terminate()
        self._process.communicate(timeout=PATIENCE_S)
        return self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate(timeout=PATIENCE_S)
