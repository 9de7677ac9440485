"""One HTTP/2 connection: reads, hands requests to handlers, and knows when it is over."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

import trio

from tickwheel_gateway.transport import engine as http2
from tickwheel_gateway.transport.abuse import Abuse, Guard
from tickwheel_gateway.transport.call import AnyMethod, BatchMethod, Call, CallEnded, Ends, Method, Status
from tickwheel_gateway.transport.engine import Engine, ErrorCodes
from tickwheel_gateway.transport.exchange import Batch, Exchange
from tickwheel_gateway.transport.frames import Cutter, FrameTooLarge, NotHttp2
from tickwheel_gateway.transport.framing import Malformed, MessageReader
from tickwheel_gateway.transport.heads import Head, NoGrpc, only_http, read_head, refusal, trailers
from tickwheel_gateway.transport.limits import READ_BYTES, Limits
from tickwheel_gateway.transport.outgoing import Sender
from tickwheel_gateway.transport.tally import Tally

_LINGER_S: Final = 1.0
_LINGER_BYTES: Final = 1 << 20
_LAST_WORD_S: Final = 1.0
"""Between the GOAWAY that warns and the one that counts, unless the peer shows before that it has read the first."""
_ANSWER_BYTES: Final = 17
"""Of an ack of a PING; others are a little smaller."""
_FAREWELL_PING: Final = b"farewell"

_log = logging.getLogger("tickwheel.gateway.transport")


async def _refuse(_call: Call) -> None:
    """Never runs: the call has failed before."""


_NOBODY: Final = Method(_refuse)


class Connection:
    """Serves one stream of bytes until it ends. `look` must be called each second: it sees what did not happen."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        methods: Mapping[str, AnyMethod],
        limits: Limits,
        tally: Tally,
        ends: Ends,
    ) -> None:
        self._stream = stream
        self._methods = methods
        self._limits = limits
        self._tally = tally
        self._ends = ends
        self._guard = Guard(limits)
        self._cutter = Cutter(self._guard)
        self._engine = Engine(limits)
        self._sender = Sender(self._engine, stream, self._guard, self._sent_all)
        self._calls: dict[int, Exchange] = {}
        self._verdicts: list[Callable[[], None]] = []
        """What is to be said to the requests of one read: once all of it is known, also what the client took back."""
        self._gathered: dict[BatchMethod, list[Exchange]] = {}
        """Requests of one read that are served together."""
        self._nursery: trio.Nursery
        self._reading = trio.CancelScope()
        self._idle_since = trio.current_time()
        self._work_bytes = 0
        self._partial_bytes = 0
        self._ungranted_bytes = 0
        self._room = trio.Event()
        self._is_crowded = False
        self._last_stream = http2.ANY_STREAM
        """Later ones are refused."""
        self._leaving_since = math.inf
        self._is_over = False
        """Nothing is read any more, and the engine may have ended."""

    async def run(self) -> None:
        """Until the connection is over, and the handlers of its calls too."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._write)
                with self._reading:
                    await self._read()
                self._is_over = True
                self._drop_all()
                with trio.move_on_after(self._limits.farewell_s):
                    self._sender.finish()
                    await self._sender.finished.wait()
                await self._linger()
                self._nursery.cancel_scope.cancel()
        finally:
            self._drop_all()
            await trio.aclose_forcefully(self._stream)

    def leave(self) -> None:
        """Begin to end: what is under way will be finished."""
        if self._is_over or self._leaving_since < math.inf:
            return
        if self._last_stream == http2.ANY_STREAM:
            self._leaving_since = trio.current_time()
            self._sender.say(http2.goaway(http2.ANY_STREAM, ErrorCodes.NO_ERROR))
            self._engine.ping(_FAREWELL_PING)

    def break_off(self) -> None:
        """End now: what is still running is cancelled, and its clients are told that they can try elsewhere."""
        for exchange in list(self._calls.values()):
            exchange.scope.cancel()
            exchange.end(trailers(Status.UNAVAILABLE, "the server stops"))
        self._last_word()
        self._reading.cancel()

    def look(self, now: float) -> None:
        """What has taken too long by now is ended."""
        if self._is_over:
            return
        if now - self._sender.stalled_since >= self._limits.send_timeout_s:
            self._tally.abuses["no_reading"] += 1
            self._nursery.cancel_scope.cancel()  # it can be told nothing
        elif now - self._sender.blocked_since() >= self._limits.send_timeout_s:
            self._say_abuse("no_window")
        elif not self._calls and now - self._idle_since >= self._limits.idle_s:
            self._last_word()
            self._reading.cancel()
        elif now - self._leaving_since >= _LAST_WORD_S:
            self._last_word()
        for exchange in list(self._calls.values()):
            if exchange.deadline <= now and not exchange.is_running:
                exchange.end(trailers(Status.DEADLINE_EXCEEDED, "deadline exceeded"))

    # What a call does.

    def push(self, exchange: Exchange) -> None:
        """See `Carrier`."""
        self._sender.push(exchange)

    def abort(self, exchange: Exchange) -> None:
        """See `Carrier`."""
        self._engine.reset(exchange.stream_id, ErrorCodes.CANCEL)
        self._sender.ring()
        self._sent_all(exchange)

    def answered(self, exchange: Exchange) -> None:
        """See `Carrier`."""
        self._unhold(exchange, exchange.held_bytes)

    def took(self, exchange: Exchange, size_bytes: int) -> None:
        """See `Carrier`."""
        self._unhold(exchange, size_bytes)
        if not exchange.is_closed:
            self._grant(exchange)

    # Reading.

    async def _read(self) -> None:
        self._sender.ring()
        try:
            while True:
                while self._work_bytes >= self._limits.pending_bytes:
                    self._room = trio.Event()
                    await self._room.wait()
                await self._sender.wait_below(self._limits.pending_bytes)
                data = await self._stream.receive_some(READ_BYTES)
                if not data:
                    return
                self._guard.reading()
                for number, portion in enumerate(self._cutter.cut(bytes(data))):
                    if number:
                        await trio.lowlevel.checkpoint()
                    self._take(portion)
                if self._cutter.is_peer_leaving:
                    self._end_if_idle()
        except Abuse as abuse:
            self._say_abuse(abuse.reason)
        except http2.ProtocolError as error:
            if error.error_code == ErrorCodes.ENHANCE_YOUR_CALM:
                self._tally.abuses["header_list"] += 1
        except NotHttp2:
            self._sender.say(http2.goaway(0, ErrorCodes.PROTOCOL_ERROR))
        except FrameTooLarge:
            self._sender.say(
                http2.goaway(self._engine.highest_inbound_stream_id, ErrorCodes.FRAME_SIZE_ERROR)
            )
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def _write(self) -> None:
        await self._sender.run()
        self._reading.cancel()

    def _take(self, portion: bytes) -> None:
        """What has arrived is worked off, then everything is said that there is to say about it."""
        self._is_crowded = self._sender.waiting_bytes() >= self._limits.pending_bytes
        queued_bytes = self._engine.queued_bytes
        events = self._engine.receive_data(portion)
        self._guard.answers((self._engine.queued_bytes - queued_bytes) // _ANSWER_BYTES)
        for event in events:
            if isinstance(event, http2.DataReceived):
                self._took_data(event)
            elif isinstance(event, http2.RequestReceived):
                self._took_request(event)
            elif isinstance(event, http2.StreamEnded):
                self._took_end(event.stream_id)
            elif isinstance(event, http2.StreamReset):
                self._took_reset(event)
            elif isinstance(event, http2.WindowUpdated):
                self._sender.widened(event.stream_id)
            elif isinstance(event, http2.RemoteSettingsChanged):
                self._sender.all_widened()
            elif isinstance(event, http2.PingAckReceived) and event.ping_data == _FAREWELL_PING:
                self._last_word()
        verdicts, self._verdicts = self._verdicts, []
        for verdict in verdicts:
            verdict()
        gathered, self._gathered = self._gathered, {}
        for method, exchanges in gathered.items():
            self._start_batch(method, exchanges)
        self._sender.pump()
        self._sender.ring()

    def _took_request(self, event: http2.RequestReceived) -> None:
        stream_id = event.stream_id
        if stream_id > self._last_stream or len(self._calls) >= self._limits.streams:
            self._engine.reset(stream_id, ErrorCodes.REFUSED_STREAM)
            self._guard.answers(1)
            return
        head, ending = Head("", {}, None, ""), None
        method: AnyMethod = _NOBODY
        try:
            head = read_head(event.headers)
            method = self._methods.get(head.method, _NOBODY)
            if http2.size_of(event.headers) > self._limits.header_list_bytes:
                raise Malformed(Status.RESOURCE_EXHAUSTED, "the metadata are too large")
            if method is _NOBODY:
                raise Malformed(Status.UNIMPLEMENTED, f"method {head.method[:200]!r} is unknown")
            if self._is_crowded:
                raise Malformed(Status.RESOURCE_EXHAUSTED, "too many answers wait for the client")
        except NoGrpc as other:
            ending = only_http(other.http_status)
        except Malformed as malformed:
            ending = trailers(malformed.status, malformed.text)
        reader = MessageReader(head.encoding, self._limits.message_bytes)
        exchange = Exchange(stream_id, head, reader, method, self, self._ends)
        self._calls[stream_id] = exchange
        self._tally.calls += 1
        if ending is not None:
            self._judge(exchange, ending)
        elif method.takes_stream:
            self._start(exchange)

    def _took_data(self, event: http2.DataReceived) -> None:
        size = event.flow_controlled_length
        self._ungranted_bytes += size
        if self._ungranted_bytes >= self._limits.connection_window_bytes // 4:
            self._engine.increment_flow_control_window(self._ungranted_bytes)
            self._ungranted_bytes = 0
        if not event.data and event.stream_ended is None:
            self._guard.empty_data()
        exchange = self._calls.get(event.stream_id)
        if exchange is None or exchange.ending is not None:
            return  # it is answered, and what it still sends is not wanted
        exchange.ungranted_bytes += size
        try:
            for message in exchange.reader.feed(event.data):
                self._took_message(exchange, message)
            self._count_partial(exchange)
        except Malformed as malformed:
            self._judge(exchange, trailers(malformed.status, malformed.text) + refusal(malformed))
            return
        if event.stream_ended is None:
            self._grant(exchange)

    def _took_message(self, exchange: Exchange, message: bytes) -> None:
        if exchange.served_by.takes_stream:
            exchange.inbox.append(message)
            exchange.arrived()
        elif exchange.request or exchange.held_bytes:
            raise Malformed(Status.INTERNAL, "more than one message in a request that is no stream")
        else:
            exchange.request = message
        held = len(message) or 1
        exchange.held_bytes += held
        self._work_bytes += held

    def _count_partial(self, exchange: Exchange) -> None:
        """What has arrived of messages that are not whole is bounded. The calls that are over it fail: to stop reading
        would never make one whole.
        """
        partial = exchange.reader.partial_bytes
        if partial != exchange.partial_bytes:
            self._partial_bytes += partial - exchange.partial_bytes
            exchange.partial_bytes = partial
            if self._partial_bytes > self._limits.pending_bytes:
                raise Malformed(Status.RESOURCE_EXHAUSTED, "too many large requests at once")

    def _took_end(self, stream_id: int) -> None:
        exchange = self._calls.get(stream_id)
        if exchange is None:
            return
        exchange.has_all = True
        if exchange.ending is not None:
            return
        if exchange.reader.partial_bytes:
            self._judge(exchange, trailers(Status.INTERNAL, "the request ends within a message"))
        elif exchange.served_by.takes_stream:
            exchange.arrived()
        elif not exchange.held_bytes:
            self._judge(exchange, trailers(Status.INTERNAL, "a request without a message"))
        else:
            self._start(exchange)

    def _took_reset(self, event: http2.StreamReset) -> None:
        exchange = self._calls.get(event.stream_id)
        if exchange is None:
            return
        self._drop(exchange, Status.CANCELLED)
        if event.remote_reset:
            self._guard.reset(trio.current_time())

    def _grant(self, exchange: Exchange) -> None:
        """Let the client send more on a stream, unless its handler is behind."""
        if exchange.inbox or exchange.has_all:
            return
        if exchange.ungranted_bytes >= self._limits.stream_window_bytes // 2:
            self._engine.widen(exchange.stream_id, exchange.ungranted_bytes)
            exchange.ungranted_bytes = 0
            self._sender.ring()

    def _judge(self, exchange: Exchange, ending: http2.Headers) -> None:
        """End a call by what it sent: not before the rest of what was read is known."""
        exchange.ending = ending
        exchange.scope.cancel()
        self._verdicts.append(lambda: exchange.end(ending))

    # Calls.

    def _start(self, exchange: Exchange) -> None:
        method = exchange.served_by
        if isinstance(method, BatchMethod):
            self._gathered.setdefault(method, []).append(exchange)
            return
        exchange.is_running = True
        self._nursery.start_soon(self._serve, exchange, method)

    def _start_batch(self, method: BatchMethod, exchanges: list[Exchange]) -> None:
        batch = Batch([exchange for exchange in exchanges if not exchange.is_closed])
        if batch.exchanges:
            for exchange in batch.exchanges:
                exchange.batch = batch
            self._nursery.start_soon(self._serve_batch, method, batch)

    async def _serve_batch(self, method: BatchMethod, batch: Batch) -> None:
        try:
            with batch.scope:
                await method.handler(batch.exchanges)
        except Exception:
            _log.exception("%d calls failed: %s", len(batch.exchanges), batch.exchanges[0].method)
            for exchange in batch.exchanges:
                exchange.fail(Status.INTERNAL, "internal error")
        for exchange in batch.exchanges:
            exchange.fail(Status.INTERNAL, "no answer")

    async def _serve(self, exchange: Exchange, method: Method) -> None:
        try:
            with exchange.scope:
                await method.handler(exchange)
        except Exception as error:
            if not _is_ended(error):
                _log.exception("a call failed: %s", exchange.method)
                exchange.end(trailers(Status.INTERNAL, "internal error"))
        exchange.is_running = False
        if exchange.is_closed:
            return
        if exchange.scope.cancelled_caught:
            exchange.end(trailers(Status.DEADLINE_EXCEEDED, "deadline exceeded"))
        elif exchange.ending is None:
            if exchange.is_head_sent or exchange.served_by.takes_stream:
                exchange.end(trailers(Status.OK, ""))
            else:
                exchange.end(trailers(Status.INTERNAL, "no answer"))

    def _sent_all(self, exchange: Exchange) -> None:
        """A call's last frame is on its way."""
        if exchange.stream_id in self._calls:
            self._forget(exchange)
            ending = exchange.ending or []
            status = next((int(value) for name, value in ending if name == b"grpc-status"), 0)
            self._tally.ended[status] += 1
            self._end_if_idle()

    def _drop(self, exchange: Exchange, status: Status) -> None:
        """A call has nobody to answer to."""
        self._forget(exchange)
        self._tally.ended[status] += 1
        exchange.scope.cancel()
        self._end_if_idle()

    def _forget(self, exchange: Exchange) -> None:
        del self._calls[exchange.stream_id]
        self._tally.calls -= 1
        self._unhold(exchange, exchange.held_bytes)
        self._partial_bytes -= exchange.partial_bytes
        exchange.partial_bytes = 0
        self._sender.forget(exchange)
        exchange.close()
        if not self._calls:
            self._idle_since = trio.current_time()

    def _drop_all(self) -> None:
        for exchange in list(self._calls.values()):
            self._drop(exchange, Status.CANCELLED)

    def _unhold(self, exchange: Exchange, size_bytes: int) -> None:
        size_bytes = min(size_bytes or 1, exchange.held_bytes)
        exchange.held_bytes -= size_bytes
        self._work_bytes -= size_bytes
        if self._work_bytes < self._limits.pending_bytes:
            self._room.set()

    # The end.

    def _say_abuse(self, reason: str) -> None:
        self._tally.abuses[reason] += 1
        _log.warning("a client is cut off: %s, %s", self._ends.peer, reason)
        self._sender.say(
            http2.goaway(self._engine.highest_inbound_stream_id, ErrorCodes.ENHANCE_YOUR_CALM, reason)
        )
        self._reading.cancel()

    def _last_word(self) -> None:
        """From now on no new stream is served."""
        if self._last_stream == http2.ANY_STREAM:
            self._leaving_since = math.inf
            self._last_stream = self._engine.highest_inbound_stream_id
            self._sender.say(http2.goaway(self._last_stream, ErrorCodes.NO_ERROR))
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        is_leaving = self._cutter.is_peer_leaving or self._last_stream != http2.ANY_STREAM
        if is_leaving and not self._calls:
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
