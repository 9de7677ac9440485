"""What leaves a connection: everything that there is, in few and large writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

import trio

from tickwheel_gateway.transport.engine import Engine
from tickwheel_gateway.transport.exchange import Exchange

_WRITE_BYTES: Final = 64 << 10
"""A peer that takes less in its time does not read."""


@runtime_checkable
class AtOnce(Protocol):
    """A stream that may be written without waiting."""

    def send_at_once(self, data: bytes) -> int:
        """Sends what fits now; the bytes sent. 0 also when the peer is gone: `send_all` says that."""


class Sender:
    """Writes what an engine has. All but `run` is synchronous: no handler waits here for a client.

    Its task is there while there is something to write, and no longer: of thousands of connections that have nothing to
    say each would keep one.
    """

    def __init__(
        self,
        engine: Engine,
        stream: trio.abc.SendStream,
        fetched: Callable[[Sequence[tuple[int, int]], Sequence[int]], list[tuple[Exchange, int]]],
    ) -> None:
        """``fetched``: told which messages and calls end in what is written now; gives who wants to know when it is."""
        self._engine = engine
        self._stream = stream
        self._at_once = stream if isinstance(stream, AtOnce) else None
        self._fetched = fetched
        self._writing: list[tuple[Exchange, int]] = []
        self._extra = bytearray()
        self._rest = b""
        """Of what did not fit into the socket at once."""
        self._start: Callable[[], None] | None = None
        """Called when `run` is to be run, in a task."""
        self._is_running = False
        self._is_closing = False
        self.is_dead = False
        """Nothing more is taken."""
        self.stalled_since = math.inf
        """Since when the socket has taken nothing of what waits."""
        self._waiting: trio.Event | None = None
        """Set when the socket has taken something, or `is_dead`."""

    def begin(self, start: Callable[[], None]) -> None:
        """From now on there are tasks: ``start`` is called when `run` is to be run in one."""
        self._start = start
        self.ring()

    def ring(self) -> None:
        """The engine may have something to say."""
        if self._start is not None and not self._is_running and not self.is_dead:
            self._is_running = True
            self._start()

    def hurry(self) -> None:
        """As `ring`, but nothing else is about to be said: what there is is written at once, as far as the socket takes
        it, and a task is there for the rest only."""
        if self._start is None or self._is_running or self.is_dead or self._at_once is None:
            self.ring()
            return
        data, writing = self._next()
        sent = self._at_once.send_at_once(data) if data else 0
        if sent < len(data):
            self._rest, self._writing = data[sent:], writing
        else:
            self._wrote(writing)
        if self._rest or self._is_closing or self._engine.may_send:
            self.ring()

    def say(self, frame: bytes) -> None:
        """A frame that is not the engine's."""
        self._extra += frame
        self.ring()

    async def wait_below(self, most_bytes: int) -> None:
        """While the socket takes nothing: until less than that waits."""
        while (
            self.stalled_since < math.inf and self._engine.unwritten_bytes >= most_bytes and not self.is_dead
        ):
            await self._wait()

    def finish(self) -> None:
        """Write what there is, and no more."""
        self._is_closing = True
        self.ring()

    async def wait_finished(self) -> None:
        """Until nothing more is taken."""
        while not self.is_dead:
            await self._wait()

    async def run(self) -> None:
        """Writes all that there is. Then it `is_dead` if that was the end: after `finish`, after the engine's last
        word, or because the peer is gone."""
        is_over = True
        try:
            while await self._write():
                pass
            is_over = self._is_closing or self._engine.has_ended
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            self._is_running = False
            if is_over:
                self.is_dead = True
                self._wake()
                for exchange, _ in self._writing:
                    exchange.lost()

    async def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = trio.Event()
        await self._waiting.wait()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.set()
            self._waiting = None

    async def _write(self) -> bool:
        """Some of what there is now; whether there was something."""
        if self._rest:
            data, self._rest = self._rest, b""
            writing = self._writing
        else:
            data, writing = self._next()
        if not data:
            return False
        if len(data) <= _WRITE_BYTES:
            self.stalled_since = trio.current_time()
            await self._stream.send_all(data)
        else:
            view = memoryview(data)
            while view:
                self.stalled_since = trio.current_time()
                await self._stream.send_all(view[:_WRITE_BYTES])
                view = view[_WRITE_BYTES:]
        self.stalled_since = math.inf
        self._wake()
        self._wrote(writing)
        return True

    def _next(self) -> tuple[bytes, list[tuple[Exchange, int]]]:
        data, whole, over = self._engine.data_to_send()
        writing = self._writing = self._fetched(whole, over)
        if self._extra:
            data += self._extra
            self._extra.clear()
        return data, writing

    def _wrote(self, writing: list[tuple[Exchange, int]]) -> None:
        self._writing = []
        for exchange, count in writing:
            exchange.wrote(count)
