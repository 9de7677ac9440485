"""The network seam: a byte stream that a connection reads and writes. Sockets here; memory in simulations."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from typing import NoReturn, Protocol

import trio

from tickwheel.protocol.errors import TlsRequired

_KEEPALIVE_IDLE_S = 30
_KEEPALIVE_INTERVAL_S = 10
_KEEPALIVE_PROBES = 3

_TLS_HANDSHAKE = b"\x16\x03"
"""What every TLS connection begins with. A frame begins with its length, and a HELLO is not 790 bytes long."""

_CREDENTIALS = struct.Struct("3i")
"""What SO_PEERCRED gives: process, user and group."""

_TLS_PIECE_BYTES = 64 << 10
"""So much is sent at once, so that a slow reader is told from one that does not read."""


class Transport(Protocol):
    """One accepted connection."""

    peer: str
    """Who is at the other end, for the log."""

    @property
    def is_owner(self) -> bool:
        """Whether the other end is a process of the user whose broker this is, or of root, on this machine."""

    @property
    def is_established(self) -> bool:
        """Whether the other end can be told something: a TLS handshake, if there is one, is over."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive up to `len(buffer)` bytes; 0 at the end. Raises trio.BrokenResourceError on a reset."""

    async def send_some(self, data: bytes | memoryview) -> int:
        """Send what fits, wait if nothing does; the bytes sent. Raises trio.BrokenResourceError when gone."""

    def send_at_once(self, data: bytes) -> int:
        """Send what fits now, without waiting; the bytes sent. 0 also when the peer is gone: `send_some` says that."""

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

    @property
    def is_owner(self) -> bool:
        """See `Transport`."""
        return peer_uid(self._socket) in (0, os.geteuid())

    @property
    def is_established(self) -> bool:
        """See `Transport`."""
        return True

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

    def send_at_once(self, data: bytes) -> int:
        """See `Transport`."""
        try:
            return os.write(self._socket.fileno(), data)
        except OSError:
            return 0

    def end_sending(self) -> None:
        """See `Transport`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """See `Transport`."""
        self._socket.close()


class TlsTransport(SocketTransport):
    """A TCP socket that speaks TLS. The handshake is part of the first receive (or send), so that it holds up no
    other connection, and ends with the connection's deadline.
    """

    def __init__(self, sock: trio.socket.SocketType, context: ssl.SSLContext) -> None:
        super().__init__(sock)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._sending = trio.StrictFIFOLock()
        self._is_plain = False
        self._is_begun = False

    @property
    def is_established(self) -> bool:
        """See `Transport`."""
        return self._is_begun

    async def receive_into(self, buffer: memoryview) -> int:
        """See `Transport`. Raises TlsRequired, once, if the peer speaks without TLS; it can then be told so."""
        await self._begin()
        if self._is_plain:
            return await super().receive_into(buffer)
        while True:
            try:
                count_bytes: int = self._tls.read(len(buffer), buffer)  # type: ignore[assignment]
                return count_bytes
            except ssl.SSLWantReadError:
                await self._exchange()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0  # frames say their own length: an end without a farewell hides nothing
            except ssl.SSLError as error:
                await self._give_up(error)

    async def send_some(self, data: bytes | memoryview) -> int:
        """See `Transport` and `receive_into`."""
        await self._begin()
        if self._is_plain:
            return await super().send_some(data)
        piece = data[:_TLS_PIECE_BYTES]
        try:
            self._tls.write(piece)
        except ssl.SSLError as error:
            await self._give_up(error)
        await self._flush()
        return len(piece)

    def send_at_once(self, data: bytes) -> int:
        """See `Transport`: nothing, for TLS may have to wait."""
        return 0

    async def _begin(self) -> None:
        """The handshake, if the peer wants one. Raises TlsRequired."""
        if self._is_begun:
            return
        try:
            first = await self._socket.recv(len(_TLS_HANDSHAKE), socket.MSG_PEEK)
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror) from error
        if not _TLS_HANDSHAKE.startswith(first):
            self._is_begun = self._is_plain = True
            raise TlsRequired
        while not self._is_begun:
            try:
                self._tls.do_handshake()
                self._is_begun = True
            except ssl.SSLWantReadError:
                await self._exchange()
            except ssl.SSLError as error:
                await self._give_up(error)
        await self._flush()

    async def _exchange(self) -> None:
        """Send what TLS has to say, and receive some more for it."""
        await self._flush()
        try:
            data = await self._socket.recv(_TLS_PIECE_BYTES)
        except OSError as error:
            raise trio.BrokenResourceError(error.strerror) from error
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        """Send what is encrypted: one task at a time, so that it keeps its order."""
        while self._outgoing.pending:
            async with self._sending:
                data: bytes | memoryview = memoryview(self._outgoing.read())
                while data:
                    data = data[await super().send_some(data) :]

    async def _give_up(self, error: ssl.SSLError) -> NoReturn:
        """Tell the peer what TLS objects to. Raises trio.BrokenResourceError."""
        self._is_begun = True
        await self._flush()
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = f"the client's certificate is refused: {error.verify_message}"
        else:
            reason = error.reason or str(error)
        raise trio.BrokenResourceError(f"TLS: {reason}") from error


def peer_uid(sock: trio.socket.SocketType) -> int | None:
    """The user at the other end of a Unix socket, as the system knows it; None for others."""
    if sock.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    try:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    return int(_CREDENTIALS.unpack(credentials)[1])


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
