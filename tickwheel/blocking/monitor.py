"""One lock for all that a client knows, and how threads wait under it.

A coroutine of the client is run to its end in the thread that calls it, with the lock. What it waits for blocks the
thread, and gives the lock away meanwhile. Of the threads that wait, one reads the socket for all of them; when it has
what it wanted, another one goes on.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Carrier(Protocol):
    """What reads and writes, with the lock held when it is called."""

    def step(self, until: float) -> None:
        """Does some of what is to be done, or waits for something to do, but not longer than until then."""

    def hand_over(self) -> None:
        """Something may be there to write, while another thread reads."""


class _Expired(BaseException):
    """The time of a block is over. It is not for `except Exception`, as a cancellation is not."""

    def __init__(self, scope: _Limited) -> None:
        super().__init__()
        self.scope = scope


class _Limited:
    """A block whose waits end at a time. See `Scope`."""

    def __init__(self, monitor: Monitor, deadline: float) -> None:
        self._monitor = monitor
        self.deadline = deadline
        self.cancelled_caught = False

    def cancel(self) -> None:
        """See `Scope`."""
        self.deadline = -math.inf

    def __enter__(self) -> _Limited:
        self._monitor.scopes().append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._monitor.scopes().remove(self)
        if isinstance(error, _Expired) and error.scope is self:
            self.cancelled_caught = True
            return True
        return False


class _Event:
    """See `Event`."""

    __slots__ = ("_is_set", "_monitor")

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._is_set = False

    def set(self) -> None:
        """See `Event`."""
        self._is_set = True
        self._monitor.changed()

    def is_set(self) -> bool:
        """See `Event`."""
        return self._is_set

    async def wait(self) -> None:
        """See `Event`."""
        if not self._is_set:
            self._monitor.wait_until(self.is_set)


class Monitor:
    """See the module, and `Waits`."""

    now = staticmethod(time.monotonic)

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._holder: int | None = None
        """The thread that has the lock."""
        self._own = threading.local()
        self._reader: int | None = None
        """The thread that reads for all."""
        self._waiting = 0

    # -- what coroutines wait for --

    def event(self) -> _Event:
        """See `Waits`."""
        return _Event(self)

    async def turn(self) -> None:
        """See `Waits`: the lock is given away whenever something is waited for."""

    def within(self, timeout_s: float | None) -> _Limited:
        """See `Waits`."""
        return _Limited(self, math.inf if timeout_s is None else self.now() + timeout_s)

    def scopes(self) -> list[_Limited]:
        """The blocks that the calling thread is in, the outermost first."""
        try:
            found: list[_Limited] = self._own.scopes
        except AttributeError:
            found = self._own.scopes = []
        return found

    def changed(self) -> None:
        """Threads that wait should look again."""
        if self._waiting:
            self._condition.notify_all()

    def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Blocks until it is over, reading if no other thread does."""
        me = threading.get_ident()
        while not is_over():
            deadline = math.inf
            for scope in self.scopes():
                if scope.deadline <= self.now():
                    raise _Expired(scope)
                deadline = min(deadline, scope.deadline)
            if self._reader in (
                None,
                me,
            ):  # the same thread: in a handler of a signal, above the one that reads
                self._read(me, deadline)
            else:
                self._carrier.hand_over()
                self.rest(deadline)

    def _read(self, me: int, deadline: float) -> None:
        before, self._reader = self._reader, me
        try:
            self._carrier.step(deadline)
        finally:
            self._reader = before
            self.changed()

    def rest(self, until: float) -> None:
        """Waits for a change, without the lock."""
        me, self._holder = self._holder, None
        self._waiting += 1
        try:
            left_s = until - self.now()
            self._condition.wait(None if left_s == math.inf else max(0.0, min(left_s, threading.TIMEOUT_MAX)))
        finally:
            self._waiting -= 1
            self._holder = me

    # -- the lock --

    @property
    def is_read_by_another(self) -> bool:
        """Whether another thread reads, and would have to be woken to write."""
        return self._reader not in (None, threading.get_ident())

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block with the lock. Raises RuntimeError where the same thread has it: in a handler of a signal, or in a
        finalizer, that came in the middle of another call."""
        me = threading.get_ident()
        if self._holder == me:
            raise RuntimeError("The client was called in the middle of another call of the same thread.")
        with self._lock:
            self._holder = me
            try:
                yield
            finally:
                self._holder = None

    @contextmanager
    def released(self) -> Iterator[None]:
        """A block without the lock, within one with it."""
        me, self._holder = self._holder, None
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._holder = me


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine of the client, which waits for nothing but what a monitor makes. With the lock."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise RuntimeError("a coroutine of the blocking client waits for an event loop")
