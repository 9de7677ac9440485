"""The engine on nghttp2: what `gateway/native/http2.h` tells in arrays is told to the receiver."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio

from tickwheel_gateway._http2 import ffi, lib
from tickwheel_gateway.transport import verdicts
from tickwheel_gateway.transport.abuse import MOST_PARTS, SETTINGS_WEIGHT, Abuse
from tickwheel_gateway.transport.call import AnyMethod
from tickwheel_gateway.transport.engine import FAREWELL, Broken, ErrorCode, Headers, Receiver, Sent
from tickwheel_gateway.transport.framing import Malformed, UnknownCompression, inflate
from tickwheel_gateway.transport.heads import NoGrpc, ending_of
from tickwheel_gateway.transport.limits import Limits

_EVENT: Final = struct.Struct("=IIiIIIIId")
_PAIR: Final = struct.Struct("=II")
_MEMORY_BYTES: Final = 1 << 20
"""For the library itself, and as much more for each stream as it has at most."""
_STREAM_BYTES: Final = 4 << 10
_MOST_HEADS: Final = 1_024
"""Different metadata that are remembered: most clients send the same for a second."""
_HEADS_BYTES: Final = 1 << 20
"""Of those."""
_MOST_WORDS: Final = 4_096
_WORD_LENGTH: Final = 256
"""Longer ones are not remembered."""

_HEAD: Final = lib.TW_HTTP2_HEAD
_BEGAN: Final = lib.TW_HTTP2_BEGAN
_ASKED: Final = lib.TW_HTTP2_ASKED
_WHOLE: Final = lib.TW_HTTP2_WHOLE
_MESSAGE: Final = lib.TW_HTTP2_MESSAGE
_ENDED: Final = lib.TW_HTTP2_ENDED
_RESET: Final = lib.TW_HTTP2_RESET
_JUDGED: Final = lib.TW_HTTP2_JUDGED
_LEAVING: Final = lib.TW_HTTP2_LEAVING
_WITH_MESSAGE: Final = (_ASKED, _WHOLE, _MESSAGE)

_ABUSES: Final = {
    lib.TW_HTTP2_ABUSE_HEADER_BLOCK: "header_block",
    lib.TW_HTTP2_ABUSE_HEADER_LIST: "header_list",
    lib.TW_HTTP2_ABUSE_RESETS: "resets",
    lib.TW_HTTP2_ABUSE_ANSWERS: "control_frames",
    lib.TW_HTTP2_ABUSE_EMPTY: "empty_frames",
    lib.TW_HTTP2_NO_MEMORY: "memory",
}
_VERDICTS: Final = {
    lib.TW_HTTP2_BAD_TIMEOUT: verdicts.BAD_TIMEOUT,
    lib.TW_HTTP2_LARGE_HEAD: verdicts.LARGE_HEAD,
    lib.TW_HTTP2_CROWDED: verdicts.CROWDED,
    lib.TW_HTTP2_BAD_FLAG: verdicts.BAD_FLAG,
    lib.TW_HTTP2_TWO_MESSAGES: verdicts.TWO_MESSAGES,
    lib.TW_HTTP2_TOO_MUCH_PARTIAL: verdicts.MUCH_PARTIAL,
    lib.TW_HTTP2_HALF_MESSAGE: verdicts.HALF_MESSAGE,
    lib.TW_HTTP2_NO_MESSAGE: verdicts.NO_MESSAGE,
}


class Host:
    """What the connections of one server share."""

    def __init__(self, methods: Mapping[str, AnyMethod], limits: Limits) -> None:
        self.paths = tuple(methods)
        self.limits = limits
        paths = b"".join(path.encode("latin-1") + b"\0" for path in self.paths)
        streams = bytes(method.takes_stream for method in methods.values())
        given = ffi.new(
            "tw_http2_limits *",
            {
                "streams": limits.streams,
                "message_bytes": limits.message_bytes,
                "pending_bytes": limits.pending_bytes,
                "header_list_bytes": limits.header_list_bytes,
                "header_block_bytes": limits.header_block_bytes,
                "stream_window_bytes": limits.stream_window_bytes,
                "connection_window_bytes": limits.connection_window_bytes,
                "resets_a_second": limits.resets_a_second,
                "control_answers": limits.control_answers,
                "settings_weight": SETTINGS_WEIGHT,
                "empty_frames": limits.empty_frames,
                "header_parts": MOST_PARTS,
                "memory_bytes": _MEMORY_BYTES + limits.streams * _STREAM_BYTES,
            },
        )
        handle = lib.tw_http2_host(paths, len(paths), streams, len(streams), given)
        if handle == ffi.NULL:
            raise MemoryError
        self.handle = ffi.gc(handle, lib.tw_http2_free_host)
        self._counts = lib.tw_http2_counted(self.handle)
        # For all connections: of thousands that have nothing to do, each would keep its own for as long as it is open.
        self._heads: dict[bytes, Mapping[str, str]] = {}
        self._heads_bytes = 0
        self._words: dict[str, str] = {}

    def events(self) -> bytes:
        """As they are in memory."""
        count = self._counts.events
        return bytes(ffi.buffer(lib.tw_http2_events(self.handle), count * _EVENT.size)) if count else b""

    def read_head(self, text: bytes) -> Mapping[str, str]:
        """The metadata of a call: mostly those of one before it."""
        found = self._heads.get(text)
        if found is None:
            parts = list(map(self._word, text.decode("latin-1").split("\0")))
            # The last one counts: see `heads.read_head`.
            found = dict(zip(parts[::2], parts[1::2], strict=False))
            self._heads_bytes += len(text)
            if len(self._heads) >= _MOST_HEADS or self._heads_bytes > _HEADS_BYTES:
                self._heads.clear()
                self._heads_bytes = len(text)
            self._heads[text] = found
        return found

    def _word(self, word: str) -> str:
        """A name or a value; those of calls that stay open are mostly the same."""
        if len(word) > _WORD_LENGTH:
            return word
        if len(self._words) >= _MOST_WORDS:
            self._words.clear()
        return self._words.setdefault(word, word)

    def arena(self) -> Any:
        """What events point into; a slice of it is bytes."""
        return ffi.buffer(lib.tw_http2_arena(self.handle), self._counts.arena_bytes)

    def sent(self) -> Sent:
        """What the last call gave to send."""
        counts = self._counts
        size, whole, over = counts.out_bytes, counts.whole, counts.over
        return (
            bytes(ffi.buffer(lib.tw_http2_out(self.handle), size)) if size else b"",
            list(_PAIR.iter_unpack(ffi.buffer(lib.tw_http2_whole(self.handle), whole * _PAIR.size)))
            if whole
            else (),
            ffi.unpack(lib.tw_http2_over(self.handle), over) if over else (),
        )


class _Replies:
    """The only messages of answers, with their streams."""

    __slots__ = ("ids", "messages", "sizes")

    def __init__(self) -> None:
        self.ids = array("I")
        self.sizes = array("I")
        self.messages: list[bytes] = []


class Engine:
    """See `transport.engine.Engine`."""

    def __init__(self, host: Host, receiver: Receiver) -> None:
        self._host = host
        self._receiver = receiver
        self._session = lib.tw_http2_open(host.handle)
        if self._session == ffi.NULL:
            raise MemoryError
        self._replies: _Replies | None = None
        """Those that go to the library together, before it is asked for anything."""
        self._writing_bytes = 0

    @property
    def last_stream_id(self) -> int:
        """See `Engine`."""
        return lib.tw_http2_last_stream(self._session)

    @property
    def unwritten_bytes(self) -> int:
        """See `Engine`."""
        self._flush()
        return self._writing_bytes + lib.tw_http2_unwritten_bytes(self._session)

    @property
    def partial_bytes(self) -> int:
        """See `Engine`."""
        return lib.tw_http2_partial_bytes(self._session)

    @property
    def memory_bytes(self) -> int:
        """What the library has for this connection."""
        return lib.tw_http2_memory_bytes(self._session)

    @property
    def has_ended(self) -> bool:
        """See `Engine`."""
        return bool(lib.tw_http2_has_ended(self._session))

    @property
    def may_send(self) -> bool:
        """See `Engine`."""
        return bool(self._replies or lib.tw_http2_may_send(self._session))

    def feed(self, data: bytes) -> bool:
        """See `Engine`."""
        self._flush()
        result = lib.tw_http2_feed(self._session, data, len(data), trio.current_time())
        self._tell(self._host.events())
        if result < 0:
            if (reason := _ABUSES.get(result)) is not None:
                raise Abuse(reason)
            raise Broken(ErrorCode.PROTOCOL_ERROR)
        return False

    def refuse_after(self, stream_id: int) -> None:
        """See `Engine`."""
        lib.tw_http2_refuse_after(self._session, stream_id)

    def took(self, stream_id: int) -> None:
        """See `Engine`."""
        lib.tw_http2_took(self._session, stream_id)

    def reply(self, stream_id: int, message: bytes) -> None:
        """See `Engine`."""
        if self._replies is None:
            self._replies = _Replies()
        self._replies.ids.append(stream_id)
        self._replies.sizes.append(len(message))
        self._replies.messages.append(message)

    def send(self, stream_id: int, messages: Sequence[bytes], *, last: bool) -> None:
        """See `Engine`."""
        for message in messages:
            lib.tw_http2_send(self._session, stream_id, message, len(message))
        if last:
            lib.tw_http2_finish(self._session, stream_id)

    def take_back(self, stream_id: int, at: int, count: int, *, reopen: bool) -> int:
        """See `Engine`."""
        return lib.tw_http2_take_back(self._session, stream_id, at, count, reopen)

    def end(self, stream_id: int, ending: Headers) -> bool:
        """See `Engine`."""
        self._flush()
        fields = b"".join(b"%b\0%b\0" % field for field in ending)
        is_head = ending[0][0] == b":status"
        return lib.tw_http2_end(self._session, stream_id, fields, len(fields), is_head) != 1

    def say_farewell(self) -> None:
        """See `Engine`."""
        lib.tw_http2_farewell(self._session, FAREWELL)

    def data_to_send(self) -> Sent:
        """See `Engine`."""
        self._flush()
        lib.tw_http2_drain(self._session)
        sent = self._host.sent()
        self._writing_bytes = len(sent[0])
        events = self._host.events()
        if events:
            self._tell(events)
        return sent

    def blocked_since(self, now: float) -> float:
        """See `Engine`."""
        since = lib.tw_http2_blocked_since(self._session, now)
        return math.inf if since < 0 else since

    def close(self) -> None:
        """See `Engine`."""
        session, self._session = self._session, ffi.NULL
        lib.tw_http2_close(session)

    def _flush(self) -> None:
        """All answers that were given meanwhile, in one call."""
        replies, self._replies = self._replies, None
        if replies is not None:
            messages = b"".join(replies.messages)
            lib.tw_http2_reply(
                self._session,
                ffi.from_buffer("uint32_t[]", replies.ids),
                ffi.from_buffer("uint32_t[]", replies.sizes),
                len(replies.messages),
                messages,
                len(messages),
            )

    def _tell(self, events: bytes) -> None:
        """In the order in which it happened."""
        receiver, paths = self._receiver, self._host.paths
        arena = self._host.arena()
        heads: list[Mapping[str, str]] = []
        inflated_bytes = 0
        for kind, stream_id, value, head, at, size, is_compressed, _, seconds in _EVENT.iter_unpack(events):
            timeout_s = math.inf if seconds < 0 else seconds
            if kind in _WITH_MESSAGE:
                message = arena[at : at + size]
                if is_compressed:
                    opened = self._open(stream_id, message, inflated_bytes)
                    if opened is None:
                        continue
                    message = opened
                    inflated_bytes += len(message)
                if kind == _ASKED:
                    receiver.asked(stream_id, paths[value], heads[head], timeout_s, message)
                elif kind == _WHOLE:
                    receiver.whole(stream_id, message)
                else:
                    receiver.arrived(stream_id, message)
            elif kind == _HEAD:
                heads.append(self._host.read_head(arena[at : at + size]))
            elif kind == _BEGAN:
                receiver.began(stream_id, paths[value], heads[head], timeout_s)
            elif kind == _ENDED:
                receiver.ended(stream_id)
            elif kind == _RESET:
                receiver.reset(stream_id)
            elif kind == _JUDGED:
                receiver.judged(stream_id, ending_of(self._verdict(value, size, arena[at : at + size])))
            elif kind == _LEAVING:
                receiver.peer_leaves()
            else:
                receiver.farewell_heard()

    def _verdict(self, number: int, size: int, text: bytes) -> Malformed | NoGrpc:
        if number == lib.TW_HTTP2_NOT_POST:
            return NoGrpc(405)
        if number == lib.TW_HTTP2_NOT_GRPC:
            return NoGrpc(415)
        if number == lib.TW_HTTP2_UNKNOWN_METHOD:
            return Malformed(*verdicts.unknown_method(text.decode("latin-1")))
        if number == lib.TW_HTTP2_UNKNOWN_COMPRESSION:
            return UnknownCompression(text.decode("latin-1"))
        if number == lib.TW_HTTP2_LARGE_MESSAGE:
            return Malformed(*verdicts.large_message(size, self._host.limits.message_bytes))
        return Malformed(*_VERDICTS[number])

    def _open(self, stream_id: int, data: bytes, others_bytes: int) -> bytes | None:
        """What gzip made small; None when it is none, and the call is judged. ``others_bytes``: what others that came
        together with it were inflated to, which is not looked at before all of them are taken."""
        try:
            if others_bytes >= self._host.limits.pending_bytes:
                raise Malformed(*verdicts.MUCH_PARTIAL)
            return inflate(data, self._host.limits.message_bytes)
        except Malformed as malformed:
            self._receiver.judged(stream_id, ending_of(malformed))
            return None


class Stack:
    """See `transport.engine.Stack`."""

    name = "nghttp2"

    def __init__(self, methods: Mapping[str, AnyMethod], limits: Limits) -> None:
        self._methods = methods
        self._limits = limits
        self._host = Host(methods, limits)

    def open(self, receiver: Receiver) -> Engine:
        """For a new connection."""
        if len(self._methods) != len(self._host.paths):  # there are more by now
            self._host = Host(self._methods, self._limits)
        return Engine(self._host, receiver)
