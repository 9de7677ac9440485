"""That a process is to end: told by SIGTERM or SIGINT, or by the death of its supervisor."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """How often a process was told to stop, and whom to tell then: once for "in order", again for "at once"."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._asked = 0
        self._tell: Callable[[], object] | None = None

    def ask(self, *_: Any) -> None:
        """Tells it to stop; a handler of signals."""
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

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """In the block signals ask it; only in the main thread."""
        before = [signal.signal(number, self.ask) for number in SIGNALS]
        try:
            yield
        finally:
            for number, one in zip(SIGNALS, before, strict=True):
                signal.signal(number, one)
