"""One call on its stream: what has arrived of its request, and what waits to be sent."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

import trio

from tickwheel_gateway.transport.call import AnyMethod, CallEnded, Ends
from tickwheel_gateway.transport.engine import OK_TRAILERS
from tickwheel_gateway.transport.framing import MessageReader, framed
from tickwheel_gateway.transport.heads import Head, trailers

_Headers = list[tuple[bytes, bytes]]


class Carrier(Protocol):
    """The connection, as a call sees it."""

    def push(self, exchange: Exchange) -> None:
        """There is something to send."""

    def abort(self, exchange: Exchange) -> None:
        """It ends in the middle of a message: without trailers."""

    def answered(self, exchange: Exchange) -> None:
        """The request is no longer in work: its bytes count no more."""

    def took(self, exchange: Exchange, size_bytes: int) -> None:
        """The handler has taken a message of a stream."""


class Piece:
    """One framed message on its way."""

    __slots__ = ("at", "data", "done", "is_written")

    def __init__(self, message: bytes) -> None:
        self.data = framed(message)
        self.at = 0
        self.is_written = False
        self.done: trio.Event | None = None


class Batch:
    """Calls that one handler serves together. It is cancelled when all of them have ended."""

    __slots__ = ("exchanges", "left", "scope")

    def __init__(self, exchanges: list[Exchange]) -> None:
        self.exchanges = exchanges
        self.left = len(exchanges)
        self.scope = trio.CancelScope()

    def lost_one(self) -> None:
        """One of them has ended."""
        self.left -= 1
        if not self.left:
            self.scope.cancel()


class Exchange:
    """See `Call`, whose words these are. The rest is for the connection and its sender."""

    __slots__ = (
        "_arrival",
        "_carrier",
        "batch",
        "blocked_since",
        "deadline",
        "ending",
        "ends",
        "has_all",
        "held_bytes",
        "inbox",
        "is_closed",
        "is_head_sent",
        "is_running",
        "metadata",
        "method",
        "out",
        "out_bytes",
        "partial_bytes",
        "reader",
        "request",
        "scope",
        "served_by",
        "stream_id",
        "ungranted_bytes",
        "written",
    )

    def __init__(
        self,
        stream_id: int,
        head: Head,
        reader: MessageReader,
        served_by: AnyMethod,
        carrier: Carrier,
        ends: Ends,
    ) -> None:
        self.stream_id = stream_id
        self.method = head.method
        self.metadata = head.metadata
        self.deadline = math.inf if head.timeout_s is None else trio.current_time() + head.timeout_s
        self.ends = ends
        self.request = b""
        self.written = 0
        self.reader = reader
        self.served_by = served_by
        self.scope = trio.CancelScope(deadline=self.deadline)
        self.batch: Batch | None = None
        """With whom it is served, where it is not served alone."""
        self.is_running = False
        self.has_all = False
        """The client has ended its side."""
        self.inbox: deque[bytes] = deque()
        self.held_bytes = 0
        """Of whole messages, in work."""
        self.partial_bytes = 0
        self.ungranted_bytes = 0
        """Received, and not yet given back to the window of the stream."""
        self.is_head_sent = False
        self.out: deque[Piece] = deque()
        self.out_bytes = 0
        self.ending: _Headers | None = None
        """The trailers, once they are known."""
        self.is_closed = False
        """Nothing more can be sent."""
        self.blocked_since = math.inf
        """Since when the peer gives no window for what waits."""
        self._carrier = carrier
        self._arrival: trio.Event | None = None

    def reply(self, data: bytes) -> None:
        """See `Call`."""
        if self.is_closed or self.ending is not None:
            return
        self._carrier.answered(self)
        self._put(Piece(data))
        self.ending = OK_TRAILERS
        self._carrier.push(self)

    async def stream(self, *messages: bytes, last: bool = False) -> None:
        """See `Call`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_closed or self.ending is not None:
            raise CallEnded
        if not self.served_by.takes_stream:
            self._carrier.answered(self)
        pieces = [Piece(message) for message in messages]
        for piece in pieces:
            self._put(piece)
        if last:
            self.ending = OK_TRAILERS
        if not pieces:
            self._carrier.push(self)
            return
        done = pieces[-1].done = trio.Event()
        self._carrier.push(self)
        try:
            await done.wait()
        except trio.Cancelled:
            if self._take_back(pieces) and last:
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

    async def next_request(self) -> bytes:
        """Raises StopAsyncIteration at the end, and CallEnded."""
        while not self.inbox:
            if self.is_closed:
                raise CallEnded
            if self.has_all:
                raise StopAsyncIteration
            self._arrival = trio.Event()
            await self._arrival.wait()
        message = self.inbox.popleft()
        self._carrier.took(self, len(message))
        return message

    def end(self, ending: _Headers) -> None:
        """Whatever was said before: these are the trailers. What was not begun is dropped."""
        if self.is_closed:
            return
        self._take_back(self.out)
        self.ending = ending
        if self.out:
            self._carrier.abort(self)
        else:
            self._carrier.push(self)

    def arrived(self) -> None:
        """There is a message, or the client has ended its side."""
        if self._arrival is not None:
            self._arrival.set()
            self._arrival = None

    def close(self) -> None:
        """Nothing more goes or comes."""
        self.is_closed = True
        if self.batch is not None:
            self.batch.lost_one()
        self.reader.drop()
        for piece in self.out:
            if piece.done is not None:
                piece.done.set()
        self.out.clear()
        self.out_bytes = 0
        self.arrived()

    def _put(self, piece: Piece) -> None:
        self.out.append(piece)
        self.out_bytes += len(piece.data)

    def _take_back(self, pieces: list[Piece] | deque[Piece]) -> bool:
        """Drops what was not begun; whether there was something."""
        back = {piece for piece in pieces if not piece.at}.intersection(self.out)
        for piece in back:
            self.out_bytes -= len(piece.data)
            if piece.done is not None:
                piece.done.set()
        if back:
            self.out = deque(piece for piece in self.out if piece not in back)
        return bool(back)


class _Requests:
    """No generator: one that a cancelled handler leaves would be finished by the garbage collector."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> _Requests:
        return self

    async def __anext__(self) -> bytes:
        return await self._exchange.next_request()
