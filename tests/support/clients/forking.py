"""Programs that begin at once: forks of a process that has imported what they need.

Most programs that tests start, and kill, would live shorter than their imports take. So there is one process for each
list of modules, which imports them, and then forks whatever is asked for: with arguments, a folder, an environment and
files of its own, as if it had been started anew. How it ended is told through a pipe.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
_NUMBER: Final = struct.Struct("=i")
_MOST_BYTES: Final = 1 << 17
_CHANGES: Final = {signal.SIGCHLD}
# Only what has one thread can be forked. Of the rest, what a test has changed meanwhile is not for all that follow.
_ENVIRONMENT: Final = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}


class Forked:
    """A running program, with what tests use of ``subprocess.Popen``."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._lock = Lock()

    def poll(self) -> int | None:
        """How it ended; None: it runs."""
        with self._lock:
            if self.returncode is None and self._has_ended(0):
                self._read()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """How it ended; waits for that."""
        if self.returncode is None and not self._has_ended(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1_000))

    def _read(self) -> None:
        told = os.read(self._status, _NUMBER.size)
        assert told, "the process that forks has ended"
        os.close(self._status)
        self.returncode = os.waitstatus_to_exitcode(*_NUMBER.unpack(told))


def start(
    code: str,
    *arguments: str,
    modules: tuple[str, ...],
    files: tuple[int, int, int] = (0, 1, 2),
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Forked:
    """What ``python -c`` does with this code and these arguments, in a fork of what has imported ``modules``. Folder
    and environment are those of this process if none are given."""
    if (server := _servers.get(modules)) is not None and server.has_ended():
        server.end()
        server = None
    if server is None:
        server = _servers[modules] = _Server(modules)
    given = os.environ if environment is None else environment
    return server.fork(_Job(code, arguments, str(folder or Path.cwd()), dict(given)), files)


class Programs:
    """Several that do the same, which are killed at the end of a test."""

    def __init__(self, code: str, *arguments: str, modules: tuple[str, ...]) -> None:
        self._code = code
        self._arguments = arguments
        self._modules = modules
        self._started: list[Forked] = []

    def start(self, *arguments: str) -> Forked:
        """One more, with these arguments after those that all have. It has said that it is ready: has written something
        to its output."""
        ours, its = os.pipe()
        try:
            files = (0, its, 2)
            one = start(self._code, *self._arguments, *arguments, modules=self._modules, files=files)
        finally:
            os.close(its)
        self._started.append(one)
        with open(ours, "rb", buffering=0) as output:
            assert output.read(1), f"it ended with {one.wait()}"
        return one

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._started:
            one.kill()
            one.wait()


def end() -> None:
    """Ends the processes that fork. What they have forked goes on."""
    for server in _servers.values():
        server.end()
    _servers.clear()


@dataclass(frozen=True)
class _Job:
    code: str
    arguments: tuple[str, ...]
    cwd: str
    environment: dict[str, str]


class _Server:
    """A process that forks; it ends with its socket, and so with us."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._lock = Lock()
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.clients.forking", str(its.fileno()), *modules],
                cwd=ROOT,
                env=_ENVIRONMENT,
                pass_fds=[its.fileno()],
            )

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def fork(self, job: _Job, files: tuple[int, int, int]) -> Forked:
        request = json.dumps(vars(job)).encode()
        assert len(request) <= _MOST_BYTES
        ours, its = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._socket, [request], [*files, its])
                answer = self._socket.recv(_NUMBER.size)
        finally:
            os.close(its)
        assert answer, "the process that forks has ended"
        return Forked(*_NUMBER.unpack(answer), ours)

    def end(self) -> None:
        self._socket.close()
        self._process.wait()


_servers: dict[tuple[str, ...], _Server] = {}


# -- in the process that forks --


class _Forks:
    """Forks what is asked for, and tells how each ended."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._running: dict[int, int] = {}

    def next_job(self) -> _Job | None:
        """Returns in each fork, with what it has to do; and without anything when no more are asked for."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, and for what is forked
        signal.signal(signal.SIGCHLD, self._tell)
        while True:
            request, files, _, _ = socket.recv_fds(self._requests, _MOST_BYTES, 4)
            if not request:
                return None
            signal.pthread_sigmask(signal.SIG_BLOCK, _CHANGES)  # until it is known which one it is
            pid = os.fork()
            if not pid:
                return self._become(json.loads(request), files)
            *others, self._running[pid] = files
            for file in others:
                os.close(file)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _CHANGES)
            self._requests.send(_NUMBER.pack(pid))

    def _become(self, job: dict[str, object], files: list[int]) -> _Job:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _CHANGES)
        self._requests.detach()
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        return _Job(**job)  # type: ignore[arg-type]

    def _tell(self, number: int, frame: FrameType | None) -> None:
        while self._running:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:  # the same handler, which came in between, took the last one
                return
            if not pid:
                return
            with open(self._running.pop(pid), "wb") as told:
                told.write(_NUMBER.pack(status))


def _main(requests: str, *modules: str) -> None:
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else each fork would copy what it only counts
    with socket.socket(fileno=int(requests)) as given:
        job = _Forks(given).next_job()
    if job is not None:
        os.chdir(job.cwd)
        os.environ.clear()
        os.environ.update(job.environment)
        sys.argv[:] = ["-c", *job.arguments]
        exec(compile(job.code, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _main(*sys.argv[1:])
