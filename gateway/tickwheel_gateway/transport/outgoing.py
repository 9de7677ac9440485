"""What leaves a connection: as much as the peer's windows and the socket take, in few and large writes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import trio

from tickwheel_gateway.transport.abuse import Guard
from tickwheel_gateway.transport.engine import OK_HEAD, Engine, ErrorCodes
from tickwheel_gateway.transport.exchange import Exchange, Piece

HIGH_WATER_BYTES: Final = 1 << 20
"""So much is given to the engine before the socket takes some."""
_TURN_BYTES: Final = 64 << 10
"""What one stream sends before others have a turn."""
_WRITE_BYTES: Final = 64 << 10
"""A peer that takes less in its time does not read."""


class Sender:
    """The outgoing side of one connection. All but `run` is synchronous: nobody waits here for a client."""

    def __init__(
        self, engine: Engine, stream: trio.abc.SendStream, guard: Guard, ended: Callable[[Exchange], None]
    ) -> None:
        """``ended``: told of each call whose last frame is on its way."""
        self._engine = engine
        self._stream = stream
        self._guard = guard
        self._ended = ended
        self._waiting: dict[int, Exchange] = {}
        """Calls that have something to send, and would if the socket or the peer's window for all took more."""
        self._starved: dict[int, Exchange] = {}
        """Those without a window of their own."""
        self._done: list[tuple[Exchange, Piece]] = []
        """What the engine has whole and the writer has not taken; then what is being written."""
        self._writing: list[tuple[Exchange, Piece]] = []
        self._extra = bytearray()
        self._bell = trio.Event()
        self._is_closing = False
        self.is_dead = False
        """Nothing more is taken."""
        self.unwritten_bytes = 0
        self.stalled_since = math.inf
        """Since when the socket has taken nothing of what waits."""
        self.finished = trio.Event()
        self._room = trio.Event()

    def ring(self) -> None:
        """The engine may have something to say."""
        self._bell.set()

    def say(self, frame: bytes) -> None:
        """A frame that is not the engine's."""
        self._extra += frame
        self._bell.set()

    def push(self, exchange: Exchange) -> None:
        """A call has something to send."""
        if not self.is_dead and not exchange.is_closed:
            self._advance(exchange, math.inf)
            self._bell.set()

    def forget(self, exchange: Exchange) -> None:
        """A call has ended otherwise."""
        self._waiting.pop(exchange.stream_id, None)
        self._starved.pop(exchange.stream_id, None)

    def widened(self, stream_id: int) -> None:
        """The peer takes more of one stream."""
        if (exchange := self._starved.pop(stream_id, None)) is not None:
            self._waiting[stream_id] = exchange

    def all_widened(self) -> None:
        """Of each stream, perhaps."""
        self._waiting.update(self._starved)
        self._starved.clear()

    def pump(self) -> None:
        """Send what can be sent of what waits, each stream some at a time."""
        moved = True
        while moved and self._waiting and not self.is_dead:
            moved = False
            for exchange in list(self._waiting.values()):
                if self.unwritten_bytes >= HIGH_WATER_BYTES or self._engine.outbound_flow_control_window <= 0:
                    break
                before = exchange.out_bytes
                self._advance(exchange, _TURN_BYTES)
                moved |= exchange.out_bytes != before
            if moved:
                self._bell.set()

    def blocked_since(self) -> float:
        """Since when the longest waiting call has no window."""
        calls = (*self._waiting.values(), *self._starved.values())
        return min((exchange.blocked_since for exchange in calls), default=math.inf)

    def waiting_bytes(self) -> int:
        """What calls have given and the peer's windows do not take."""
        return sum(call.out_bytes for calls in (self._waiting, self._starved) for call in calls.values())

    async def wait_below(self, most_bytes: int) -> None:
        """Until less than that is unwritten."""
        while self.unwritten_bytes >= most_bytes and not self.is_dead:
            self._room = trio.Event()
            await self._room.wait()

    def finish(self) -> None:
        """Write what there is, and no more. `finished` is set then."""
        self._is_closing = True
        self._bell.set()

    async def run(self) -> None:
        """Write until `finish`, or until the peer is gone."""
        try:
            while True:
                await self._bell.wait()
                self._bell = trio.Event()
                while await self._write():
                    self.pump()
                if self._is_closing:
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            self.is_dead = True
            self._room.set()
            self.finished.set()
            for _, piece in self._writing + self._done:
                if piece.done is not None:
                    piece.done.set()

    async def _write(self) -> bool:
        """Everything that there is now, in as few pieces as possible; whether there was something."""
        data = self._engine.data_to_send()
        if self._extra:
            data += self._extra
            self._extra.clear()
        if not data:
            return False
        done = self._writing = self._done
        self._done = []
        self._guard.written()
        self.unwritten_bytes = len(data)  # with headers and control frames
        view = memoryview(data)
        while view:
            self.stalled_since = trio.current_time()
            await self._stream.send_all(view[:_WRITE_BYTES])
            view = view[_WRITE_BYTES:]
        self.stalled_since = math.inf
        self.unwritten_bytes -= len(data)
        self._room.set()
        self._writing = []
        for exchange, piece in done:
            exchange.written += 1
            piece.is_written = True
            if piece.done is not None:
                piece.done.set()
        return True

    def _advance(self, exchange: Exchange, most_bytes: float) -> None:
        """Give the engine what the windows take, at most so much; keep the call in mind if there is more."""
        engine, stream_id = self._engine, exchange.stream_id
        while exchange.out:
            piece = exchange.out[0]
            room = min(engine.room(stream_id), most_bytes)
            if room <= 0 or self.unwritten_bytes >= HIGH_WATER_BYTES:
                self._remember(exchange)
                return
            if not exchange.is_head_sent:
                exchange.is_head_sent = True
                engine.answer(stream_id, OK_HEAD)
            size = int(min(room, engine.max_outbound_frame_size, len(piece.data) - piece.at))
            whole = piece.at == 0 and size == len(piece.data)
            engine.send_data(stream_id, piece.data if whole else piece.data[piece.at : piece.at + size])
            piece.at += size
            most_bytes -= size
            exchange.out_bytes -= size
            self.unwritten_bytes += size
            exchange.blocked_since = math.inf
            if piece.at == len(piece.data):
                self._done.append((exchange, exchange.out.popleft()))
        self.forget(exchange)
        if exchange.ending is not None:
            self._end(exchange, exchange.ending)

    def _end(self, exchange: Exchange, ending: list[tuple[bytes, bytes]]) -> None:
        engine, stream_id = self._engine, exchange.stream_id
        if not exchange.is_head_sent and ending[0][0] != b":status":
            ending = OK_HEAD + ending
        engine.answer(stream_id, ending, last=True)
        if not exchange.has_all:  # what it still sends is not wanted
            engine.reset(stream_id, ErrorCodes.NO_ERROR)
        self._ended(exchange)

    def _remember(self, exchange: Exchange) -> None:
        stream_id = exchange.stream_id
        has_own = self._engine.stream_room(stream_id) > 0
        (self._waiting if has_own else self._starved)[stream_id] = exchange
        (self._starved if has_own else self._waiting).pop(stream_id, None)
        if self._engine.room(stream_id) <= 0 and exchange.blocked_since == math.inf:
            exchange.blocked_since = trio.current_time()
