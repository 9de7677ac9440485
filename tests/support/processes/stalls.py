"""Finds work that holds an event loop: steps of tasks that take too much processor time.

While one task works, no timer fires and no other client is answered. So each broker that a test starts is watched: a
step is what a task does between two checkpoints, and one that takes longer than `limit_ms` fails the test, with the
task and the lines where the step ended. The processor time of the loop's thread counts, not the time of day: a busy
machine makes no step longer. A slow one does, so its speed is measured, at the beginning and when a step was long. Some
virtual machines lose their way to memory that is not touched for a moment: the first step after a pause takes up to a
hundred times its time there, as processor time of the program. That is measured at the beginning, too.
"""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final
from unittest import mock

import numpy as np
import trio

from tickwheel import _embedded

LIMIT_MS: Final = 20.0
"""On a machine that needs `REFERENCE_MS` for `_reference`; a slower one has as much more time as it needs there."""
REFERENCE_MS: Final = 2.0
PAUSE_S: Final = 0.3
"""How long memory is not touched before `_cold_ms` measures."""
COLD_PIECES: Final = 20
"""A step may find as much memory cold as so many times `_piece`."""
EVENT: Final = "a step held the event loop"

EXCEPTIONS: Final = {
    "_serve_with_signals": "opens the store before anybody is served, and closes it after the last one has left",
    "EmbeddedBroker._run.<locals>.main": "does the same in a program",
    "beside.gateway._serve": "opens its listeners before anybody is served; calls are tasks of their own",
    "workers.supervisor.supervise": "the same of the process that starts the gateway's workers",
}
"""Ends of the names of tasks whose steps may be long, and why."""

_ROOT: Final = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Stall:
    """A step that took too long."""

    task: str
    ms: float
    where: str
    """The lines at which the step ended, the innermost last."""

    def __str__(self) -> str:
        return f"{self.task} held the event loop for {self.ms:.1f} ms of processor time, up to {self.where}"


class Meter:
    """Measures each step of a loop. While the garbage collector works, which may come at any step, nothing counts."""

    def __init__(self, tell: Callable[[Stall], None], limit_ms: float) -> None:
        self._tell = tell
        self._limit_ns = int(limit_ms * 1e6)
        self._began_ns = 0
        self._collecting_ns = 0
        self._thread = 0
        self.is_measuring = False
        """Whether a step has begun."""

    def start(self) -> None:
        """In the thread of the loop."""
        self._thread = _thread_id()
        gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        """The loop has ended."""
        gc.callbacks.remove(self._collecting)

    def begin(self) -> None:
        """A step begins."""
        self.is_measuring = True
        self._began_ns = time.thread_time_ns()

    def end(self, name: str, where: Callable[[], str]) -> None:
        """A step of what is called so ends; `where`: the lines at which it does."""
        took_ns = time.thread_time_ns() - self._began_ns
        self.is_measuring = False
        if took_ns <= self._limit_ns or name.endswith(tuple(EXCEPTIONS)):
            return
        # Others may have had the caches, or the whole processor without the system's knowledge, at this moment.
        if took_ns > self._limit_ns * _slowness(_reference()):
            self._tell(Stall(name, took_ns / 1e6, where()))

    def _collecting(self, phase: str, _info: dict[str, int]) -> None:
        if _thread_id() != self._thread:
            return
        if phase == "start":
            self._collecting_ns = time.thread_time_ns()
        else:
            self._began_ns += time.thread_time_ns() - self._collecting_ns


class Watch(trio.abc.Instrument):
    """Watches a loop of trio."""

    def __init__(self, tell: Callable[[Stall], None], limit_ms: float) -> None:
        self._meter = Meter(tell, limit_ms)

    def before_run(self) -> None:
        """In the thread of the loop."""
        self._meter.start()

    def after_run(self) -> None:
        """The loop has ended."""
        self._meter.stop()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A step begins."""
        self._meter.begin()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """A step ends."""
        self._meter.end(task.name, lambda: where_of(task.coro))


@cache
def limit_ms() -> float:
    """How long a step may take on this machine."""
    return LIMIT_MS * _slowness(min(_reference() for _ in range(5))) + COLD_PIECES * _cold_ms()


def watched(run: Callable[..., Any], tell: Callable[[Stall], None], limit: float) -> Callable[..., Any]:
    """`trio.run` that watches its loop."""

    def run_watched(*args: Any, instruments: Iterable[trio.abc.Instrument] = (), **options: Any) -> Any:
        return run(*args, instruments=[*instruments, Watch(tell, limit)], **options)

    return run_watched


def tell_in_log(stall: Stall) -> None:
    """Write it to standard error, as a line of the log."""
    os.write(2, json.dumps({"event": EVENT, "level": "error"} | asdict(stall)).encode() + b"\n")


def watch_this_process(limit: float) -> None:
    """Write what takes too long to standard error, as a line of the log."""
    trio.run = watched(trio.run, tell_in_log, limit)


@contextmanager
def watching_embedded() -> Iterator[list[Stall]]:
    """Watches the loops of embedded brokers that begin meanwhile; gives what they find."""
    found: list[Stall] = []
    run = watched(trio.run, found.append, limit_ms())
    with mock.patch.object(_embedded, "trio", SimpleNamespace(run=run)):
        yield found


def fail_for_lines(lines: bytes) -> None:
    """Raises if a process that wrote these lines to standard error told of a step that took too long."""
    fail_for(json.loads(line) for line in lines.splitlines() if EVENT.encode() in line)


def fail_for(events: Iterable[dict[str, Any]]) -> None:
    """Raises if a process told of a step that took too long."""
    found = [Stall(one["task"], one["ms"], one["where"]) for one in events if one.get("event") == EVENT]
    assert not found, "\n".join(map(str, found))


def where_of(coroutine: object) -> str:
    """The lines at which a coroutine waits, the innermost last."""
    frames: list[FrameType] = []
    with suppress(AttributeError):  # of an awaitable of the loop's own
        awaited: Any = coroutine
        while awaited is not None:
            if (frame := getattr(awaited, "cr_frame", None)) is not None:
                frames.append(frame)
            awaited = awaited.cr_await
    ours = [frame for frame in frames if "site-packages" not in frame.f_code.co_filename]
    return (
        " > ".join(f"{os.path.relpath(frame.f_code.co_filename, _ROOT)}:{frame.f_lineno}" for frame in ours)
        or "its end"
    )


def _thread_id() -> int:
    return threading.get_ident()


def _slowness(reference_ns: int) -> float:
    return max(1.0, reference_ns / 1e6 / REFERENCE_MS)


def _cold_ms() -> float:
    """What a piece of work takes longer after a pause: a tenth of a millisecond where memory stays at hand."""
    _piece()
    threading.Event().wait(PAUSE_S)
    first_ns = _piece()
    return max(0, first_ns - min(_piece() for _ in range(3))) / 1e6


def _piece() -> int:
    """Processor time of some small work all over NumPy, in ns."""
    began_ns = time.thread_time_ns()
    for _ in range(30):
        numbers = np.arange(10).astype(np.int32)
        np.bincount(np.where(np.maximum(numbers, 3) > 3, numbers, 0))
    return time.thread_time_ns() - began_ns


def _reference() -> int:
    began_ns = time.thread_time_ns()
    sum(number * number for number in range(60_000))
    return time.thread_time_ns() - began_ns
