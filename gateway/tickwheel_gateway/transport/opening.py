"""How a connection begins: TLS or plain text on one port, told apart by the first byte."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

import trio

from tickwheel_gateway.transport.limits import READ_BYTES
from tickwheel_gateway.transport.sockets import Socket

_TLS: Final = 0x16
"""A handshake of TLS begins with it, and HTTP/2 with a P."""


class NotWelcome(Exception):
    """TLS where there is none, plain text where it is not allowed, or a handshake that fails."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection that has begun."""

    stream: trio.abc.Stream
    first: bytes
    """What has come of it already."""
    _: KW_ONLY
    is_tls: bool


class Begun(trio.abc.HalfCloseableStream):
    """A stream whose first bytes were looked at."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, first: bytes) -> None:
        self._stream = stream
        self._first = first

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._first:
            return bytes(await self._stream.receive_some(max_bytes))
        await trio.lowlevel.checkpoint()
        size = len(self._first) if max_bytes is None else max_bytes
        data, self._first = self._first[:size], self._first[size:]
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def open_stream(
    stream: trio.abc.HalfCloseableStream, tls: Callable[[], ssl.SSLContext] | None, *, is_plain_allowed: bool
) -> Opened:
    """What to speak HTTP/2 on. Raises NotWelcome and trio.BrokenResourceError."""
    first = bytes(await stream.receive_some(READ_BYTES))
    if not first:
        raise trio.BrokenResourceError("the peer said nothing")
    if first[0] != _TLS:
        if not is_plain_allowed:
            raise NotWelcome("plain text")
        plain = Socket(stream) if isinstance(stream, trio.SocketStream) else stream
        return Opened(plain, first, is_tls=False)
    if tls is None:
        raise NotWelcome("TLS")
    secured: trio.SSLStream[Begun] = trio.SSLStream(
        Begun(stream, first), tls(), server_side=True, https_compatible=True
    )
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        raise NotWelcome("the handshake fails") from error
    return Opened(secured, b"", is_tls=True)


def tls_context(certificate: str, key: str = "") -> ssl.SSLContext:
    """For a certificate and its key, in PEM files; it says h2 by ALPN. Raises OSError and ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(certificate, key or None)
    return context
