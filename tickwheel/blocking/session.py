"""The conversation of a client that blocks: carried by the thread that waits for it.

Without a thread that waits nothing is read. What is to be written is written at once, as far as the socket takes it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import selectors
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeAlias, TypeVar

from tickwheel.blocking.monitor import Monitor, run
from tickwheel.blocking.wire import Wire
from tickwheel.client import forks as _forks
from tickwheel.client.conversation import Conversation
from tickwheel.client.link import Link
from tickwheel.client.security import explain_tls
from tickwheel.client.url import Address
from tickwheel.protocol.errors import ClientForked, InternalError, NotConnected, TickwheelError

T = TypeVar("T")
Dial: TypeAlias = Callable[[Address, float], Wire]
"""Opens a connection within so many seconds."""

_SHORTEST_S: Final = 0.001
_FAILURES: Final = (OSError, TickwheelError)

logger = logging.getLogger("tickwheel")


class _Life:
    """Of a connection: until when it may last, and whether it was ended. See `Scope`."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.cancelled_caught = False

    def cancel(self) -> None:
        """It ends."""
        self.cancelled_caught = True


class BlockingSession(Conversation):
    """See the module. ``options``: of `Conversation`."""

    def __init__(self, *arguments: Any, dial: Dial, **options: Any) -> None:
        self.monitor = Monitor(self)
        super().__init__(*arguments, waits=self.monitor, **options)
        self._dial = dial
        self._open: tuple[Link, Wire] | None = None
        """The connection; its handshake may not be done."""
        self._is_in_round = False
        self._round_at = -math.inf
        """When the next round of trying nodes begins."""
        self._look_at = -math.inf
        """When requests and connections are looked at that may have waited too long."""
        self._bell, self._ear = _bell()
        self._is_rung = False
        self._attendant: threading.Thread | None = None

    # -- for its client --

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the client. What it leaves to be written is written."""
        with self.monitor.held():
            try:
                return run(work)
            finally:
                self.hand_over()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """A block that changes something and waits for nothing. What it leaves to be written is written: by the thread
        that reads, if another one does."""
        with self.monitor.held():
            yield
            if self.monitor.is_read_by_another:
                self._ring()
            else:
                self.hand_over()

    async def connect(self, timeout_s: float) -> None:
        """Waits for the first connection. Raises NotConnected with the last reason, or why it can never be."""
        with self.monitor.within(timeout_s):
            await self._connected.wait()
        self.check_connected()

    async def drain(self) -> None:
        """See `Conversation`."""
        self.monitor.wait_until(lambda: not (self._has_unwritten() or self._leaving) or not self.is_connected)

    def hang_up(self) -> None:
        """The end. Nothing may be asked any more."""
        attendant = self._attendant
        with self.monitor.held():
            self.close()
            self._drop_wire()
            self._ring()
            self.monitor.changed()
        if attendant is not None and attendant is not threading.current_thread():
            attendant.join(self.watch_s + 1.0)
        with contextlib.suppress(OSError):
            self._bell.close()
            self._ear.close()

    def hand_over(self) -> None:
        """See `Carrier`. Writes at once, and wakes the thread that reads for what the socket does not take."""
        if self._open is None:
            self._ring()
            return
        link, wire = self._open
        try:
            self._write(link, wire)
        except _FAILURES as error:
            link.break_with(error)
            link.scope.cancel()
        if wire.has_unwritten or link.scope.cancelled_caught:
            self._ring()

    def leases_changed(self, due: float) -> None:
        """See `Conversation`."""
        if due < self._renews_at:
            self._renews_at = due
            self._ring()
        if self._attendant is None and self.holdings:
            self._attendant = threading.Thread(target=self._attend, name="tickwheel-leases", daemon=True)
            self._attendant.start()

    def _attend(self) -> None:
        """The one thread of a client, while leases may have to be renewed: what a handler does takes its own time."""
        with self.monitor.held():
            try:
                self.monitor.wait_until(lambda: not self.holdings or self._terminal is not None)
            except Exception as error:
                logger.exception("the client has failed")
                self.close(
                    InternalError(f"The client has failed: {error!r}.", advice="Please report this defect.")
                )
            finally:
                self._attendant = None

    def forked(self, error: ClientForked) -> None:
        """See `Conversation`. The lock may be held by a thread that this process does not have."""
        _forks.keep(self.monitor, self._bell, self._ear, self._open)
        self.monitor = Monitor(self)
        self.waits = self.monitor
        link = None if self._open is None else self._open[0]
        self._open = self._attendant = None
        if link is not None and self.link is not link:  # in the middle of its handshake
            link.let_go()
        super().forked(error)

    # -- carrying --

    def step(self, until: float) -> None:
        """See `Carrier`."""
        now = self.waits.now()
        if now >= self._look_at:
            if now - self._look_at > self.watch_s and self._open is not None:
                # Nothing was read for a while, because no thread waited: the broker was perhaps not silent.
                self._open[0].heard_at = self._open[0].pinged_at = now
            self._turned_at, self._look_at = now, now + self.watch_s
            self.check_time()
            return
        until = min(until, self._look_at)
        if self._terminal is not None:
            self.monitor.rest(until)
        elif self._open is None:
            self._try_next_node(now, until)
        else:
            self._converse(*self._open, now, until)

    def _try_next_node(self, now: float, until: float) -> None:
        if not self._is_in_round:
            if now < self._round_at:
                self.monitor.rest(min(until, self._round_at))
                return
            self.begin_round()
            self._is_in_round = True
        address = self.nodes.next()
        if address is None:
            self._is_in_round, self._round_at = False, now + self._backoff.next_s()
            self.end_round()
            return
        patience_s = self.nodes.patience_s
        try:
            with self.monitor.released():
                wire = self._dial(address, patience_s)
        except _FAILURES as error:
            logger.debug("no connection to %s: %s", address, error)
            self._not_served(error, is_silent=isinstance(error, TimeoutError))
            return
        if self._terminal is not None:
            wire.close()
            return
        opened_at = self.waits.now()
        if self.nodes.are_several:
            patience_s -= opened_at - now
        link = Link(self, self.created_topics, opened_at, _Life(opened_at + patience_s))
        link.descriptor = wire.fileno()
        self._open = link, wire
        try:
            wire.write(link.machine.hello(*self.introduction()))
        except _FAILURES as error:
            self._lose(link, error)

    def _converse(self, link: Link, wire: Wire, now: float, until: float) -> None:
        try:
            if link.scope.cancelled_caught:
                raise link.broken or NotConnected("The connection was ended.")
            if now >= link.scope.deadline:
                link.is_silent = True
                raise NotConnected("The broker did not answer the handshake in time.")
            if link.ready:
                self._renews_at = min((one.turn(now) for one in list(self.holdings)), default=math.inf)
            self._write(link, wire)
        except _FAILURES as error:
            self._lose(link, error)
            return
        self._wait_for_socket(wire, min(until, link.scope.deadline, self._renews_at))
        if self._open is None or self._open[1] is not wire:
            return  # another thread has lost it meanwhile
        try:
            wire.flush()
            self._read(link, wire)
        except _FAILURES as error:
            self._lose(link, error)
        except BaseException as error:
            # Interrupted in between: it is not known how much of what was read was taken.
            self._lose(link, NotConnected(f"The thread that read was interrupted ({type(error).__name__})."))
            raise

    def _write(self, link: Link, wire: Wire) -> None:
        wire.flush()
        while not wire.has_unwritten and (frames := self._take(link)):
            wire.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if not self._has_unwritten():
            self._drained.set()

    def _has_unwritten(self) -> bool:
        return bool(self._outbox) or (self._open is not None and self._open[1].has_unwritten)

    def _wait_for_socket(self, wire: Wire, until: float) -> None:
        """Without the lock. An interruption here does no harm: nothing is being read or written."""
        left_s = until - self.waits.now()
        if left_s <= 0:
            left_s = 0.0
        with _selector() as selector:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if wire.has_unwritten else 0)
            selector.register(wire.fileno(), wanted)
            selector.register(self._ear, selectors.EVENT_READ)
            with self.monitor.released():
                ready = selector.select(None if left_s == math.inf else max(left_s, _SHORTEST_S))
        if any(key.fileobj is self._ear for key, _ in ready):
            self._is_rung = False
            with contextlib.suppress(OSError):
                self._ear.recv(64)

    def _read(self, link: Link, wire: Wire) -> None:
        while (data := wire.read()) is not None:
            if not data:
                raise NotConnected("The broker has closed the connection.")
            link.heard_at = self.waits.now()
            for event in link.machine.receive_data(data):
                self._handle(link, event)
            if link.draining and not link.pending:
                raise NotConnected("The broker is stopping.")
            if len(data) < _MUCH_BYTES:
                return

    def _lose(self, link: Link, error: BaseException) -> None:
        link.break_with(explain_tls(error, self.nodes.current) or error)
        if self._open is None or self._open[0] is not link:
            return  # another thread has seen it first
        self._drop_wire()
        if link.ready:
            self._is_in_round, self._round_at = False, self.waits.now() + self._backoff.next_s()
        self._lost(link)
        self.monitor.changed()

    def _drop_wire(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _ring(self) -> None:
        """Wakes the thread that reads, if another one does."""
        if self.monitor.is_read_by_another:
            self.monitor.changed()
            if not self._is_rung:
                self._is_rung = True
                with contextlib.suppress(OSError):
                    self._bell.send(b"\0")


_MUCH_BYTES: Final = 64 * 1024
"""Of so much in one read there is likely more."""


def _bell() -> tuple[socket.socket, socket.socket]:
    bell, ear = socket.socketpair()
    bell.setblocking(False)
    ear.setblocking(False)
    return bell, ear


def _selector() -> selectors.BaseSelector:
    """One that has no descriptor of its own, where there is one: it is made anew for each wait, and forks do not matter
    to it. What makes blocking code cooperate may have taken it away."""
    kind: Any = getattr(selectors, "PollSelector", selectors.DefaultSelector)
    made: selectors.BaseSelector = kind()
    return made
