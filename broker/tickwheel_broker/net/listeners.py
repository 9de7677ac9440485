"""Where the broker listens: TCP and Unix sockets, opened with errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

import trio

from tickwheel_broker.config.places import place_of
from tickwheel_broker.config.settings import Settings
from tickwheel_broker.errors import AddressInUse, CannotListen
from tickwheel_broker.net.tls import Certificates
from tickwheel_broker.net.transport import SocketTransport, TlsTransport, Transport

_BACKLOG = 1_024
_OWNER = 0o600
"""Of the broker's Unix socket: a process that can open it can do everything."""
_GROUP = 0o660
"""Of that of the HTTP API, which asks for tokens."""
GONE_BEFORE_ACCEPT = {errno.ECONNABORTED, errno.EPROTO, errno.EINTR}
"""What accepting fails with when the connection has ended before."""

OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
"""What accepting fails with when the system has no more of something."""


class Listener(Protocol):
    """Where connections come from."""

    url: str
    """What clients use for it."""

    async def accept(self) -> Transport:
        """The next connection. Raises OSError."""

    def close(self) -> None:
        """Stop listening."""


class SocketListener:
    """One listening socket, and the URL that clients use for it."""

    def __init__(
        self,
        sock: trio.socket.SocketType,
        url: str,
        *,
        path: str = "",
        certificates: Certificates | None = None,
    ) -> None:
        """`path`: the socket's file. With `certificates` it speaks TLS."""
        self.socket = sock
        self.url = url
        self._path = path
        self._certificates = certificates

    async def accept(self) -> Transport:
        """See `Listener`."""
        sock, _ = await self.socket.accept()
        if self._certificates is None:
            return SocketTransport(sock)
        return TlsTransport(sock, self._certificates.current)

    def close(self) -> None:
        """Stop listening; a Unix socket's file is removed."""
        self.socket.close()
        _unlink(self._path)


@dataclass(frozen=True)
class OpenSocket:
    """A listening socket for a process that is not ours to run."""

    socket: socket.socket
    url: str
    path: str = ""

    def close(self) -> None:
        """Stop listening; a Unix socket's file is removed."""
        self.socket.close()
        _unlink(self.path)


async def open_listeners(settings: Settings, certificates: Certificates | None = None) -> list[Listener]:
    """Open everything that the settings ask for; TCP with TLS if there are certificates. Raises AddressInUse or
    CannotListen; then nothing is left open.
    """
    with contextlib.ExitStack() as opened:
        listeners: list[SocketListener] = []
        if settings.unix_socket:
            path = settings.unix_socket
            url = _unix_url("tickwheel", path)
            listeners.append(SocketListener(await _bind_unix(path, _OWNER), url, path=path))
            opened.callback(listeners[-1].close)
        if settings.listen_tcp:
            scheme = "tickwheel" if certificates is None else "tickwheels"
            listeners.extend(
                await _open_tcp(settings.listen_host, settings.listen_port, scheme, certificates=certificates)
            )
        opened.pop_all()
        return list(listeners)


def _plain(sock: trio.socket.SocketType) -> socket.socket:
    found = socket.socket(fileno=sock.detach())
    found.setblocking(False)
    return found


def _unlink(path: str) -> None:
    if path:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


async def _open_tcp(
    host: str, port: int, scheme: str, advice: str | None = None, *, certificates: Certificates | None = None
) -> list[SocketListener]:
    try:
        opened = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except OSError as error:
        raise explain(error, f"{host}:{port}", advice) from error
    return [
        SocketListener(each.socket, tcp_url(scheme, each.socket), certificates=certificates)
        for each in opened
    ]


def tcp_url(scheme: str, sock: trio.socket.SocketType) -> str:
    """Where a listening TCP socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _unix_url(scheme: str, path: str) -> str:
    return f"{scheme}+unix://{quote(os.path.abspath(path))}"


async def open_web_listeners(settings: Settings) -> list[OpenSocket]:
    """Those of the HTTP API. Raises AddressInUse or CannotListen; then nothing is left open."""
    advice = "Choose another web_host, web_port or web_unix_socket."
    with contextlib.ExitStack() as opened:
        listeners: list[OpenSocket] = []
        if settings.web_unix_socket:
            path = settings.web_unix_socket
            sock = await _bind_unix(path, _GROUP, advice)
            listeners.append(OpenSocket(_plain(sock), _unix_url("http", path), path))
            opened.callback(listeners[-1].close)
        if settings.web_host:
            scheme = "https" if settings.tls_certificate else "http"
            for one in await _open_tcp(settings.web_host, settings.web_port, scheme, advice):
                listeners.append(OpenSocket(_plain(one.socket), one.url))
        opened.pop_all()
        return listeners


async def open_rocketmq_listeners(settings: Settings) -> list[OpenSocket]:
    """Those of the gateway for RocketMQ, whose clients write an address without a scheme. With several workers they do
    not listen: they hold the addresses, at which each worker listens. Raises AddressInUse or CannotListen; then nothing
    is left open."""
    host, port = place_of(settings.rocketmq_listen)
    advice = "Choose another rocketmq_listen."
    if settings.rocketmq_workers > 1:
        opened = await _hold_tcp(host, port, "grpc", advice)
    else:
        opened = await _open_tcp(host, port, "grpc", advice)
    return [OpenSocket(_plain(one.socket), one.url.removeprefix("grpc://")) for one in opened]


async def hold_flight_place(settings: Settings) -> list[OpenSocket]:
    """Where `tickwheel flight` is to listen: held, so that a place that is taken is known before the broker serves, and
    that the port which the system chooses stays free. Raises AddressInUse or CannotListen; then nothing is left
    open."""
    host, port = place_of(settings.flight_listen)
    scheme = "grpc+tls" if settings.tls_certificate else "grpc"
    opened = await _hold_tcp(host, port, scheme, "Choose another flight_listen.", is_one=True)
    return [OpenSocket(_plain(one.socket), one.url) for one in opened]


async def _hold_tcp(
    host: str, port: int, scheme: str, advice: str, *, is_one: bool = False
) -> list[SocketListener]:
    """Sockets at which no connection arrives. Others of the same user can listen where they are with SO_REUSEPORT, and
    no one without it. With `is_one` there is one socket, and who listens there needs SO_REUSEADDR alone."""
    with contextlib.ExitStack() as opened:
        held = []
        try:
            for family, kind, protocol, _, address in await trio.socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                one = trio.socket.socket(family, kind, protocol)
                opened.callback(one.close)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                # Bound without it: where others share a port already, they are not joined.
                await one.bind(address)
                held.append(SocketListener(one, tcp_url(scheme, one)))
                if is_one:
                    break
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError as error:
            raise explain(error, f"{host}:{port}", advice) from error
        opened.pop_all()
        return held


async def _bind_unix(path: str, mode: int, advice: str | None = None) -> trio.socket.SocketType:
    await _remove_stale(path)
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await sock.bind(path)
        os.chmod(path, mode)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise explain(error, path, advice) from error
    return sock


async def _remove_stale(path: str) -> None:
    """Remove the socket file of a broker that was killed; one that answers is in use."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise AddressInUse(f"{path} exists and is not a socket.")
    except FileNotFoundError:
        return
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            await probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            raise explain(error, path) from error
    raise AddressInUse(f"Another process listens on {path}.")


def explain(error: OSError, address: str, advice: str | None = None) -> AddressInUse | CannotListen:
    """Why an address cannot be listened on; with other advice than the error's own, if some is given."""
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(f"Another process listens on {address}.", advice=advice)
    return CannotListen(f"Cannot listen on {address}: {error.strerror or error}.", advice=advice)
