"""One HTTP/2 connection: reads, hands requests to handlers, and knows when it is over."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import trio

from tickwheel_gateway.transport.abuse import Abuse
from tickwheel_gateway.transport.batch import Batch, BatchCall
from tickwheel_gateway.transport.call import AnyMethod, BatchMethod, CallEnded, Ends, Status
from tickwheel_gateway.transport.engine import (
    ANY_STREAM,
    OK_TRAILERS,
    Broken,
    ErrorCode,
    Headers,
    Stack,
    goaway,
)
from tickwheel_gateway.transport.exchange import Exchange
from tickwheel_gateway.transport.heads import trailers
from tickwheel_gateway.transport.limits import READ_BYTES, Limits
from tickwheel_gateway.transport.opening import Opened
from tickwheel_gateway.transport.sender import Sender
from tickwheel_gateway.transport.tally import Tally

_LINGER_S: Final = 1.0
_LINGER_BYTES: Final = 1 << 20
_LAST_WORD_S: Final = 1.0
"""Between the GOAWAY that warns and the one that counts, unless the peer shows before that it has read the first."""
_MANY: Final = 16
"""With so many calls in batches under way, a client does not wait for each: then more are gathered before they are
read, because a read costs as much as some calls."""
_GATHER_S: Final = 0.001

_AnyCall: TypeAlias = Exchange | BatchCall

_log = logging.getLogger("tickwheel.gateway.transport")


class Connection:
    """Serves one stream of bytes until it ends. `look` must be called each second: it sees what did not happen."""

    def __init__(
        self,
        *,
        opened: Opened,
        methods: Mapping[str, AnyMethod],
        limits: Limits,
        tally: Tally,
        ends: Ends,
        stack: Stack,
    ) -> None:
        self._stream = opened.stream
        self._first = opened.first
        self._methods = methods
        self._limits = limits
        self._tally = tally
        self._ends = ends
        self._engine = stack.open(self)
        self._sender = Sender(self._engine, self._stream, self._fetched)
        self._calls: dict[int, _AnyCall] = {}
        self._gathered: dict[BatchMethod, list[BatchCall]] = {}
        """Requests of one read that are served together."""
        self._in_batches = 0
        """How many calls are being served so."""
        self._nursery: trio.Nursery
        self._reading = trio.CancelScope()
        self._idle_since = self._now = trio.current_time()
        self._work_bytes = 0
        self._room: trio.Event | None = None
        """While reading waits for room."""
        self._last_stream = ANY_STREAM
        """Later ones are refused."""
        self._leaving_since = math.inf
        self._is_peer_leaving = False
        self._is_over = False
        """Nothing is read any more, and the engine may have ended."""

    async def run(self) -> None:
        """Until the connection is over, and the handlers of its calls too."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._sender.begin(self._start_writing)
                with self._reading:
                    await self._read()
                self._is_over = True
                self._drop_all()
                with trio.move_on_after(self._limits.farewell_s):
                    self._sender.finish()
                    await self._sender.wait_finished()
                await self._linger()
                self._nursery.cancel_scope.cancel()
        finally:
            self._is_over = True
            self._drop_all()
            self._engine.close()
            await trio.aclose_forcefully(self._stream)

    def leave(self) -> None:
        """Begin to end: what is under way will be finished."""
        if self._is_over or self._leaving_since < math.inf:
            return
        if self._last_stream == ANY_STREAM:
            self._leaving_since = trio.current_time()
            self._sender.say(goaway(ANY_STREAM, ErrorCode.NO_ERROR))
            self._engine.say_farewell()

    def break_off(self) -> None:
        """End now: what is still running is cancelled, and its clients are told that they can try elsewhere."""
        for call in list(self._calls.values()):
            if isinstance(call, Exchange):
                call.scope.cancel()
            call.end(trailers(Status.UNAVAILABLE, "the server stops"))
        self._last_word()
        self._reading.cancel()

    def look(self, now: float) -> None:
        """What has taken too long by now is ended."""
        if self._is_over:
            return
        if now - self._sender.stalled_since >= self._limits.send_timeout_s:
            self._tally.abuses["no_reading"] += 1
            self._nursery.cancel_scope.cancel()  # it can be told nothing
        elif now - self._engine.blocked_since(now) >= self._limits.send_timeout_s:
            self._say_abuse("no_window")
        elif not self._calls and now - self._idle_since >= self._limits.idle_s:
            self._last_word()
            self._reading.cancel()
        elif now - self._leaving_since >= _LAST_WORD_S:
            self._last_word()
        late = trailers(Status.DEADLINE_EXCEEDED, "deadline exceeded")
        for call in list(self._calls.values()):
            if call.deadline <= now and not (isinstance(call, Exchange) and call.is_running):
                call.end(late)

    # What a call does.

    def reply(self, call: _AnyCall, data: bytes) -> None:
        """See `Carrier`."""
        self._unhold(call, call.held_bytes)
        self._engine.reply(call.stream_id, data)
        if self._in_batches == 1 and isinstance(call, BatchCall):  # no other answer follows at once
            self._hurry()
        else:
            self._sender.ring()

    def send(self, exchange: Exchange, messages: Sequence[bytes], *, last: bool) -> None:
        """See `Carrier`."""
        if not exchange.served_by.takes_stream:
            self._unhold(exchange, exchange.held_bytes)
        self._engine.send(exchange.stream_id, messages, last=last)
        self._sender.ring()

    def take_back(self, exchange: Exchange, at: int, count: int, *, reopen: bool) -> int:
        """See `Carrier`."""
        return self._engine.take_back(exchange.stream_id, at, count, reopen=reopen)

    def end(self, call: _AnyCall, ending: Headers) -> None:
        """See `Carrier`."""
        if not self._engine.end(call.stream_id, ending):
            self._over(call.stream_id)
        self._sender.ring()

    def took(self, exchange: Exchange, size_bytes: int) -> None:
        """See `Carrier`."""
        self._unhold(exchange, size_bytes or 1)
        if not exchange.is_closed:
            self._engine.took(exchange.stream_id)
            self._sender.ring()

    # Reading: what the engine tells.

    def began(self, stream_id: int, method: str, metadata: Mapping[str, str], timeout_s: float) -> None:
        """See `Receiver`."""
        served_by = self._methods[method]
        deadline = self._now + timeout_s
        self._tally.calls += 1
        if isinstance(served_by, BatchMethod):
            self._calls[stream_id] = BatchCall(
                stream_id=stream_id,
                method=method,
                metadata=metadata,
                deadline=deadline,
                request=b"",
                carrier=self,
                ends=self._ends,
            )
            return
        exchange = Exchange(
            stream_id=stream_id,
            method=method,
            metadata=metadata,
            deadline=deadline,
            served_by=served_by,
            carrier=self,
            ends=self._ends,
        )
        self._calls[stream_id] = exchange
        if served_by.takes_stream:
            self._start(exchange)

    def asked(
        self, stream_id: int, method: str, metadata: Mapping[str, str], timeout_s: float, request: bytes
    ) -> None:
        """See `Receiver`."""
        served_by = self._methods[method]
        if not isinstance(served_by, BatchMethod):
            self.began(stream_id, method, metadata, timeout_s)
            self.whole(stream_id, request)
            return
        call = BatchCall(
            stream_id=stream_id,
            method=method,
            metadata=metadata,
            deadline=self._now + timeout_s,
            request=request,
            carrier=self,
            ends=self._ends,
        )
        self._tally.calls += 1
        self._calls[stream_id] = call
        self._hold(call, len(request) or 1)
        self._gathered.setdefault(served_by, []).append(call)

    def whole(self, stream_id: int, request: bytes) -> None:
        """See `Receiver`."""
        call = self._calls.get(stream_id)
        if call is None or call.ending is not None:
            return
        call.request = request
        self._hold(call, len(request) or 1)
        if isinstance(call, Exchange):
            call.has_all = True
            self._start(call)
            return
        served_by = self._methods[call.method]
        assert isinstance(served_by, BatchMethod)
        self._gathered.setdefault(served_by, []).append(call)

    def arrived(self, stream_id: int, message: bytes) -> None:
        """See `Receiver`."""
        exchange = self._calls.get(stream_id)
        if isinstance(exchange, Exchange) and exchange.ending is None:
            self._hold(exchange, len(message) or 1)
            exchange.take(message)

    def ended(self, stream_id: int) -> None:
        """See `Receiver`."""
        exchange = self._calls.get(stream_id)
        if isinstance(exchange, Exchange):
            exchange.has_all = True
            exchange.arrived()

    def reset(self, stream_id: int) -> None:
        """See `Receiver`."""
        if (call := self._calls.get(stream_id)) is not None:
            self._drop(call, Status.CANCELLED)

    def judged(self, stream_id: int, ending: Headers) -> None:
        """See `Receiver`."""
        call = self._calls.get(stream_id)
        if call is None:
            self._tally.calls += 1
            call = BatchCall(
                stream_id=stream_id,
                method="",
                metadata={},
                deadline=math.inf,
                request=b"",
                carrier=self,
                ends=self._ends,
            )
            self._calls[stream_id] = call
        if isinstance(call, Exchange):
            call.scope.cancel()
        call.end(ending)

    def peer_leaves(self) -> None:
        """See `Receiver`."""
        self._is_peer_leaving = True

    def farewell_heard(self) -> None:
        """See `Receiver`."""
        self._last_word()

    async def _read(self) -> None:
        data, self._first = self._first, b""
        try:
            while True:
                while self._work_bytes >= self._limits.pending_bytes:
                    self._room = trio.Event()
                    await self._room.wait()
                await self._sender.wait_below(self._limits.pending_bytes)
                if self._in_batches >= _MANY:
                    await trio.sleep(_GATHER_S)
                if data:
                    await trio.lowlevel.checkpoint()
                else:
                    data = bytes(await self._stream.receive_some(READ_BYTES))
                if not data:
                    return
                self._now = trio.current_time()
                while self._engine.feed(data):
                    self._start_gathered()
                    self._ring()
                    await trio.lowlevel.checkpoint()
                    data = b""
                data = b""  # not to be kept until more comes
                self._start_gathered()
                self._ring()
                if self._is_peer_leaving:
                    self._end_if_idle()
        except Abuse as abuse:
            if abuse.is_said:
                self._tally.abuses[abuse.reason] += 1
            else:
                self._say_abuse(abuse.reason)
        except Broken as broken:
            if broken.code is not None:
                self._sender.say(goaway(self._engine.last_stream_id, broken.code))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    def _ring(self) -> None:
        """Mostly what was read leaves nothing to be said."""
        if self._engine.may_send:
            self._sender.ring()

    def _hurry(self) -> None:
        try:
            self._sender.hurry()
        except Exception:
            _log.exception("a connection failed")
            self._nursery.cancel_scope.cancel()  # what was taken for the socket may not have gone

    def _start_writing(self) -> None:
        self._nursery.start_soon(self._write)

    async def _write(self) -> None:
        await self._sender.run()
        if self._sender.is_dead:
            self._reading.cancel()

    # Calls.

    def _start(self, exchange: Exchange) -> None:
        exchange.is_running = True
        self._nursery.start_soon(self._serve, exchange)

    def _start_gathered(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, {}
            for method, calls in gathered.items():
                batch = Batch([call for call in calls if not call.is_closed and call.ending is None])
                if batch.calls:
                    for call in batch.calls:
                        call.batch = batch
                    self._in_batches += len(batch.calls)
                    self._nursery.start_soon(self._serve_batch, method, batch)

    async def _serve_batch(self, method: BatchMethod, batch: Batch) -> None:
        try:
            with batch.scope:
                await method.handler(batch.calls)
        except Exception:
            _log.exception("%d calls failed: %s", len(batch.calls), batch.calls[0].method)
            for call in batch.calls:
                call.fail(Status.INTERNAL, "internal error")
        finally:
            self._in_batches -= len(batch.calls)
        for call in batch.calls:
            if call.ending is None:
                call.fail(Status.INTERNAL, "no answer")

    async def _serve(self, exchange: Exchange) -> None:
        try:
            with exchange.scope:
                await exchange.served_by.handler(exchange)
        except Exception as error:
            if not _is_ended(error):
                _log.exception("a call failed: %s", exchange.method)
                exchange.end(trailers(Status.INTERNAL, "internal error"))
        exchange.is_running = False
        if exchange.is_closed:
            return
        if exchange.ending not in (None, OK_TRAILERS):
            return  # said, and on its way
        if exchange.scope.cancelled_caught:
            exchange.end(trailers(Status.DEADLINE_EXCEEDED, "deadline exceeded"))
        elif exchange.ending is None:
            if exchange.has_streamed or exchange.served_by.takes_stream:
                exchange.end(OK_TRAILERS)
            else:
                exchange.end(trailers(Status.INTERNAL, "no answer"))

    def _fetched(self, whole: Sequence[tuple[int, int]], over: Sequence[int]) -> list[tuple[Exchange, int]]:
        """What the socket is given now: messages by stream, and the streams that are over with it."""
        found = []
        for stream_id, count in whole:
            exchange = self._calls.get(stream_id)
            if isinstance(exchange, Exchange):
                exchange.fetched(count)
                found.append((exchange, count))
        for stream_id in over:
            self._over(stream_id)
        return found

    def _over(self, stream_id: int) -> None:
        """A call's last frame is on its way."""
        call = self._calls.get(stream_id)
        if call is None:
            return
        status = 0
        if call.ending is not OK_TRAILERS:
            status = next((int(value) for name, value in call.ending or [] if name == b"grpc-status"), 0)
        self._tally.ended[status] += 1
        self._forget(call)

    def _drop(self, call: _AnyCall, status: Status) -> None:
        """A call has nobody to answer to."""
        self._tally.ended[status] += 1
        if isinstance(call, Exchange):
            call.scope.cancel()
        self._forget(call)

    def _forget(self, call: _AnyCall) -> None:
        del self._calls[call.stream_id]
        self._tally.calls -= 1
        if call.held_bytes:
            self._unhold(call, call.held_bytes)
        call.close()
        if not self._calls:
            self._idle_since = trio.current_time()
            self._end_if_idle()

    def _drop_all(self) -> None:
        for call in list(self._calls.values()):
            self._drop(call, Status.CANCELLED)

    def _hold(self, call: _AnyCall, size_bytes: int) -> None:
        call.held_bytes += size_bytes
        self._work_bytes += size_bytes

    def _unhold(self, call: _AnyCall, size_bytes: int) -> None:
        size_bytes = min(size_bytes, call.held_bytes)
        call.held_bytes -= size_bytes
        self._work_bytes -= size_bytes
        if self._room is not None and self._work_bytes < self._limits.pending_bytes:
            self._room.set()
            self._room = None

    # The end.

    def _say_abuse(self, reason: str) -> None:
        self._tally.abuses[reason] += 1
        _log.warning("a client is cut off: %s, %s", self._ends.peer, reason)
        self._sender.say(goaway(self._engine.last_stream_id, ErrorCode.ENHANCE_YOUR_CALM, reason))
        self._reading.cancel()

    def _last_word(self) -> None:
        """From now on no new stream is served."""
        if self._last_stream == ANY_STREAM:
            self._leaving_since = math.inf
            self._last_stream = self._engine.last_stream_id
            self._engine.refuse_after(self._last_stream)
            self._sender.say(goaway(self._last_stream, ErrorCode.NO_ERROR))
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        if (self._is_peer_leaving or self._last_stream != ANY_STREAM) and not self._calls:
            self._reading.cancel()

    async def _linger(self) -> None:
        """Take what is still on its way: closed before, the system would throw away what the peer has not read."""
        if self._sender.is_dead and isinstance(self._stream, trio.abc.HalfCloseableStream):
            try:
                await self._stream.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
        left = _LINGER_BYTES
        with trio.move_on_after(_LINGER_S):
            try:
                while left > 0 and (data := await self._stream.receive_some(READ_BYTES)):
                    left -= len(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return


def _is_ended(error: Exception) -> bool:
    """Whether it says nothing but that the call has ended."""
    if isinstance(error, ExceptionGroup):
        return all(map(_is_ended, error.exceptions))
    return isinstance(error, CallEnded)
