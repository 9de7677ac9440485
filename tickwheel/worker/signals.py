"""SIGTERM and Ctrl-C, for all workers of a process."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Final, TypeAlias

Stop: TypeAlias = Callable[[], object]

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)
_OF_LOOPS: Final = ("asyncio.runners", "trio._core._ki")
"""Where the handlers of Ctrl-C are that event loops set in the place of Python's."""


def told(stop: Stop, wanted: bool | None) -> AbstractContextManager[None]:
    """Within the block signals call ``stop``, in a thread of their own. ``wanted``: False: they do not; None: in the
    main thread, and only those for which the program, or its web server, has no handler."""
    if wanted is None and threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return nullcontext() if wanted is False else told_by_signals(stop, always=wanted is True)


@contextmanager
def told_by_signals(stop: Stop, *, always: bool = True) -> Iterator[None]:
    """See `told`. Python lets only the main thread say so."""
    _SIGNALS.add(stop, always=always)
    try:
        yield
    finally:
        _SIGNALS.remove(stop)


class _Signals:
    """Of this process. One that comes stops all workers, whichever was begun last; handlers are put back with the last.

    A handler of signals runs between any two steps of the main thread, which may hold the very lock that ``stop``
    wants, as an Event does while it is waited for. So it only leaves a word, in a queue made for that, and a thread
    stops.
    """

    def __init__(self) -> None:
        self._stops: list[Stop] = []
        self._before: dict[int, Any] = {}
        self._words: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._listener: threading.Thread | None = None

    def add(self, stop: Stop, *, always: bool) -> None:
        """``always``: also in the place of the program's own handlers."""
        for number in _NUMBERS:
            if number not in self._before and (always or _is_default(number)):
                self._before[number] = signal.signal(number, self._note)
        self._stops.append(stop)
        if self._listener is None:
            self._listener = threading.Thread(target=self._listen, name="tickwheel-signals", daemon=True)
            self._listener.start()

    def remove(self, stop: Stop) -> None:
        """It is not told any more."""
        self._stops.remove(stop)
        if self._stops:
            return
        self._put_back()
        listener, self._listener = self._listener, None
        self._words.put(False)
        if listener is not None:
            listener.join()

    def _put_back(self) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, before)
        self._before.clear()

    def _note(self, *_: object) -> None:
        self._words.put(True)

    def _listen(self) -> None:
        while self._words.get():
            for stop in list(self._stops):
                with suppress(RuntimeError):  # its event loop has just ended
                    stop()

    def forget(self) -> None:
        """This process is a child: its parent's workers are not here."""
        self._put_back()
        self._stops, self._listener = [], None


_SIGNALS: Final = _Signals()
os.register_at_fork(after_in_child=_SIGNALS.forget)


def _is_default(number: int) -> bool:
    now = signal.getsignal(number)
    if now is signal.SIG_DFL or now is signal.default_int_handler:
        return True
    return number == signal.SIGINT and getattr(getattr(now, "func", now), "__module__", "") in _OF_LOOPS
