"""SIGTERM and Ctrl-C, where there is no event loop to hear of them."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def may_have_signals() -> bool:
    """Whether this is the thread in which Python hears of signals."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def told_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Within the block SIGTERM and Ctrl-C stop it. Python lets only the main thread say so.

    A handler of signals runs between any two steps of the main thread, which may hold the very lock that ``stop``
    wants, as an Event does while it is waited for. So it only leaves a word, in a queue made for that, and a thread
    stops.
    """
    words: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def listen() -> None:
        while words.get():
            stop()

    listener = threading.Thread(target=listen, name="tickwheel-signals", daemon=True)
    listener.start()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: words.put(True)) for number in numbers]
    try:
        yield
    finally:
        for number, one in zip(numbers, before, strict=True):
            signal.signal(number, one)
        words.put(False)
        listener.join()
