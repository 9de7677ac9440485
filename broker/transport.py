"""The network seam: a byte stream that a connection reads and writes. Sockets here; memory in simulations."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Protocol

import trio

from tickwheel.protocol.security_errors import TlsRequired

_KEEPALIVE_IDLE_S = 30
_KEEPALIVE_INTERVAL_S = 10
_KEEPALIVE_PROBES = 3

_TLS_HANDSHAKE = b"\x16\x03"
"""What every TLS connection begins with. A frame begins with its length, and a HELLO is not 790 bytes long."""

_TLS_PIECE_BYTES = 64 << 10
"""So much is sent at once, so that a slow reader is told from one that does not read."""


class Transport(Protocol):
    """One accepted connection."""

    peer: str
    """Who is at the other end, for the log."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive up to `len(buffer)` bytes; 0 at the end. Raises trio.BrokenResourceError on a reset."""

    async def send_some(self, data: bytes | memoryview) -> int:
        """Send what fits, wait if nothing does; the bytes sent. Raises trio.BrokenResourceError when gone."""

    def end_sending(self) -> None:
        """Tell the other side that nothing more comes; receiving goes on."""

    def close(self) -> None:
        """Close both directions."""


class SocketTransport:
    """A TCP or Unix socket."""

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._socket = sock
        self.peer = _describe_peer(sock)
        if sock.family != socket.AF_UNIX:
            _tune_tcp(sock)

    async def receive_into(self, buffer: memoryview) -> int:
        """See `Transport`."""
        try:
            return await self._socket.recv_into(buffer)
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror) from error

    async def send_some(self, data: bytes | memoryview) -> int:
        """See `Transport`."""
        try:
            return await self._socket.send(data)
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror) from error

    def end_sending(self) -> None:
        """See `Transport`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """See `Transport`."""
        self._socket.close()


class TlsTransport(SocketTransport):
    """A TCP socket that speaks TLS. The handshake is part of the first receive (or send), so that it holds up nobody
    else, and ends with the connection's deadline.
    """

    def __init__(self, sock: trio.socket.SocketType, context: ssl.SSLContext) -> None:
        super().__init__(sock)
        stream = trio.SocketStream(sock)
        # https_compatible: frames say their own length, so an end without a farewell hides nothing.
        self._tls = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        self._is_plain = False
        self._is_begun = False

    async def receive_into(self, buffer: memoryview) -> int:
        """See `Transport`. Raises TlsRequired, once, if the peer speaks without TLS; it can then be told so."""
        await self._begin()
        if self._is_plain:
            return await super().receive_into(buffer)
        try:
            data = await self._tls.receive_some(len(buffer))
        except trio.BrokenResourceError as error:
            raise _explain_tls(error) from error
        buffer[: len(data)] = data
        return len(data)

    async def send_some(self, data: bytes | memoryview) -> int:
        """See `Transport` and `receive_into`."""
        await self._begin()
        if self._is_plain:
            return await super().send_some(data)
        piece = data[:_TLS_PIECE_BYTES]
        try:
            await self._tls.send_all(piece)
        except trio.BrokenResourceError as error:
            raise _explain_tls(error) from error
        return len(piece)

    async def _begin(self) -> None:
        if self._is_begun:
            return
        try:
            first = await self._socket.recv(len(_TLS_HANDSHAKE), socket.MSG_PEEK)
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror) from error
        self._is_begun = True
        if not _TLS_HANDSHAKE.startswith(first):
            self._is_plain = True
            raise TlsRequired


def _explain_tls(error: trio.BrokenResourceError) -> trio.BrokenResourceError:
    """The same, with what OpenSSL objects to."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return trio.BrokenResourceError(f"TLS: the client's certificate is refused: {cause.verify_message}")
    if isinstance(cause, ssl.SSLError):
        return trio.BrokenResourceError(f"TLS: {cause.reason or cause}")
    return error


def _describe_peer(sock: trio.socket.SocketType) -> str:
    if sock.family == socket.AF_UNIX:
        return "unix"
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "gone"
    return f"{host}:{port}"


def _tune_tcp(sock: trio.socket.SocketType) -> None:
    """No delay for small replies; probes find peers that vanished without a word (half-open connections)."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
