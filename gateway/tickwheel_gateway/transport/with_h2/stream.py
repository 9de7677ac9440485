"""What the engine knows of one stream."""

from __future__ import annotations

import math
from collections import deque

from tickwheel_gateway.transport.engine import Headers
from tickwheel_gateway.transport.framing import MessageReader, framed


class Piece:
    """One framed message on its way."""

    __slots__ = ("at", "data", "is_reported")

    def __init__(self, message: bytes, *, is_reported: bool) -> None:
        self.data = framed(message)
        self.at = 0
        self.is_reported = is_reported
        """Whether to tell when it goes."""


class Stream:
    """Of a call, from its head until its last frame is on its way."""

    __slots__ = (
        "blocked_since",
        "ending",
        "has_all",
        "has_request",
        "is_head_sent",
        "is_judged",
        "out",
        "out_bytes",
        "partial_bytes",
        "reader",
        "request",
        "stream_id",
        "takes_stream",
        "ungranted_bytes",
        "untaken",
    )

    def __init__(self, stream_id: int, reader: MessageReader, *, takes_stream: bool) -> None:
        self.stream_id = stream_id
        self.reader = reader
        self.takes_stream = takes_stream
        self.request = b""
        self.has_request = False
        self.has_all = False
        """The client has ended its side."""
        self.is_judged = False
        self.untaken = 0
        """Messages that were told and not taken."""
        self.partial_bytes = 0
        self.ungranted_bytes = 0
        """Received, and not yet given back to the window of the stream."""
        self.is_head_sent = False
        self.out: deque[Piece] = deque()
        self.out_bytes = 0
        self.ending: Headers | None = None
        """The trailers, once they are known."""
        self.blocked_since = math.inf
        """Since when the peer gives no window for what waits."""

    def put(self, message: bytes, *, is_reported: bool) -> None:
        """One more to send."""
        piece = Piece(message, is_reported=is_reported)
        self.out.append(piece)
        self.out_bytes += len(piece.data)

    def drop(self, at: int, count: int) -> int:
        """Take so many back, from the one at that place; not one that has begun. Returns how many went."""
        if at == 0 and self.out and self.out[0].at:
            at, count = 1, count - 1
        back = list(self.out)[at : at + max(count, 0)]
        if back:
            kept = list(self.out)
            del kept[at : at + len(back)]
            self.out = deque(kept)
            self.out_bytes -= sum(len(piece.data) for piece in back)
        return len(back)
