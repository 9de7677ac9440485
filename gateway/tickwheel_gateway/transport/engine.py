"""The interface to HTTP/2: calls above, bytes below. Nothing above it knows which library does the work."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, Protocol, TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]

ANY_STREAM: Final = 2**31 - 1
"""As the last stream of a GOAWAY: what is under way will be served."""
OK_TRAILERS: Final[Headers] = [(b"grpc-status", b"0")]
FAREWELL: Final = b"farewell"
"""What the PING after the first GOAWAY carries: whoever acks it has read the GOAWAY."""
_GOAWAY: Final = struct.Struct("!BHBBIII")
_GOAWAY_TYPE: Final = 7


class ErrorCode(IntEnum):
    """Of HTTP/2, as far as this server says them."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    ENHANCE_YOUR_CALM = 11


class Broken(Exception):
    """The connection cannot go on. `code` is for the GOAWAY; None: the engine says it itself."""

    def __init__(self, code: ErrorCode | None = None) -> None:
        super().__init__(code)
        self.code = code


class Receiver(Protocol):
    """What an engine tells of. All of it may be told within `Engine.feed`, and nothing else."""

    def began(self, stream_id: int, method: str, metadata: Mapping[str, str], timeout_s: float) -> None:
        """A call of a method that there is. Its request is not whole, or is a stream."""

    def asked(
        self, stream_id: int, method: str, metadata: Mapping[str, str], timeout_s: float, request: bytes
    ) -> None:
        """A call of a method that takes no stream, with its request: in place of `began` and `whole`."""

    def whole(self, stream_id: int, request: bytes) -> None:
        """The request of a call that began, and takes no stream."""

    def arrived(self, stream_id: int, message: bytes) -> None:
        """A message of a call that takes a stream."""

    def ended(self, stream_id: int) -> None:
        """The client ends the stream of a request."""

    def reset(self, stream_id: int) -> None:
        """The client wants no answer, or the stream has broken."""

    def judged(self, stream_id: int, ending: Headers) -> None:
        """What was sent makes an answer impossible: the call, whether it began or not, is to end with this."""

    def peer_leaves(self) -> None:
        """It opens no more streams, and waits for those that there are."""

    def farewell_heard(self) -> None:
        """The PING of `Engine.say_farewell` came back."""


Sent: TypeAlias = tuple[bytes, Sequence[tuple[int, int]], Sequence[int]]
"""Bytes for the socket; by stream how many messages of `send` end in them; the streams that end in them."""


class Engine(Protocol):
    """The server's side of one connection: no input or output. What is asked of a stream that has ended does nothing.

    Each engine refuses streams beyond `Limits.streams` and judges what goes beyond the limits for requests; it
    gives windows back for what has arrived, but not for a stream whose messages wait to be taken.
    """

    @property
    def last_stream_id(self) -> int:
        """The highest that the peer has opened."""

    @property
    def unwritten_bytes(self) -> int:
        """What waits for the socket, about. What waits for windows may be part of it."""

    @property
    def partial_bytes(self) -> int:
        """What has arrived of messages that are not whole."""

    def feed(self, data: bytes) -> bool:
        """What has arrived. True: there is more to do, by feeding nothing, but others should have a turn.

        Raises Abuse and Broken. What was told before counts all the same.
        """

    def refuse_after(self, stream_id: int) -> None:
        """Later streams are refused one by one."""

    def took(self, stream_id: int) -> None:
        """A message that has `arrived` no longer waits."""

    def reply(self, stream_id: int, message: bytes) -> None:
        """The only message of an answer, and status 0 after it."""

    def send(self, stream_id: int, messages: Sequence[bytes], *, last: bool) -> None:
        """More messages of an answer. With `last` status 0 follows."""

    def take_back(self, stream_id: int, at: int, count: int, *, reopen: bool) -> int:
        """Drop so many messages of `send`, from that place among those that were not reported yet. One that has begun
        stays; returns how many went. With `reopen` more messages may follow, if some went.
        """

    def end(self, stream_id: int, ending: Headers) -> bool:
        """Drop what was not begun and end with these trailers. False: a message was begun, and the stream was reset."""

    def say_farewell(self) -> None:
        """A PING whose ack will be told."""

    def data_to_send(self) -> Sent:
        """What can leave now, whole frames, in a piece of reasonable size. What it gave before is written by now.

        Empty bytes: there is no more for now.
        """

    @property
    def may_send(self) -> bool:
        """Whether `data_to_send` may have something, or it `has_ended`."""

    @property
    def has_ended(self) -> bool:
        """It has said the last word itself, and takes in nothing more."""

    def blocked_since(self, now: float) -> float:
        """Since when the peer has given no window for what waits; of all streams the longest. Asked each second."""

    def close(self) -> None:
        """Nothing is asked any more."""


class Stack(Protocol):
    """A library that serves HTTP/2, with what it needs to know of the server."""

    @property
    def name(self) -> str:
        """For the log and metrics."""

    def open(self, receiver: Receiver) -> Engine:
        """For a new connection."""


def goaway(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    """The frame. Not by way of a library: those send nothing more then on the streams that there are."""
    text = reason.encode("ascii", "replace")
    size = 8 + len(text)
    return _GOAWAY.pack(size >> 16, size & 0xFFFF, _GOAWAY_TYPE, 0, 0, last_stream_id, code) + text
