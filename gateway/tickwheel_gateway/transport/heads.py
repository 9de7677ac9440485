"""Headers of a request, and of answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tickwheel_gateway.transport.call import Status
from tickwheel_gateway.transport.framing import Malformed, UnknownCompression, percent_encoded, timeout_s

_Header = tuple[bytes, bytes]

_ACCEPTED: Final = (b"grpc-accept-encoding", b"identity,gzip")
_GRPC: Final = b"application/grpc"


class NoGrpc(Exception):
    """A request that is none of gRPC; `http_status` is its answer."""

    def __init__(self, http_status: int) -> None:
        super().__init__(str(http_status))
        self.http_status = http_status


@dataclass(frozen=True, slots=True)
class Head:
    """What the headers of a request say."""

    method: str
    metadata: dict[str, str]
    timeout_s: float | None
    encoding: str


def read_head(headers: Iterable[_Header]) -> Head:
    """Raises NoGrpc and Malformed."""
    path = http_method = content_type = b""
    metadata: dict[str, str] = {}
    for name, value in headers:
        if name[:1] == b":":
            if name == b":path":
                path = value
            elif name == b":method":
                http_method = value
            continue
        key = name.decode("latin-1")
        # The last one counts, as it does for RocketMQ: when the client for Go sends a message again, it adds its
        # headers to those of the try before.
        metadata[key] = value.decode("latin-1")
        if key == "content-type":
            content_type = value
    if http_method != b"POST":
        raise NoGrpc(405)
    if not content_type.startswith(_GRPC) or content_type[len(_GRPC) : len(_GRPC) + 1] not in (
        b"",
        b"+",
        b";",
        b" ",
    ):
        raise NoGrpc(415)
    timeout = metadata.get("grpc-timeout")
    return Head(
        path.decode("latin-1"),
        metadata,
        None if timeout is None else timeout_s(timeout),
        metadata.get("grpc-encoding", "identity"),
    )


def trailers(status: int, text: str) -> list[_Header]:
    """The end of an answer."""
    found = [(b"grpc-status", b"%d" % status)]
    if text:
        found.append((b"grpc-message", percent_encoded(text)))
    return found


def refusal(malformed: Malformed) -> list[_Header]:
    """What is said besides the status."""
    return [_ACCEPTED] if isinstance(malformed, UnknownCompression) else []


def only_http(http_status: int) -> list[_Header]:
    """The answer to what is no gRPC; for a client of gRPC that got the type wrong, also a status."""
    return [
        (b":status", b"%d" % http_status),
        (b"content-type", _GRPC),
        (b"grpc-status", b"%d" % Status.UNKNOWN),
        (b"grpc-message", b"content-type must be application/grpc, method POST"),
    ]
