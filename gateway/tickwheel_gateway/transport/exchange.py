"""A call that one handler serves alone: what has arrived of its request, and what waits to be sent."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import trio

from tickwheel_gateway.transport.call import CallEnded, Ends, Method
from tickwheel_gateway.transport.engine import OK_TRAILERS, Headers
from tickwheel_gateway.transport.heads import trailers


class Carrier(Protocol):
    """The connection, as a call sees it."""

    def reply(self, exchange: Exchange, data: bytes) -> None:
        """The only answer; the request is no longer in work."""

    def send(self, exchange: Exchange, messages: Sequence[bytes], *, last: bool) -> None:
        """More answers."""

    def take_back(self, exchange: Exchange, at: int, count: int, *, reopen: bool) -> int:
        """Some that were not begun; how many went."""

    def end(self, exchange: Exchange, ending: Headers) -> None:
        """Drop what was not begun, and end with these trailers."""

    def took(self, exchange: Exchange, size_bytes: int) -> None:
        """The handler has taken a message of a stream."""


class Piece:
    """One message on its way."""

    __slots__ = ("done", "is_written")

    def __init__(self) -> None:
        self.is_written = False
        self.done: trio.Event | None = None

    def settle(self) -> None:
        """It is written, or never will be."""
        if self.done is not None:
            self.done.set()


class Exchange:
    """See `Call`, whose words these are. The rest is for the connection and its sender."""

    __slots__ = (
        "_arrival",
        "_carrier",
        "_inbox",
        "_leaving",
        "deadline",
        "ending",
        "ends",
        "has_all",
        "has_streamed",
        "held_bytes",
        "is_closed",
        "is_running",
        "metadata",
        "method",
        "out",
        "request",
        "scope",
        "served_by",
        "stream_id",
        "written",
    )

    def __init__(
        self,
        *,
        stream_id: int,
        method: str,
        metadata: Mapping[str, str],
        deadline: float,
        served_by: Method,
        carrier: Carrier,
        ends: Ends,
    ) -> None:
        self.stream_id = stream_id
        self.method = method
        self.metadata = metadata
        self.deadline = deadline
        self.ends = ends
        self.request = b""
        self.written = 0
        self.served_by = served_by
        self.scope = trio.CancelScope(deadline=deadline)
        self.is_running = False
        self.has_all = False
        """The client has ended its side."""
        self._inbox: deque[bytes] | None = None
        """None: empty. A stream may stay open for days, and says little."""
        self.held_bytes = 0
        """Of whole messages, in work."""
        self.has_streamed = False
        self.out: list[Piece] = []
        """What the engine has and has not given to the socket."""
        self._leaving: list[Piece] = []
        """What the socket is being given."""
        self.ending: Headers | None = None
        """The trailers, once they are known."""
        self.is_closed = False
        """Nothing more can be sent."""
        self._carrier = carrier
        self._arrival: trio.Event | None = None

    def reply(self, data: bytes) -> None:
        """See `Call`."""
        if self.is_closed or self.ending is not None:
            return
        self.ending = OK_TRAILERS
        self._carrier.reply(self, data)

    async def stream(self, *messages: bytes, last: bool = False) -> None:
        """See `Call`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_closed or self.ending is not None:
            raise CallEnded
        self.has_streamed = True
        if last:
            self.ending = OK_TRAILERS
        pieces = [Piece() for _ in messages]
        self.out += pieces
        self._carrier.send(self, messages, last=last)
        if not pieces:
            return
        done = pieces[-1].done = trio.Event()
        try:
            await done.wait()
        except trio.Cancelled:
            if self._take_back(pieces, reopen=last) and last:
                self.ending = None
            raise
        if not pieces[-1].is_written:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise CallEnded

    def fail(self, status: int, text: str) -> None:
        """See `Call`."""
        if self.ending is None:
            self.end(trailers(status, text))

    def requests(self) -> AsyncIterator[bytes]:
        """See `Call`."""
        return _Requests(self)

    def hang_up(self) -> None:
        """See `Call`."""
        self.has_all = True
        self.arrived()

    async def next_request(self) -> bytes:
        """Raises StopAsyncIteration at the end, and CallEnded."""
        while not self._inbox:
            if self.is_closed:
                raise CallEnded
            if self.has_all:
                raise StopAsyncIteration
            self._arrival = trio.Event()
            await self._arrival.wait()
        message = self._inbox.popleft()
        if not self._inbox:
            self._inbox = None
        self._carrier.took(self, len(message))
        return message

    def end(self, ending: Headers) -> None:
        """Whatever was said before: these are the trailers. What was not begun is dropped."""
        if self.is_closed:
            return
        self.ending = ending
        self._drop_out()
        self._carrier.end(self, ending)

    def take(self, message: bytes) -> None:
        """One has arrived."""
        if self._inbox is None:
            self._inbox = deque()
        self._inbox.append(message)
        self.arrived()

    def arrived(self) -> None:
        """There is a message, or the client has ended its side."""
        if self._arrival is not None:
            self._arrival.set()
            self._arrival = None

    def fetched(self, count: int) -> None:
        """So many messages are given to the socket now."""
        self._leaving += self.out[:count]
        del self.out[:count]

    def wrote(self, count: int) -> None:
        """It has taken so many."""
        written = self._leaving[:count]
        del self._leaving[:count]
        self.written += len(written)
        for piece in written:
            piece.is_written = True
            piece.settle()

    def lost(self) -> None:
        """The socket is gone, and with it what was being written."""
        lost, self._leaving = self._leaving, []
        for piece in lost:
            piece.settle()

    def close(self) -> None:
        """Nothing more goes or comes."""
        self.is_closed = True
        self._drop_out()
        self.arrived()

    def _drop_out(self) -> None:
        dropped, self.out = self.out, []
        for piece in dropped:
            piece.settle()

    def _take_back(self, pieces: list[Piece], *, reopen: bool) -> bool:
        """Drops those of these that were not begun; whether there was something."""
        there = [piece for piece in pieces if piece in self.out]
        if not there:
            return False
        at = self.out.index(there[0])
        count = self._carrier.take_back(self, at, len(there), reopen=reopen)
        for piece in there[len(there) - count :]:
            self.out.remove(piece)
        return count > 0


class _Requests:
    """No generator: one that a cancelled handler leaves would be finished by the garbage collector."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> _Requests:
        return self

    def __anext__(self) -> Coroutine[Any, Any, bytes]:
        return self._exchange.next_request()  # without a frame of its own, which would wait with it
