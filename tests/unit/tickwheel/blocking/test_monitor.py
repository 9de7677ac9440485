"""Waiting under one lock: limits, hand-over between threads, interruptions."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.tickwheel.blocking.scripted_server import PATIENCE_S, until
from tickwheel.blocking.monitor import Monitor, run


class Reader:
    """Reads whatever a test wants: each step is a function, and without one it waits for the bell."""

    def __init__(self) -> None:
        self.monitor = Monitor(self)
        self.steps: list[Callable[[], None]] = []
        self.readers: list[int] = []
        self.handed_over = 0
        self._bell = threading.Semaphore(0)

    def step(self, until: float) -> None:
        self.readers.append(threading.get_ident())
        if self.steps:
            self.steps.pop(0)()
            return
        left_s = None if until == math.inf else max(0.0, until - self.monitor.now())
        self.monitor.without(lambda: self._bell.acquire(timeout=left_s))

    def hand_over(self) -> None:
        self.handed_over += 1

    def ring(self) -> None:
        self._bell.release()

    def call(self, work: Any) -> Any:
        return self.monitor.hold(lambda: run(work))


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_who_waits_reads(reader: Reader) -> None:
    event = reader.monitor.event()
    reader.steps = [lambda: None, event.set]
    reader.call(event.wait())
    assert reader.readers == [threading.get_ident()] * 2
    reader.call(event.wait())
    assert len(reader.readers) == 2, "what is set is not waited for"


@pytest.mark.parametrize("outer_first", [True, False])
def test_of_two_limits_the_one_that_is_over_ends_its_own_block(reader: Reader, outer_first: bool) -> None:
    event = reader.monitor.event()
    ended = []

    async def work() -> None:
        with reader.monitor.within(0.01 if outer_first else None) as outer:
            with reader.monitor.within(None if outer_first else 0.01) as inner:
                await event.wait()
            ended.append("inner")
        ended.append("outer")
        ended.append((outer.cancelled_caught, inner.cancelled_caught))

    reader.call(work())
    expected = ["outer", (True, False)] if outer_first else ["inner", "outer", (False, True)]
    assert ended == expected


def test_two_limits_that_are_over_end_the_outer_block(reader: Reader) -> None:
    async def work() -> tuple[bool, bool]:
        with reader.monitor.within(-1.0) as outer, reader.monitor.within(-1.0) as inner:
            await reader.monitor.event().wait()
        return outer.cancelled_caught, inner.cancelled_caught

    assert reader.call(work()) == (True, False)


def test_a_limit_that_is_over_is_no_limit_for_what_does_not_wait(reader: Reader) -> None:
    async def work() -> str:
        with reader.monitor.within(-1.0):
            return "done"
        return "never"

    assert reader.call(work()) == "done"


def test_another_thread_goes_on_reading(reader: Reader) -> None:
    """The first has what it wanted; the second, which slept, reads then."""
    events = [reader.monitor.event() for _ in range(2)]
    threads = []
    for event in events:
        threads.append(threading.Thread(target=lambda event=event: reader.call(event.wait())))
        threads[-1].start()
        until(lambda: len(threads) == 1 or reader.handed_over)
    until(lambda: len(reader.readers) == 1)
    reader.monitor.hold(events[0].set)
    threads[0].join(PATIENCE_S)
    until(lambda: reader.readers[-1] == threads[1].ident)
    assert not threads[0].is_alive()
    reader.monitor.hold(events[1].set)
    threads[1].join(PATIENCE_S)
    assert not threads[1].is_alive()


def test_a_thread_that_sleeps_is_woken_by_its_event_alone(reader: Reader) -> None:
    events = [reader.monitor.event() for _ in range(20)]
    threads = [threading.Thread(target=lambda event=event: reader.call(event.wait())) for event in events]
    for thread in threads:
        thread.start()
    until(lambda: reader.handed_over == 19)
    reading = reader.readers[0]
    for event, thread in zip(events, threads, strict=True):
        if thread.ident != reading:
            reader.monitor.hold(event.set)
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert reader.handed_over == 19, "others were woken, too"
    for event in events:
        reader.monitor.hold(event.set)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert set(reader.readers) == {reading}


def test_a_thread_whose_time_is_over_while_it_is_to_read_passes_it_on(reader: Reader) -> None:
    """No thread is left sleeping with none that reads."""
    first, second = reader.monitor.event(), reader.monitor.event()

    async def hurried() -> None:
        with reader.monitor.within(0.05):
            await reader.monitor.event().wait()

    begins = threading.Thread(target=lambda: reader.call(first.wait()))
    begins.start()
    until(lambda: len(reader.readers) == 1)
    gives_up = threading.Thread(target=lambda: reader.call(hurried()))
    gives_up.start()
    until(lambda: reader.handed_over == 1)
    stays = threading.Thread(target=lambda: reader.call(second.wait()))
    stays.start()
    until(lambda: reader.handed_over == 2)
    reader.monitor.hold(first.set)
    gives_up.join(PATIENCE_S)
    until(lambda: reader.readers[-1] == stays.ident)
    reader.monitor.hold(second.set)
    stays.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in (begins, gives_up, stays))


def test_an_interruption_leaves_the_lock_and_the_reading_to_others(reader: Reader) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    reader.steps = [lambda: reader.monitor.without(interrupt)]
    with pytest.raises(KeyboardInterrupt):
        reader.call(reader.monitor.event().wait())
    assert not reader.monitor.lock._is_owned()
    event = reader.monitor.event()
    reader.steps = [event.set]
    other = threading.Thread(target=lambda: reader.call(event.wait()))
    other.start()
    other.join(PATIENCE_S)
    assert not other.is_alive()


def test_a_call_in_the_middle_of_another_of_the_same_thread(reader: Reader) -> None:
    with pytest.raises(RuntimeError, match="in the middle of another call"):
        reader.monitor.hold(lambda: reader.monitor.hold(lambda: None))
    reader.monitor.hold(lambda: None)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers of signals here")
def test_a_handler_of_a_signal_calls_while_its_thread_waits(reader: Reader) -> None:
    """It reads in the place of the call that it interrupted, whose limits are not its own; and that call sees at once
    what was read."""
    outer, inner = reader.monitor.event(), reader.monitor.event()
    took: list[float] = []

    def handler(*_: object) -> None:
        reader.steps = [outer.set, inner.set]
        reader.call(inner.wait())
        took.append(time.monotonic())

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        reader.call(outer.wait())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(took) == 1


def test_a_coroutine_that_waits_for_an_event_loop(reader: Reader) -> None:
    class Foreign:
        def __await__(self) -> Any:
            yield

    async def work() -> None:
        await Foreign()

    with pytest.raises(RuntimeError, match="event loop"):
        reader.call(work())
    reader.monitor.hold(lambda: None)
