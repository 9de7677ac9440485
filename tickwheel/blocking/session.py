"""The conversation of a client that blocks: carried by the thread that waits for it.

Without a thread that waits nothing is read. What is to be written is written at once, as far as the socket takes it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import select
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from tickwheel.blocking.dial import Opening, Target
from tickwheel.blocking.monitor import Monitor, run
from tickwheel.blocking.wire import Wire
from tickwheel.client import forks as _forks
from tickwheel.client.calls import Call, SendFlight
from tickwheel.client.conversation import Conversation
from tickwheel.client.link import Link
from tickwheel.client.security import explain_tls
from tickwheel.client.url import Address
from tickwheel.protocol.bodies.requests import HelloOk
from tickwheel.protocol.errors import ClientForked, InternalError, NotConnected, TickwheelError

T = TypeVar("T")
Dial: TypeAlias = Callable[[Address, float, float], Opening]
"""Begins a connection, at a time, that may take so many seconds."""

_FAILURES: Final = (OSError, TickwheelError)
_STALE_S: Final = 1.0
"""When nothing was read for so long, it is seen first whether the connection is still there."""
_FLIGHTS_MAX: Final = 4
"""With so many unanswered sends, further ones wait for the next answer and go together: a thread reads then."""

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
        self._opening: Opening | None = None
        self._open: tuple[Link, Wire] | None = None
        """The connection; its handshake may not be done."""
        self._is_in_round = False
        self._is_closing = False
        self._targets: dict[Address, Sequence[Target]] = {}
        """What addresses stood for when they were looked up last."""
        self._round_at = -math.inf
        """When the next round of trying nodes begins."""
        self._look_at = -math.inf
        """When requests and connections are looked at that may have waited too long."""
        self._seen_at = -math.inf
        """When the socket was last seen without anything to read."""
        self._round_ended = self.monitor.event()
        """All nodes were tried once."""
        self._bell, self._ear = _bell()
        self._is_rung = False
        self._attendant: threading.Thread | None = None
        self._has_ended = self.monitor.event()

    # -- for its client --

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the client. What it leaves to be written is written."""

        def carried() -> T:
            try:
                return run(work)
            finally:
                self.hand_over()

        try:
            return self.monitor.hold(carried)
        finally:
            work.close()  # one that was not begun

    def change(self, work: Callable[[], T]) -> T:
        """The result of a function that waits for nothing. What it leaves to be written is written: by the thread that
        reads, if another one does."""

        def carried() -> T:
            result = work()
            if self.monitor.is_read_by_another:
                self._wake_reader()
            else:
                self.hand_over()
            return result

        return self.monitor.hold(carried)

    def turn(self) -> None:
        """What can be done now without waiting: reads what has come, writes what is left, goes on with a connection
        that is being opened, ends requests that have waited too long. For an event loop that watches ``fileno``, and
        comes every ``watch_s`` seconds besides."""

        def turned() -> None:
            is_due = self.waits.now() >= self._look_at
            self.monitor.read_at_once()
            if is_due:  # then that was all that it did
                self.monitor.read_at_once()
            self.hand_over()  # what came may have left something to say, and the caller may not come again soon

        self.monitor.hold(turned)

    def fileno(self) -> int:
        """The descriptor of the connection; -1: there is none now. The next connection has another one."""
        return -1 if self._open is None else self._open[1].fileno()

    async def connect(self, timeout_s: float, *, is_patient: bool = True) -> None:
        """Waits for the first connection; if not ``is_patient``, until each node was tried once. Raises NotConnected
        with the last reason, or why it can never be."""
        with self.monitor.within(timeout_s):
            await (self._connected if is_patient else self._round_ended).wait()
        self.check_connected()

    async def drain(self) -> None:
        """See `Conversation`."""
        self._is_closing = True
        while self._leaving or (self._has_unwritten() and self.is_connected):
            if self._drained.is_set():
                self._drained = self.monitor.event()
            await self._drained.wait()

    def hang_up(self) -> None:
        """The end. Nothing may be asked any more."""
        attendant = self._attendant

        def end() -> None:
            self.close()
            self._has_ended.set()
            self._drop_wire()
            self.link = None
            self._wake_reader()

        self.monitor.hold(end)
        if attendant is not None and attendant is not threading.current_thread():
            attendant.join(self.watch_s + 1.0)
        self._bell.close()
        self._ear.close()

    def leases_changed(self, due: float) -> None:
        """See `Conversation`."""
        if due < self._renews_at:
            self._renews_at = due
            self._wake_reader()
        if self._attendant is None and self.holdings and self._terminal is None:
            self._attendant = threading.Thread(target=self._attend, name="tickwheel-leases", daemon=True)
            self._attendant.start()

    def _attend(self) -> None:
        """The one thread of a client, while leases may have to be renewed: what a handler does takes its own time."""

        async def attended() -> None:
            while self.holdings and self._terminal is None:
                with self.monitor.within(self.watch_s):
                    await self._has_ended.wait()

        def attend() -> None:
            try:
                run(attended())
            except Exception as error:
                logger.exception("the client has failed")
                self.close(
                    InternalError(f"The client has failed: {error!r}.", advice="Please report this defect.")
                )
            finally:
                if self._attendant is threading.current_thread():
                    self._attendant = None

        self.monitor.hold(attend)

    def forked(self, error: ClientForked) -> None:
        """See `Conversation`. The lock may be held by a thread that this process does not have."""
        _forks.keep(self.monitor.lock, self._bell, self._ear, self._open, self._opening, self._attendant)
        self.monitor.begin_anew()
        link = None if self._open is None else self._open[0]
        opening, self._opening = self._opening, None
        self._open = self._attendant = None
        if opening is not None and opening.fileno() >= 0:
            _forks.let_go(opening.fileno())
        if link is not None and self.link is not link:  # in the middle of its handshake
            link.let_go()
        for end in (self._bell, self._ear):
            if end.fileno() >= 0:
                _forks.let_go(end.fileno())
        super().forked(error)

    # -- carrying --

    def _established(self, link: Link, hello: HelloOk) -> None:
        super()._established(link, hello)
        self._round_ended.set()

    def close(self, error: TickwheelError | None = None) -> None:
        """See `Conversation`."""
        super().close(error)
        self._round_ended.set()

    def step(self, until: float) -> None:
        """See `Carrier`."""
        now = self.waits.now()
        if now >= self._look_at:
            if now - self._look_at > self.watch_s and self._open is not None:
                # Nothing was read for a while, because no thread waited: the broker was perhaps not silent.
                self._open[0].heard_at = self._open[0].pinged_at = now
            self._look_at = now + self.watch_s
            self.check_time()
            return
        until = min(until, self._look_at)
        if self._terminal is not None:
            self.monitor.rest(until)
        elif self._open is not None:
            self._converse(*self._open, now, until)
        elif self._opening is not None:
            self._go_on_opening(self._opening, now, until)
        else:
            self._try_next_node(now, until)

    def hand_over(self) -> None:
        """See `Carrier`. Writes at once, and wakes the thread that reads for what the socket does not take."""
        if self._open is None:
            self._wake_reader()
            return
        link, wire = self._open
        is_idle = not (self._outbox or wire.has_unwritten or link.scope.cancelled_caught)
        if is_idle or (self.monitor.is_read_by_another and self._is_crowded(link)):
            return
        try:
            self._write(link, wire)
        except _FAILURES as error:
            _doom(link, error)
        except BaseException as error:
            _doom(link, _interrupted(error))
            raise
        finally:
            if wire.has_unwritten or link.scope.cancelled_caught:
                self._wake_reader()

    def ring(self) -> None:
        """See `Carrier`."""
        if not self._is_rung:
            self._is_rung = True
            with contextlib.suppress(OSError):
                self._bell.send(b"\0")

    def _wake_reader(self) -> None:
        if self.monitor.is_read_by_another:
            self.monitor.wake_reader()

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
            self._round_ended.set()
            return
        try:
            opening = self._dial(address, now, self.nodes.patience_s)
            self._look_up(opening, address)
        except _FAILURES as error:
            self._not_opened(address, error)
            return
        if self._terminal is None and self._open is None and self._opening is None:
            self._opening = opening

    def _look_up(self, opening: Opening, address: Address) -> None:
        """While the client is being closed a name stands for what it stood for last: no limit of time holds for asking
        what it stands for."""
        if not self._is_closing:
            self._targets[address] = self.monitor.without(opening.look_up)
        elif address in self._targets:
            opening.take(self._targets[address])
        else:
            raise NotConnected("The client is being closed.")

    def _go_on_opening(self, opening: Opening, now: float, until: float) -> None:
        try:
            wire = opening.go_on(now)
        except _FAILURES as error:
            self._opening = None
            self._not_opened(self.nodes.current, error)
            return
        except BaseException:
            self._opening = None
            raise
        if wire is None:
            self._wait_for(opening.fileno(), min(until, opening.next_at()), is_writing=opening.wants_to_write)
            return
        ends_at = opening.until if self.nodes.are_several else now + self.nodes.patience_s
        link = Link(self, self.created_topics, now, _Life(ends_at))
        link.socket = wire
        self._open, self._opening = (link, wire), None
        self._seen_at = now
        self._lives_after(link, lambda: wire.write(link.machine.hello(*self.introduction())))

    def _not_opened(self, address: Address, error: BaseException) -> None:
        logger.debug("no connection to %s: %s", address, error)
        self._not_served(error, is_silent=isinstance(error, TimeoutError))

    def _converse(self, link: Link, wire: Wire, now: float, until: float) -> None:
        if not self._lives_after(link, lambda: self._say(link, wire, now)):
            return
        until = min(until, link.scope.deadline, self._renews_at)
        is_ready = self._wait_for(wire.fileno(), until, is_writing=wire.has_unwritten)
        if is_ready and self._open is not None and self._open[1] is wire:
            self._lives_after(link, lambda: self._hear(link, wire))

    def _lives_after(self, link: Link, work: Callable[[], object]) -> bool:
        """Does something with a connection; whether there still is one."""
        try:
            work()
        except _FAILURES as error:
            self._lose(link, error)
            return False
        except BaseException as error:
            # Interrupted in between: it is not known how much was read or written.
            self._lose(link, _interrupted(error))
            raise
        return True

    def _say(self, link: Link, wire: Wire, now: float) -> None:
        if link.scope.cancelled_caught:
            raise link.broken or NotConnected("The connection was ended.")
        if now >= link.scope.deadline:
            link.is_silent = True
            raise NotConnected("The broker did not answer the handshake in time.")
        if link.ready:
            self._renews_at = min((one.turn(now) for one in list(self.holdings)), default=math.inf)
        self._write(link, wire)

    def _hear(self, link: Link, wire: Wire) -> None:
        wire.flush()
        self._read(link, wire)

    def _write(self, link: Link, wire: Wire) -> None:
        wire.flush()
        if self._outbox and self._is_stale(self.waits.now()):
            self._read(link, wire)
        while not wire.has_unwritten and (frames := self._take(link)):
            wire.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if not self._has_unwritten():
            self._drained.set()

    def _is_stale(self, now: float) -> bool:
        """Whether the connection may have ended unseen, so that it is looked at before something is written."""
        return now - self._seen_at > _STALE_S

    def _has_unwritten(self) -> bool:
        return bool(self._outbox) or (self._open is not None and self._open[1].has_unwritten)

    def _is_crowded(self, link: Link) -> bool:
        pending = link.pending
        return (
            len(pending) >= _FLIGHTS_MAX
            and sum(isinstance(call, SendFlight) for call in pending.values()) >= _FLIGHTS_MAX
            and all(isinstance(call, SendFlight) for call in self._outbox)
        )

    def _wait_for(self, descriptor: int, until: float, *, is_writing: bool) -> bool:
        """Whether it may be read or written. Without the lock; an interruption here does no harm to anything."""
        left_s = max(0.0, until - self.waits.now())
        ear = self._ear.fileno()
        is_ready, is_rung = self.monitor.without(lambda: _wait(descriptor, ear, left_s, is_writing))
        self._is_rung = False
        if is_rung:
            with contextlib.suppress(OSError):
                self._ear.recv(64)
        if not is_ready:
            self._seen_at = self.waits.now()
        return is_ready

    def _read(self, link: Link, wire: Wire) -> None:
        # What is read now has perhaps lain here since the last time.
        self._turned_at, self._seen_at = self._seen_at, self.waits.now()
        while (data := wire.read()) is not None:
            self._take_in(link, data)
            if not wire.may_have_more:
                return

    def _take_in(self, link: Link, data: bytes) -> None:
        if not data:
            raise NotConnected("The broker has closed the connection.")
        link.heard_at = self.waits.now()
        for event in link.machine.receive_data(data):
            self._handle(link, event)
        if link.draining and not link.pending:
            raise NotConnected("The broker is stopping.")

    def _lose(self, link: Link, error: BaseException) -> None:
        link.break_with(explain_tls(error, self.nodes.current) or error)
        if self._open is None or self._open[0] is not link:
            return  # another thread has seen it first
        self._drop_wire()
        self._lost(link)
        self._find_lost()
        if link.ready:
            self._is_in_round, self._round_at = False, self.waits.now() + self._backoff.next_s()

    def _find_lost(self) -> None:
        """After an interruption: what was on its way between two places goes again."""
        if self._terminal is not None:
            return
        waiting = set(self._outbox)
        for call in [one for one in self._live if one not in waiting]:
            if call.written and not call.repeatable:
                self.fail(call, call.lost())
            else:
                call.repeated, call.written = call.repeated or call.written, False
                self._outbox.append(call)

    def _settle(self, call: Call) -> None:
        try:
            super()._settle(call)
        except BaseException:
            call.done.set()  # interrupted in between
            raise

    def _drop_wire(self) -> None:
        if self._opening is not None:
            self._opening.close()
            self._opening = None
        if self._open is not None:
            self._open[1].close()
            self._open = None


