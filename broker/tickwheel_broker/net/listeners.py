"""Where the broker listens: TCP and Unix sockets, opened with errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from typing import Protocol
from urllib.parse import quote

import trio

from tickwheel_broker.config.settings import Settings
from tickwheel_broker.errors import AddressInUse, CannotListen
from tickwheel_broker.net.tls import Certificates
from tickwheel_broker.net.transport import SocketTransport, TlsTransport, Transport

_BACKLOG = 1_024


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
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


async def open_listeners(settings: Settings, certificates: Certificates | None = None) -> list[Listener]:
    """Open everything that the settings ask for; TCP with TLS if there are certificates. Raises AddressInUse or
    CannotListen; then nothing is left open.
    """
    with contextlib.ExitStack() as opened:
        listeners: list[SocketListener] = []
        if settings.unix_socket:
            listeners.append(await _open_unix(settings.unix_socket))
            opened.callback(listeners[-1].close)
        if settings.listen_tcp:
            listeners.extend(await _open_tcp(settings.listen_host, settings.listen_port, certificates))
        opened.pop_all()
        return list(listeners)


async def _open_tcp(host: str, port: int, certificates: Certificates | None) -> list[SocketListener]:
    try:
        opened = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except OSError as error:
        raise explain(error, f"{host}:{port}") from error
    scheme = "tickwheel" if certificates is None else "tickwheels"
    return [
        SocketListener(each.socket, tcp_url(scheme, each.socket), certificates=certificates)
        for each in opened
    ]


def tcp_url(scheme: str, sock: trio.socket.SocketType) -> str:
    """Where a listening TCP socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _unix_url(path: str) -> str:
    return f"tickwheel+unix://{quote(os.path.abspath(path))}"


async def _open_unix(path: str) -> SocketListener:
    """Bind with access for the owner only: whoever can open the socket can do everything."""
    await _remove_stale(path)
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await sock.bind(path)
        os.chmod(path, 0o600)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise explain(error, path) from error
    return SocketListener(sock, _unix_url(path), path=path)


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
