"""`tickwheel work --reload`: the same command as a child, and anew whenever a Python file in this folder changes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Final

import click

from tickwheel.errors import WorkMissing

_KILL_AFTER_S: Final = 5.0
"""So long after the drain a child is killed that was told to stop."""


def reload(words: Sequence[str], drain_s: float) -> None:
    """Until Ctrl-C or SIGTERM; a second one does not wait. ``words``: the command line. Raises WorkMissing."""
    try:
        from watchfiles import PythonFilter, watch
    except ImportError as error:
        raise WorkMissing from error
    stopping = threading.Event()
    child = _Child(words, drain_s)

    def stop(*_: object) -> None:
        if stopping.is_set():
            child.tell()
        stopping.set()

    before = [signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        child.start()
        for changes in watch(".", watch_filter=PythonFilter(), stop_event=stopping, raise_interrupt=False):
            click.echo(f"{len(changes)} files have changed: starting again", err=True)
            child.end()
            if stopping.is_set():
                break
            child.start()
    finally:
        child.end()
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


class _Child:
    def __init__(self, words: Sequence[str], drain_s: float) -> None:
        self._words = [sys.executable, "-m", "tickwheel", *words]
        self._patience_s = drain_s + _KILL_AFTER_S
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """In a session of its own: a terminal tells all of a session of Ctrl-C, and twice means at once."""
        self._process = subprocess.Popen(self._words, start_new_session=True)

    def tell(self) -> None:
        """It is to stop; a second time: not to wait."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """It is told to stop, and waited for."""
        if self._process is None:
            return
        self.tell()
        try:
            self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
