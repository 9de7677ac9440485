"""The engine on `h2`: its events made into calls, and calls into its frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import trio

from tickwheel_gateway.transport import verdicts
from tickwheel_gateway.transport.abuse import Abuse
from tickwheel_gateway.transport.call import AnyMethod
from tickwheel_gateway.transport.engine import (
    ANY_STREAM,
    FAREWELL,
    OK_TRAILERS,
    Broken,
    ErrorCode,
    Headers,
    Receiver,
    Sent,
)
from tickwheel_gateway.transport.framing import PREFIX_BYTES, Malformed, MessageReader
from tickwheel_gateway.transport.heads import Head, NoGrpc, ending_of, read_head
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.with_h2 import library as http2
from tickwheel_gateway.transport.with_h2.frames import Cutter
from tickwheel_gateway.transport.with_h2.guard import Guard
from tickwheel_gateway.transport.with_h2.library import Library
from tickwheel_gateway.transport.with_h2.stream import Stream
from tickwheel_gateway.transport.with_h2.turns import Turns

_ANSWER_BYTES: Final = 17
"""Of an ack of a PING; others are a little smaller."""


class Engine:
    """See `transport.engine.Engine`."""

    def __init__(self, methods: Mapping[str, AnyMethod], limits: Limits, receiver: Receiver) -> None:
        self._methods = methods
        self._limits = limits
        self._receiver = receiver
        self._guard = Guard(limits)
        self._cutter = Cutter(self._guard)
        self._library = Library(limits)
        self._turns = Turns(self._library)
        self._streams: dict[int, Stream] = {}
        self._portions: Iterator[bytes] = iter(())
        self._portion: bytes | None = None
        self._verdicts: list[tuple[Stream, Headers]] = []
        """What is to be said to the requests of one portion, once all of it is known."""
        self._last_stream = ANY_STREAM
        self._is_crowded = False
        self._inflated_bytes = 0
        """What became of messages that came together."""
        self._partial_bytes = 0
        self._ungranted_bytes = 0
        self._writing_bytes = 0
        self._is_leaving_told = False

    @property
    def last_stream_id(self) -> int:
        """See `Engine`."""
        return self._library.highest_inbound_stream_id

    @property
    def unwritten_bytes(self) -> int:
        """See `Engine`."""
        return self._writing_bytes + self._library.queued_bytes + self._turns.waiting_bytes

    @property
    def partial_bytes(self) -> int:
        """See `Engine`."""
        return self._partial_bytes

    @property
    def has_ended(self) -> bool:
        """See `Engine`: `feed` says it by Broken."""
        return False

    @property
    def may_send(self) -> bool:
        """See `Engine`: it is found out by asking."""
        return True

    def feed(self, data: bytes) -> bool:
        """See `Engine`."""
        if data:
            self._guard.reading()
            self._portions = self._cutter.cut(data)
            self._portion = next(self._portions, None)
        portion, self._portion = self._portion, next(self._portions, None)
        if self._cutter.is_peer_leaving and not self._is_leaving_told:
            self._is_leaving_told = True
            self._receiver.peer_leaves()
        if portion is not None:
            self._take(portion)
        return self._portion is not None

    def refuse_after(self, stream_id: int) -> None:
        """See `Engine`."""
        self._last_stream = stream_id

    def took(self, stream_id: int) -> None:
        """See `Engine`."""
        if (stream := self._streams.get(stream_id)) is not None:
            stream.untaken -= 1
            self._grant(stream)

    def reply(self, stream_id: int, message: bytes) -> None:
        """See `Engine`."""
        if (stream := self._streams.get(stream_id)) is not None:
            stream.put(message, is_reported=False)
            stream.ending = OK_TRAILERS
            self._turns.add(stream)

    def send(self, stream_id: int, messages: Sequence[bytes], *, last: bool) -> None:
        """See `Engine`."""
        if (stream := self._streams.get(stream_id)) is not None:
            for message in messages:
                stream.put(message, is_reported=True)
            if last:
                stream.ending = OK_TRAILERS
            self._turns.add(stream)

    def take_back(self, stream_id: int, at: int, count: int, *, reopen: bool) -> int:
        """See `Engine`."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        dropped = stream.drop(at, count)
        if dropped and reopen:
            stream.ending = None
        return dropped

    def end(self, stream_id: int, ending: Headers) -> bool:
        """See `Engine`."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return True
        stream.drop(0, len(stream.out))
        if stream.out:
            self._library.reset(stream_id, ErrorCode.CANCEL)
            self._forget(stream)
            return False
        stream.ending = ending
        self._turns.forget(stream)
        self._turns.add(stream)
        return True

    def say_farewell(self) -> None:
        """See `Engine`."""
        self._library.ping(FAREWELL)

    def data_to_send(self) -> Sent:
        """See `Engine`."""
        self._turns.run()
        whole, over = list(self._turns.whole.items()), self._turns.over
        self._turns.whole, self._turns.over = {}, []
        for stream in over:
            self._forget(stream)
        data = self._library.data_to_send()
        self._writing_bytes = len(data)
        if data:
            self._guard.written()
        return data, whole, [stream.stream_id for stream in over]

    def blocked_since(self, now: float) -> float:
        """See `Engine`."""
        return self._turns.blocked_since(now)

    def close(self) -> None:
        """See `Engine`."""
        self._streams.clear()

    def _take(self, portion: bytes) -> None:
        """What has arrived is worked off, then everything is said that there is to say about it."""
        self._is_crowded = self._turns.waiting_bytes >= self._limits.pending_bytes
        self._inflated_bytes = 0
        queued_bytes = self._library.queued_bytes
        try:
            events = self._library.receive_data(portion)
        except http2.ProtocolError as error:
            if int(error.error_code) == ErrorCode.ENHANCE_YOUR_CALM:
                raise Abuse("header_list", is_said=True) from error
            raise Broken from error
        self._guard.answers((self._library.queued_bytes - queued_bytes) // _ANSWER_BYTES)
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
                self._turns.widened(event.stream_id)
            elif isinstance(event, http2.RemoteSettingsChanged):
                self._turns.all_widened()
            elif isinstance(event, http2.PingAckReceived) and event.ping_data == FAREWELL:
                self._receiver.farewell_heard()
        verdicts, self._verdicts = self._verdicts, []
        for stream, ending in verdicts:
            if stream.stream_id in self._streams:
                self._receiver.judged(stream.stream_id, ending)

    def _took_request(self, event: http2.RequestReceived) -> None:
        stream_id = event.stream_id
        if stream_id > self._last_stream or len(self._streams) >= self._limits.streams:
            self._library.reset(stream_id, ErrorCode.REFUSED_STREAM)
            self._guard.answers(1)
            return
        try:
            head = self._read_head(event.headers)
        except (NoGrpc, Malformed) as reason:
            reader = MessageReader("", 0)
            self._streams[stream_id] = stream = Stream(stream_id, reader, takes_stream=False)
            self._judge(stream, reason)
            return
        reader = MessageReader(head.encoding, self._limits.message_bytes)
        takes_stream = self._methods[head.method].takes_stream
        self._streams[stream_id] = Stream(stream_id, reader, takes_stream=takes_stream)
        self._receiver.began(stream_id, head.method, head.metadata, head.timeout_s)

    def _read_head(self, headers: Headers) -> Head:
        head = read_head(headers)
        if http2.size_of(headers) > self._limits.header_list_bytes:
            raise Malformed(*verdicts.LARGE_HEAD)
        if head.method not in self._methods:
            raise Malformed(*verdicts.unknown_method(head.method))
        if self._is_crowded:
            raise Malformed(*verdicts.CROWDED)
        return head

    def _took_data(self, event: http2.DataReceived) -> None:
        size = event.flow_controlled_length
        self._ungranted_bytes += size
        if self._ungranted_bytes >= self._limits.connection_window_bytes // 4:
            self._library.increment_flow_control_window(self._ungranted_bytes)
            self._ungranted_bytes = 0
        if not event.data and event.stream_ended is None:
            self._guard.empty_data()
        stream = self._streams.get(event.stream_id)
        if stream is None or stream.is_judged or stream.ending is not None:
            return  # it is answered, and what it still sends is not wanted
        stream.ungranted_bytes += size
        try:
            if self._inflated_bytes >= self._limits.pending_bytes:
                raise Malformed(*verdicts.MUCH_PARTIAL)
            arrived_bytes = stream.reader.partial_bytes + len(event.data)
            messages = stream.reader.feed(event.data)
            self._inflated_bytes += max(0, sum(map(len, messages)) - arrived_bytes)
            for message in messages:
                self._took_message(stream, message)
            if event.stream_ended is None:
                self._count_partial(stream)
        except Malformed as malformed:
            self._judge(stream, malformed)
            return
        if event.stream_ended is None:
            self._grant(stream)

    def _took_message(self, stream: Stream, message: bytes) -> None:
        if stream.takes_stream:
            stream.untaken += 1
            self._receiver.arrived(stream.stream_id, message)
        elif stream.has_request:
            raise Malformed(*verdicts.TWO_MESSAGES)
        else:
            stream.has_request, stream.request = True, message

    def _count_partial(self, stream: Stream) -> None:
        """What has arrived of messages that are not whole is bounded. The calls that are over it fail: to stop reading
        would never make one whole.
        """
        partial = stream.reader.partial_bytes + (PREFIX_BYTES + len(stream.request)) * stream.has_request
        if partial != stream.partial_bytes:
            self._partial_bytes += partial - stream.partial_bytes
            stream.partial_bytes = partial
            if self._partial_bytes > self._limits.pending_bytes:
                raise Malformed(*verdicts.MUCH_PARTIAL)

    def _took_end(self, stream_id: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.has_all = True
        if stream.is_judged or stream.ending is not None:
            return
        if stream.reader.partial_bytes:
            self._judge(stream, Malformed(*verdicts.HALF_MESSAGE))
        elif stream.takes_stream:
            self._receiver.ended(stream_id)
        elif not stream.has_request:
            self._judge(stream, Malformed(*verdicts.NO_MESSAGE))
        else:
            request, stream.request = stream.request, b""
            self._drop_partial(stream)
            self._receiver.whole(stream_id, request)

    def _took_reset(self, event: http2.StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        self._forget(stream)
        self._receiver.reset(event.stream_id)
        self._guard.reset(trio.current_time())

    def _grant(self, stream: Stream) -> None:
        """Let the client send more on a stream, unless its handler is behind."""
        if stream.untaken or stream.has_all:
            return
        if stream.ungranted_bytes >= self._limits.stream_window_bytes // 2:
            self._library.widen(stream.stream_id, stream.ungranted_bytes)
            stream.ungranted_bytes = 0

    def _judge(self, stream: Stream, reason: Malformed | NoGrpc) -> None:
        """End a call by what it sent: not before the rest of what was read is known."""
        stream.is_judged = True
        self._drop_partial(stream)
        self._verdicts.append((stream, ending_of(reason)))

    def _drop_partial(self, stream: Stream) -> None:
        self._partial_bytes -= stream.partial_bytes
        stream.partial_bytes = 0
        stream.reader.drop()

    def _forget(self, stream: Stream) -> None:
        if self._streams.pop(stream.stream_id, None) is not None:
            self._turns.forget(stream)
            self._drop_partial(stream)


class Stack:
    """See `transport.engine.Stack`."""

    name = "h2"

    def __init__(self, methods: Mapping[str, AnyMethod], limits: Limits) -> None:
        self._methods = methods
        self._limits = limits

    def open(self, receiver: Receiver) -> Engine:
        """For a new connection."""
        return Engine(self._methods, self._limits, receiver)
