"""Opens a connection to a broker, step by step, so that no thread has to wait for it longer than it wants to."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from tickwheel.blocking.wire import Tls, Wire
from tickwheel.client.security import Security, explain_tls
from tickwheel.client.url import Address, UnixAddress

_UNDER_WAY: Final = {
    errno.EINPROGRESS,
    errno.EWOULDBLOCK,
    errno.EALREADY,
    getattr(errno, "WSAEWOULDBLOCK", errno.EINPROGRESS),
}


Target: TypeAlias = tuple[int, Any]
"""A family of addresses, and an address of it."""


class Opening:
    """A connection on its way. Everything raises OSError (TimeoutError among them), TlsFailed, BadCertificate."""

    def __init__(self, address: Address, security: Security, began_at: float, patience_s: float) -> None:
        """``patience_s``: how long it may take. What a name stands for is tried in turn, and has equal parts of it."""
        self.until = began_at + patience_s
        self._address = address
        self._context = security.context() if not isinstance(address, UnixAddress) and address.tls else None
        self._targets: deque[Target] = deque()
        self._next_at = -1.0
        self._failure: OSError = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._sock: socket.socket | None = None
        self._wire: Wire | None = None
        self._tls: Tls | None = None

    def look_up(self) -> Sequence[Target]:
        """What the address stands for, which is tried then. This alone blocks."""
        address = self._address
        if isinstance(address, UnixAddress):
            found: list[Target] = [(socket.AF_UNIX, address.path)]
        else:
            told = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            found = [(family, target) for family, _, _, _, target in told]
        self.take(found)
        return found

    def take(self, targets: Sequence[Target]) -> None:
        """What the address stood for when it was looked up."""
        self._targets.extend(targets)

    def fileno(self) -> int:
        """Of the socket that there is now; -1: none."""
        return -1 if self._sock is None else self._sock.fileno()

    @property
    def wants_to_write(self) -> bool:
        """What its socket is to be watched for, besides reading."""
        return self._wire is None or self._wire.has_unwritten

    def next_at(self) -> float:
        """When to go on, though nothing has happened."""
        return min(self.until, self._next_at) if self._targets else self.until

    def go_on(self, now: float) -> Wire | None:
        """As far as it goes without waiting. The wire when it is open."""
        try:
            if now >= self.until:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            while self._wire is None:
                if not self._is_connected(now):
                    return None
            if self._context is not None and not self._has_shaken_hands(self._wire):
                return None
        except BaseException as error:
            self.close()
            explained = explain_tls(error, self._address) if isinstance(error, ssl.SSLError) else None
            if explained is not None:
                raise explained from error
            raise
        return self._wire

    def _is_connected(self, now: float) -> bool:
        """Whether the socket is, and so there is a wire; False: not yet."""
        try:
            if self._sock is None or (self._targets and now >= self._next_at):
                if self._begin_next(now):
                    return False
            else:
                failed = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if failed:
                    raise OSError(failed, os.strerror(failed))
                if not _has_peer(self._sock):
                    return False
        except OSError as error:
            self._failure = error
            self.close()
            if not self._targets:
                raise
            return self._is_connected(now)
        assert self._sock is not None
        if self._sock.family != getattr(socket, "AF_UNIX", None):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wire = Wire(self._sock)
        return True

    def _begin_next(self, now: float) -> bool:
        """Whether it takes time."""
        self.close()
        if not self._targets:
            raise self._failure
        self._next_at = now + (self.until - now) / len(self._targets)
        family, target = self._targets.popleft()
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        failed = self._sock.connect_ex(target)
        if failed and (failed not in _UNDER_WAY or isinstance(self._address, UnixAddress)):
            raise OSError(failed, os.strerror(failed))
        return failed != 0

    def _has_shaken_hands(self, wire: Wire) -> bool:
        assert self._context is not None
        assert not isinstance(self._address, UnixAddress)
        if self._tls is None:
            self._tls = Tls(self._context, self._address.host)
        wire.flush()
        if not self._tls.shake_hands(wire):
            return False
        wire.protect(self._tls)
        return True

    def close(self) -> None:
        """Gives it up."""
        if self._sock is not None:
            self._sock.close()
        self._sock = self._wire = self._tls = None


def _has_peer(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.EINVAL):
            return False
        raise
    return True
