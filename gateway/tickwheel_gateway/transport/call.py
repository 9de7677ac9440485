"""The seam: what a service sees of a call. Nothing above it knows HTTP/2."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Protocol, TypeAlias


class Status(IntEnum):
    """gRPC statuses that are used here. What a service has to say is in its answers; these are for the call itself."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallEnded(Exception):
    """There is nobody to send to: the client reset the stream, its deadline passed, or the connection ended."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of a connection."""

    peer: str = ""
    """For the log."""
    local: tuple[str, int] = ("", 0)
    """The address that the client reached."""
    is_tls: bool = False


class Call(Protocol):
    """One call. Its handler is cancelled when the client resets the stream, the deadline passes, the connection ends,
    or the server stops and has waited long enough.
    """

    @property
    def method(self) -> str:
        """The whole path."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Headers of the request, without those of HTTP/2 itself; of one name the last value counts."""

    @property
    def deadline(self) -> float:
        """On trio's clock; infinite when the client gave none."""

    @property
    def ends(self) -> Ends:
        """Of the connection."""

    @property
    def request(self) -> bytes:
        """The one message of a request that is no stream."""

    @property
    def written(self) -> int:
        """How many of the messages given to `stream` were written to the socket, also after a cancellation."""

    def requests(self) -> AsyncIterator[bytes]:
        """The messages of a request that is a stream, until the client ends it."""

    def hang_up(self) -> None:
        """As if the client ended its stream now: `requests` ends after those that have arrived."""

    def reply(self, data: bytes) -> None:
        """The only answer, and status 0. Does not wait. Nothing happens when the call has ended."""

    async def stream(self, *messages: bytes, last: bool = False) -> None:
        """Send messages and wait until the socket has taken them. With `last` status 0 follows in the same write.

        Cancelled, it takes back what was not begun, and `written` says how many went. Raises CallEnded.
        """

    def fail(self, status: int, text: str) -> None:
        """End with a status; what waits and was not begun is dropped. Nothing happens when the call has ended."""


Handler = Callable[[Call], Awaitable[None]]
BatchHandler = Callable[[Sequence[Call]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Method:
    """How a method is served. A handler that returns without having ended its call ends it with status 0, if it has
    streamed or its request is a stream.
    """

    handler: Handler
    takes_stream: bool = False
    """The handler begins with the headers and reads `requests()`. Otherwise it begins when its request is whole."""


@dataclass(frozen=True, slots=True)
class BatchMethod:
    """How a method is served whose requests arrive many at a time: all that one read of a connection has completed go
    to the handler together, in their order. It must not use `requests`, `hang_up` and `stream`.

    It goes on when single calls of the batch end before it, and is cancelled when none of them is left, which may be as
    soon as it has answered: what it does after that must not wait. Each call that it leaves without an answer fails.
    """

    handler: BatchHandler
    takes_stream: ClassVar[bool] = False


AnyMethod: TypeAlias = Method | BatchMethod