_LONGEST_S: Final = 86_400.0


def _doom(link: Link, error: BaseException) -> None:
    """The connection ends; the thread that reads next sees to it."""
    link.break_with(error)
    link.scope.cancel()


def _interrupted(error: BaseException) -> NotConnected:
    return NotConnected(f"The thread that carried the connection was interrupted ({type(error).__name__}).")


def _bell() -> tuple[socket.socket, socket.socket]:
    bell, ear = socket.socketpair()
    bell.setblocking(False)
    ear.setblocking(False)
    return bell, ear


def _wait(descriptor: int, ear: int, left_s: float, is_writing: bool) -> tuple[bool, bool]:
    """Whether the socket is ready, and whether the bell was rung. Neither way has a descriptor of its own that a fork
    would share; what makes blocking code cooperate puts its own in their place, or takes the first one away."""
    left_s = min(left_s, _LONGEST_S)
    if not hasattr(select, "poll"):
        readable, writable, _ = select.select(
            [descriptor, ear], [descriptor] if is_writing else [], [], left_s
        )
        return descriptor in readable or descriptor in writable, ear in readable
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | (select.POLLOUT if is_writing else 0))
    poll.register(ear, select.POLLIN)
    ready = {one for one, _ in poll.poll(math.ceil(left_s * 1_000))}
    return descriptor in ready, ear in ready
