"""That a process is to end: told by signals, by the death of its supervisor, or by changed code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopping:
    """How often a process was told to stop, and whom to tell then: once for "in order", again for "at once"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._tell: Callable[[], object] | None = None

    def ask(self) -> None:
        """Tells it to stop. Not to be called by a handler of signals, but by the thread of ``told_by_signals``."""
        with self._lock:
            self._asked += 1
            if self._tell is not None:
                self._tell()

    @contextmanager
    def telling(self, stop: Callable[[], object]) -> Iterator[None]:
        """In the block ``stop`` is called at each time; also for those before."""
        with self._lock:
            self._tell = stop
            for _ in range(min(self._asked, 2)):
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._tell = None
