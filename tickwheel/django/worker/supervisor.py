"""Several processes: started, watched, started again when they end, and told to stop.

It forks before anything has a thread or a connection. Children have a process group of their own, so that Ctrl-C in a
terminal comes to the supervisor alone, once; and they notice the death of the supervisor by a pipe.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from django.db import connections

from tickwheel.client.waiting.backoff import Backoff
from tickwheel.django.worker.stopping import Stopping
from tickwheel.worker.signals import told_by_signals

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_STEADY_S: Final = 10.0
"""A child that ran for so long is started again at once."""

_log = logging.getLogger("tickwheel.django.worker")


class Supervisor:
    """Keeps ``count`` processes at work."""

    def __init__(self, count: int, work: Callable[[Stopping], int]) -> None:
        """``work``: what a child does, until it is told to stop; returns its exit code."""
        self._count = count
        self._work = work
        self._children: dict[int, float] = {}
        self._is_stopping = False
        self._backoff = Backoff(first_s=0.2, max_s=10.0)
        self._alive, self._ours = os.pipe()
        self._woken, self._wake = os.pipe()

    def run(self) -> int:
        """Until it is told to stop by SIGTERM or SIGINT, and the children have ended. Returns an exit code."""
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        waker = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            return self._watch()
        finally:
            signal.set_wakeup_fd(waker)
            for number, handler in before.items():
                signal.signal(number, handler)
            for one in (self._alive, self._ours, self._woken, self._wake):
                os.close(one)

    def _watch(self) -> int:
        again_at = 0.0
        while True:
            now = time.monotonic()
            while not self._is_stopping and len(self._children) < self._count and now >= again_at:
                self._start()
            if self._is_stopping and not self._children:
                return 0
            wait_s = max(0.0, again_at - now) if len(self._children) < self._count else None
            select.select([self._woken], [], [], None if self._is_stopping else wait_s)
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
            for lived_s in self._reap():
                if self._is_stopping:
                    continue
                if lived_s >= _STEADY_S:
                    self._backoff.reset()
                    again_at = 0.0
                else:
                    again_at = time.monotonic() + self._backoff.next_s()

    def _reap(self) -> list[float]:
        ended = []
        for pid, began_s in list(self._children.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if not found:
                continue
            del self._children[pid]
            ended.append(time.monotonic() - began_s)
            code = os.waitstatus_to_exitcode(status)
            if not self._is_stopping:
                _log.warning("worker process %d has ended (%d), and another one is started", pid, code)
        return ended

    def _stop(self, *_: Any) -> None:
        self._is_stopping = True
        for pid in self._children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _start(self) -> None:
        connections.close_all()
        sys.stdout.flush()
        sys.stderr.flush()
        # No signal may come between the fork and the child's own handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                self._child()
            self._children[pid] = time.monotonic()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _child(self) -> None:
        code = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._ours, self._woken, self._wake):
                os.close(one)
            stopping = Stopping()
            watcher = threading.Thread(target=_await_end, args=(self._alive, stopping.ask), daemon=True)
            watcher.start()
            with told_by_signals(stopping.ask):
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
                code = self._work(stopping)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            _log.exception("a worker process has ended with an error")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _await_end(pipe: int, ask: Callable[[], object]) -> None:
    """The supervisor never writes: what comes is its end."""
    os.read(pipe, 1)
    ask()
