"""Signals stop a blocking worker whatever its main thread does just then."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tickwheel.worker.signals import told, told_by_signals

PATIENCE_S = 60.0


def test_stop_may_want_what_the_main_thread_holds() -> None:
    """As an Event does while its waiter goes to sleep: a handler that stopped by itself would never return."""
    lock, stopped = threading.Lock(), threading.Semaphore(0)

    def stop() -> None:
        with lock:
            stopped.release()

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


def test_each_of_several_is_told_and_the_last_puts_back() -> None:
    told_of = {"first": threading.Semaphore(0), "second": threading.Semaphore(0)}
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    first, second = (told(one.release, None) for one in told_of.values())
    with second:
        with first:
            os.kill(os.getpid(), signal.SIGTERM)
            assert all(one.acquire(timeout=PATIENCE_S) for one in told_of.values())
        os.kill(os.getpid(), signal.SIGTERM)
        assert told_of["second"].acquire(timeout=PATIENCE_S)
    assert not told_of["first"].acquire(blocking=False)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_what_the_program_has_itself_stays_with_it() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        stopped = threading.Semaphore(0)
        with told(stopped.release, None):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert stopped.acquire(timeout=PATIENCE_S)
        assert not stopped.acquire(blocking=False)
        with told(stopped.release, True):
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopped.acquire(timeout=PATIENCE_S)
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside a thread
def test_a_child_has_what_its_parent_had_before() -> None:
    with told_by_signals(lambda: None):
        child = os.fork()
        if child == 0:
            os._exit(0 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
