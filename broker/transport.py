"""The network seam: a byte stream that a connection reads and writes. Sockets here; memory in simulations."""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol

import trio

_KEEPALIVE_IDLE_S = 30
_KEEPALIVE_INTERVAL_S = 10
_KEEPALIVE_PROBES = 3


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
