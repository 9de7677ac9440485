"""One lock for all that a client knows, and how threads wait under it.

A coroutine of the client is run to its end in the thread that calls it, with the lock. What it waits for blocks the
thread, and gives the lock away meanwhile. Of the threads that wait, one reads the socket for all of them, and wakes
those whose event has come; when it has what it wanted, another one goes on.

Ctrl-C comes only where a call waits, and at its end (`interruptions`). What else a handler of a signal raises may come
anywhere. So the lock is taken by ``with`` alone, which cannot lose it, and taken again after each wait by ``_regain``.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from tickwheel.blocking.interruptions import Shield, shield_here

T = TypeVar("T")
_LONGEST_SLEEP_S: Final = 5.0
"""Then a thread looks whether it should read: the one that read may have been interrupted before it woke the next."""


class Carrier(Protocol):
    """What reads and writes. It is called with the lock."""

    def step(self, until: float) -> None:
        """Does some of what is to be done, or waits for something to do, but not longer than until then."""

    def hand_over(self) -> None:
        """A thread is about to sleep while another one reads: what it left must be written."""

    def ring(self) -> None:
        """Ends the wait of the thread that reads."""


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
        self._monitor.scopes.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._monitor.scopes.remove(self)
        if isinstance(error, _Expired) and error.scope is self:
            self.cancelled_caught = True
            return True
        return False


class _Turn:
    """A thread that waits for one event."""

    __slots__ = ("thread",)

    def __init__(self, thread: int) -> None:
        self.thread = thread


class _Event:
    """See `Event`."""

    __slots__ = ("_is_set", "_monitor", "turns")

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._is_set = False
        self.turns: list[_Turn] = []

    def set(self) -> None:
        """See `Event`."""
        self._is_set = True
        for turn in self.turns:
            self._monitor.wake(turn)

    def is_set(self) -> bool:
        """See `Event`."""
        return self._is_set

    async def wait(self) -> None:
        """See `Event`."""
        if not self._is_set:
            self._monitor.wait_for(self)


class Monitor:
    """See the module, and `Waits`."""

    now = staticmethod(time.monotonic)

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._own = threading.local()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Also in the child of a fork, where the lock may be held by a thread that is not there."""
        # One that knows its owner: after an interruption that is all there is to know it by.
        self.lock: Any = threading.RLock()
        self._reader: _Turn | None = None
        """Who reads for all."""
        self._sleeping: dict[_Turn, threading.Lock] = {}

    # -- what coroutines wait for --

    def event(self) -> _Event:
        """See `Waits`."""
        return _Event(self)

    async def turn(self) -> None:
        """See `Waits`: the lock is given away whenever something is waited for."""

    def within(self, timeout_s: float | None) -> _Limited:
        """See `Waits`."""
        return _Limited(self, math.inf if timeout_s is None else self.now() + timeout_s)

    @property
    def scopes(self) -> list[_Limited]:
        """The blocks that the call of this thread is in, the outermost first."""
        found: list[_Limited] = self._own.scopes
        return found

    def wait_for(self, event: _Event) -> None:
        """Blocks until it is set, reading if no other thread does."""
        turn, lock = _Turn(threading.get_ident()), self.lock
        event.turns.append(turn)
        try:
            while not event.is_set():
                until = self._until()
                # The same thread reads where a handler of a signal came above its wait.
                if self._reader is None or self._reader.thread == turn.thread:
                    self._read(turn, until)
                    continue
                self._carrier.hand_over()
                if not event.is_set():
                    self._sleep(turn, until)
        finally:
            _regain(lock)
            event.turns.remove(turn)
            if self._reader is None:
                self._wake_one()

    def _until(self) -> float:
        until, now = math.inf, self.now()
        for scope in self.scopes:
            if scope.deadline <= now:
                raise _Expired(scope)
            until = min(until, scope.deadline)
        return until

    def _read(self, turn: _Turn, until: float) -> None:
        before, lock = self._reader, self.lock
        try:
            self._reader = turn
            self._carrier.step(until)
        finally:
            self._reader = before  # first of all: an interruption may come at the next call
            _regain(lock)

    def read_at_once(self) -> None:
        """Reads once, and waits for nothing. Not if another thread reads: that sees to everything. With the lock."""
        if self._reader is not None:
            return
        try:
            self._read(_Turn(threading.get_ident()), self.now())
        finally:
            if self._reader is None:
                self._wake_one()

    @property
    def is_read(self) -> bool:
        """Whether a thread reads, for all."""
        return self._reader is not None

    def wait_alone(self, wait: Callable[[], T]) -> T:
        """Waits as the thread that reads, but without the lock and without a call of `hold` around it: Ctrl-C comes at
        its end. Not while another thread reads. With the lock."""
        lock = self.lock
        try:
            self._reader = _Turn(threading.get_ident())
            lock.release()
            return wait()
        finally:
            self._reader = None
            _regain(lock)
            if self._reader is None:
                self._wake_one()

    def rest(self, until: float) -> None:
        """Waits without the lock, in the place of reading."""
        assert self._reader is not None
        self._sleep(self._reader, until)

    def _sleep(self, turn: _Turn, until: float) -> None:
        gate = threading.Lock()
        gate.acquire()
        left_s = max(0.0, min(until - self.now(), _LONGEST_SLEEP_S))
        try:
            self._sleeping[turn] = gate
            self.without(lambda: gate.acquire(timeout=left_s))
        finally:
            self._sleeping.pop(turn, None)

    def wake(self, turn: _Turn) -> None:
        """This one looks again at what it waits for."""
        gate = self._sleeping.pop(turn, None)
        if gate is not None:
            gate.release()
        elif turn is self._reader and self.is_read_by_another:
            self._carrier.ring()

    def wake_reader(self) -> None:
        """Who reads looks again at what there is to do, if that is another thread."""
        if self._reader is not None:
            self.wake(self._reader)

    def _wake_one(self) -> None:
        for turn in list(self._sleeping)[:1]:
            self.wake(turn)

    # -- the lock --

    @property
    def is_read_by_another(self) -> bool:
        """Whether another thread reads, and would have to be woken to write."""
        return self._reader is not None and self._reader.thread != threading.get_ident()

    def hold(self, work: Callable[[], T]) -> T:
        """Does something with the lock. Raises RuntimeError where the same thread has it: in a handler of a signal, or
        in a finalizer, that came in the middle of another call."""
        lock = self.lock
        if lock._is_owned():
            raise RuntimeError("The client was called in the middle of another call of the same thread.")
        with lock:
            own = self._own
            before = getattr(own, "scopes", None)  # of the call that a handler of a signal came in
            above: Shield | None = getattr(own, "shield", None)
            shield = shield_here()
            try:
                own.scopes, own.shield = [], shield
                if shield is not None:
                    shield.put_up()
                return work()
            finally:
                own.scopes, own.shield = before, above
                _regain(lock)
                if before is not None:  # that looks again when the handler has returned
                    self._carrier.ring()
                if shield is not None:
                    shield.put_away()

    def without(self, work: Callable[[], T]) -> T:
        """Waits for something without the lock, in the middle of something with it."""
        lock, shield = self.lock, self._own.shield
        try:
            lock.release()
            if shield is not None:
                shield.lower()
            return work()
        finally:
            try:
                _regain(lock)
            finally:
                if shield is not None:
                    shield.lift()


def _regain(lock: Any) -> None:
    """Takes the lock again, if this thread does not have it. An interruption comes after that."""
    interruption: BaseException | None = None
    while True:
        try:
            if not lock._is_owned():
                lock.acquire()
            break
        except BaseException as error:
            interruption = error
    if interruption is not None:
        raise interruption


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine of the client, which waits for nothing but what a monitor makes. With the lock."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise RuntimeError("a coroutine of the blocking client waits for an event loop")
