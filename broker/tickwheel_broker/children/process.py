"""A process beside the broker: started anew when it ends, told to end with the broker, and never left behind.

Its standard input is a pipe of which only the broker has the other end. When the broker is killed, the system closes
that, and the process must end itself. (Linux could send it a signal, but does so already when the thread ends that
started it.)
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import trio

from tickwheel_broker import logs

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 30.0
WELL_S: Final = 60.0
"""Who has lived so long did not end because of how it was started."""
GRACE_S: Final = 2.0

_OURS: Final = "TICKWHEEL_"

_log = logs.get_logger("child")

Converse: TypeAlias = Callable[[trio.SocketStream], Awaitable[None]]
"""Speaks with a process that has just begun, until it is cancelled."""


class Child:
    """One such process, as long as it is wanted."""

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        descriptors: Sequence[int] = (),
        keeps: Collection[str] = (),
        converse: Converse | None = None,
    ) -> None:
        """`name`: for the log. `command`: what `tickwheel` is started with. `descriptors`: open files that it gets.
        `keeps`: of our variables, those that it gets. `converse`: its standard input is a socket, with this at its
        other end."""
        # -P: what lies in the working directory is not imported.
        self._command = [sys.executable, "-P", "-m", "tickwheel", *command]
        self._name = name
        self._descriptors = tuple(descriptors)
        self._keeps = frozenset(keeps)
        self._converse = converse
        self.starts = 0
        """How often it was started."""
        self._process: trio.Process | None = None
        self._stopping = trio.Event()

    async def run(self, wait_stopped: Callable[[], Awaitable[None]]) -> None:
        """Until `wait_stopped` returns and the process has then ended, as it was asked to. When cancelled it is asked,
        too, but killed soon."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop, wait_stopped)
            wait_s = FIRST_WAIT_S
            while not self._stopping.is_set():
                began_s = trio.current_time()
                how = await self._run_once()
                if self._stopping.is_set():
                    break
                if trio.current_time() - began_s >= WELL_S:
                    wait_s = FIRST_WAIT_S
                _log.warning("process ended", child=self._name, how=how, again_in_s=wait_s)
                with trio.move_on_after(wait_s):
                    await self._stopping.wait()
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            nursery.cancel_scope.cancel()

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _stop(self, wait_stopped: Callable[[], Awaitable[None]]) -> None:
        await wait_stopped()
        self._stopping.set()
        self.tell(signal.SIGTERM)

    async def _run_once(self) -> str:
        """How it ended."""
        ours, theirs = (None, None) if self._converse is None else _socket_pair()
        try:
            with trio.CancelScope(shield=True):  # what has begun to start is known to us
                process = await trio.lowlevel.open_process(
                    self._command,
                    stdin=subprocess.PIPE if theirs is None else theirs,
                    stdout=subprocess.DEVNULL,
                    pass_fds=self._descriptors,
                    process_group=0,  # Ctrl-C is for who started it, which ends it in order
                    env=_environment(self._keeps),
                )
        except OSError as error:
            if ours is not None:
                await ours.aclose()
            return f"not started: {error.strerror or error}"
        finally:
            if theirs is not None:
                theirs.close()
        self._process = process
        self.starts += 1
        try:
            _log.info("process started", child=self._name, pid=process.pid)
            if self._stopping.is_set():
                self.tell(signal.SIGTERM)
            code = await self._until_end(process, ours)
        finally:
            self._process = None
            with trio.CancelScope(shield=True):
                await self._end(process)
                for end in (process.stdin, ours):
                    if end is not None:
                        await end.aclose()
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    async def _until_end(self, process: trio.Process, ours: trio.SocketStream | None) -> int:
        if self._converse is None or ours is None:
            return await process.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._converse, ours)
            code = await process.wait()
            nursery.cancel_scope.cancel()
        return code

    async def _end(self, process: trio.Process) -> None:
        """It says what it has begun to say, if it does so soon."""
        if process.returncode is None:
            if not self._stopping.is_set():  # otherwise it was asked already; twice would mean at once
                process.send_signal(signal.SIGTERM)
            with trio.move_on_after(GRACE_S):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


def _socket_pair() -> tuple[trio.SocketStream, socket.socket]:
    ours, theirs = socket.socketpair()
    return trio.SocketStream(trio.socket.from_stdlib_socket(ours)), theirs


def _environment(keeps: Collection[str]) -> dict[str, str]:
    """Ours, but for settings and tokens that it does not keep: it is told all that it needs."""
    found = {name: value for name, value in os.environ.items() if name in keeps or not name.startswith(_OURS)}
    return found | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
