"""Which stream sends next, and how much: as the peer's windows allow, each some at a time."""

from __future__ import annotations

import math
from typing import Final

from tickwheel_gateway.transport.engine import ErrorCode
from tickwheel_gateway.transport.with_h2.library import OK_HEAD, Library
from tickwheel_gateway.transport.with_h2.stream import Stream

_HIGH_WATER_BYTES: Final = 1 << 20
"""So much goes to the library before the socket takes some."""
_TURN_BYTES: Final = 64 << 10
"""What one stream sends before others have a turn."""


class Turns:
    """The outgoing side of one connection."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._waiting: dict[int, Stream] = {}
        """Those that have something to send, and would if the socket or the peer's window for all took more."""
        self._starved: dict[int, Stream] = {}
        """Those without a window of their own."""
        self.whole: dict[int, int] = {}
        """Messages whose last byte the library has, by stream."""
        self.over: list[Stream] = []
        """Streams whose last frame it has."""

    @property
    def waiting_bytes(self) -> int:
        """What was given and the library does not have."""
        return sum(one.out_bytes for some in (self._waiting, self._starved) for one in some.values())

    def add(self, stream: Stream) -> None:
        """It has something to send."""
        if stream.stream_id not in self._starved:
            self._waiting[stream.stream_id] = stream

    def forget(self, stream: Stream) -> None:
        """It has ended."""
        self._waiting.pop(stream.stream_id, None)
        self._starved.pop(stream.stream_id, None)

    def widened(self, stream_id: int) -> None:
        """The peer takes more of one stream."""
        if (stream := self._starved.pop(stream_id, None)) is not None:
            self._waiting[stream_id] = stream

    def all_widened(self) -> None:
        """Of each stream, perhaps."""
        self._waiting.update(self._starved)
        self._starved.clear()

    def blocked_since(self, now: float) -> float:
        """Since when the longest waiting stream has no window."""
        found = math.inf
        for some in (self._waiting, self._starved):
            for stream in some.values():
                if stream.blocked_since == math.inf and self._library.room(stream.stream_id) <= 0:
                    stream.blocked_since = now
                found = min(found, stream.blocked_since)
        return found

    def run(self) -> None:
        """Give the library what the windows take, each stream some at a time."""
        left = _HIGH_WATER_BYTES
        moved = True
        while moved and self._waiting and left > 0:
            moved = False
            for stream in list(self._waiting.values()):
                sent = self._advance(stream, min(_TURN_BYTES, left))
                left -= sent
                moved |= sent > 0
                if left <= 0:
                    break

    def _advance(self, stream: Stream, most_bytes: int) -> int:
        """At most so much of one stream; returns how much."""
        library, stream_id, left = self._library, stream.stream_id, most_bytes
        while stream.out:
            piece = stream.out[0]
            room = min(library.room(stream_id), left)
            if room <= 0:
                if library.stream_room(stream_id) <= 0:
                    del self._waiting[stream_id]
                    self._starved[stream_id] = stream
                return most_bytes - left
            if not stream.is_head_sent:
                stream.is_head_sent = True
                library.answer(stream_id, OK_HEAD)
            size = min(room, library.max_outbound_frame_size, len(piece.data) - piece.at)
            whole = piece.at == 0 and size == len(piece.data)
            library.send_data(stream_id, piece.data if whole else piece.data[piece.at : piece.at + size])
            piece.at += size
            left -= size
            stream.out_bytes -= size
            stream.blocked_since = math.inf
            if piece.at == len(piece.data):
                stream.out.popleft()
                if piece.is_reported:
                    self.whole[stream_id] = self.whole.get(stream_id, 0) + 1
        del self._waiting[stream_id]
        if stream.ending is not None:
            self._end(stream)
        return most_bytes - left

    def _end(self, stream: Stream) -> None:
        ending = stream.ending or []
        if not stream.is_head_sent and ending[0][0] != b":status":
            ending = OK_HEAD + ending
        self._library.answer(stream.stream_id, ending, last=True)
        if not stream.has_all:  # what it still sends is not wanted
            self._library.reset(stream.stream_id, ErrorCode.NO_ERROR)
        self.over.append(stream)
