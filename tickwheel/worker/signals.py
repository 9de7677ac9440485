"""SIGTERM and Ctrl-C, where there is no event loop to hear of them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def may_have_signals() -> bool:
    """Whether this is the thread in which Python hears of signals."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def told_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Within the block SIGTERM and Ctrl-C stop it. Python lets only the main thread say so."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stop()) for number in numbers]
    try:
        yield
    finally:
        for number, one in zip(numbers, before, strict=True):
            signal.signal(number, one)
