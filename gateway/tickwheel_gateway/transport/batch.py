"""Calls that one handler serves together. They are many, so each is as light as can be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import trio

from tickwheel_gateway.transport.call import Ends
from tickwheel_gateway.transport.engine import OK_TRAILERS, Headers
from tickwheel_gateway.transport.heads import trailers


class Carrier(Protocol):
    """The connection, as such a call sees it."""

    def reply(self, call: BatchCall, data: bytes) -> None:
        """The only answer; the request is no longer in work."""

    def end(self, call: BatchCall, ending: Headers) -> None:
        """Drop what was not begun, and end with these trailers."""


class Batch:
    """It is cancelled when all of its calls have ended."""

    __slots__ = ("calls", "left", "scope")

    def __init__(self, calls: list[BatchCall]) -> None:
        self.calls = calls
        self.left = len(calls)
        self.scope = trio.CancelScope()

    def lost_one(self) -> None:
        """One of them has ended."""
        self.left -= 1
        if not self.left:
            self.scope.cancel()


class BatchCall:
    """See `Call`, whose words these are. It has no streams."""

    __slots__ = (
        "_carrier",
        "batch",
        "deadline",
        "ending",
        "ends",
        "held_bytes",
        "is_closed",
        "metadata",
        "method",
        "request",
        "stream_id",
    )

    def __init__(
        self,
        *,
        stream_id: int,
        method: str,
        metadata: Mapping[str, str],
        deadline: float,
        request: bytes,
        carrier: Carrier,
        ends: Ends,
    ) -> None:
        self.stream_id = stream_id
        self.method = method
        self.metadata = metadata
        self.deadline = deadline
        self.request = request
        self.held_bytes = 0
        """Of the request, in work."""
        self.ends = ends
        self.batch: Batch | None = None
        self.ending: Headers | None = None
        self.is_closed = False
        self._carrier = carrier

    @property
    def written(self) -> int:
        """See `Call`."""
        return 0

    def requests(self) -> AsyncIterator[bytes]:
        """See `BatchMethod`."""
        raise TypeError("a call of a batch has no stream")

    def hang_up(self) -> None:
        """See `BatchMethod`."""
        raise TypeError("a call of a batch has no stream")

    async def stream(self, *messages: bytes, last: bool = False) -> None:
        """See `BatchMethod`."""
        raise TypeError("a call of a batch has no stream")

    def reply(self, data: bytes) -> None:
        """See `Call`."""
        if self.ending is None and not self.is_closed:
            self.ending = OK_TRAILERS
            self._carrier.reply(self, data)

    def fail(self, status: int, text: str) -> None:
        """See `Call`."""
        if self.ending is None:
            self.end(trailers(status, text))

    def end(self, ending: Headers) -> None:
        """Whatever was said before: these are the trailers."""
        if not self.is_closed:
            self.ending = ending
            self._carrier.end(self, ending)

    def close(self) -> None:
        """Nothing more goes or comes."""
        self.is_closed = True
        if self.batch is not None:
            self.batch.lost_one()
            self.batch = None
