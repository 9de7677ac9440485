"""What ends `tickwheel flight`, or has it load its certificates anew."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tickwheel_flight import process


@pytest.fixture
def events() -> Iterator[queue.SimpleQueue[str]]:
    """What the handler of a signal has put there."""
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    before = signal.signal(signal.SIGUSR1, lambda number, _: found.put(signal.Signals(number).name))
    yield found
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_another_thread_takes_is_heard(
    events: queue.SimpleQueue[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_LOOK_S", 0.05)

    def take() -> None:
        time.sleep(0.2)  # the main thread waits by then
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    thread = threading.Thread(target=take)
    thread.start()
    assert process._next_event(events) == "SIGUSR1"
    thread.join()
