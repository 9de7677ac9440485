"""Signals stop a blocking worker whatever its main thread does just then."""

from __future__ import annotations

import os
import signal
import threading

from tickwheel.worker.signals import may_have_signals, told_by_signals

PATIENCE_S = 60.0


def test_stop_may_want_what_the_main_thread_holds() -> None:
    """As an Event does while its waiter goes to sleep: a handler that stopped by itself would never return."""
    lock, stopped = threading.Lock(), threading.Semaphore(0)

    def stop() -> None:
        with lock:
            stopped.release()

    assert may_have_signals()
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with told_by_signals(stop):
        with lock:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert not stopped.acquire(blocking=False)
        assert stopped.acquire(timeout=PATIENCE_S)
        assert stopped.acquire(timeout=PATIENCE_S)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert not any(one.name == "tickwheel-signals" for one in threading.enumerate())
