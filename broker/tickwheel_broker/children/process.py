"""A process beside the broker: started anew when it ends, told to end with the broker, and never left behind.

Its standard input is a pipe of which only the broker has the other end. When the broker is killed, the system closes
that, and the process must end itself. (Linux could send it a signal, but does so already when the thread ends that
started it.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from tickwheel_broker import logs

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 30.0
WELL_S: Final = 60.0
"""Who has lived so long did not end because of how it was started."""
GRACE_S: Final = 2.0

_OURS: Final = "TICKWHEEL_"

_log = logs.get_logger("child")


class Child:
    """One such process, as long as it is wanted."""

    def __init__(self, name: str, command: Sequence[str], descriptors: Sequence[int] = ()) -> None:
        """`name`: for the log. `command`: what `tickwheel` is started with. `descriptors`: open files that it gets."""
        # -P: what lies in the working directory is not imported.
        self._command = [sys.executable, "-P", "-m", "tickwheel", *command]
        self._name = name
        self._descriptors = tuple(descriptors)
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
        try:
            with trio.CancelScope(shield=True):  # what has begun to start is known to us
                process = await trio.lowlevel.open_process(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    pass_fds=self._descriptors,
                    process_group=0,  # Ctrl-C is for the broker, which ends it in order
                    env=_environment(),
                )
        except OSError as error:
            return f"not started: {error.strerror or error}"
        self._process = process
        try:
            _log.info("process started", child=self._name, pid=process.pid)
            if self._stopping.is_set():
                self.tell(signal.SIGTERM)
            code = await process.wait()
        finally:
            self._process = None
            with trio.CancelScope(shield=True):
                await self._end(process)
                if process.stdin is not None:
                    await process.stdin.aclose()
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

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


def _environment() -> dict[str, str]:
    """Ours, but for settings and tokens: it is told all that it needs."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return found | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
