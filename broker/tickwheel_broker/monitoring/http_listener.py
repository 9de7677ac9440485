"""The HTTP listener as the daemon sees it: its sockets, and what is imported only if it is wanted.

`broker/tickwheel_broker/monitoring/web.py` needs packages of the extra `server`; nothing else of the broker does.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

import trio

from tickwheel_broker.config.settings import Settings
from tickwheel_broker.errors import ServerExtraMissing
from tickwheel_broker.monitoring.watched import Drain, Sight
from tickwheel_broker.net.listeners import explain, tcp_url
from tickwheel_broker.net.tls import Certificates
from tickwheel_broker.security.access import Access

_BACKLOG = 1_024
_ADVICE = "Choose another http_host or http_port, or set http_listen = false."


class Watching:
    """The listener; it may have no socket at all."""

    def __init__(self, listeners: list[trio.SocketListener], certificates: Certificates | None) -> None:
        self._listeners = listeners
        self._certificates = certificates

    @property
    def urls(self) -> list[str]:
        """Where it is reached."""
        scheme = "http" if self._certificates is None else "https"
        return [tcp_url(scheme, listener.socket) for listener in self._listeners]

    async def run(self, sight: Sight, access: Access, drain: Drain | None = None) -> None:
        """Serve until cancelled. `drain`: see `web.Pages`."""
        if self._listeners:
            from tickwheel_broker.monitoring.web import WebServer

            await WebServer(sight, access, self._context(), drain).run(self._listeners)

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.socket.close()

    def _context(self) -> Callable[[], ssl.SSLContext] | None:
        certificates = self._certificates
        return None if certificates is None else lambda: certificates.current


async def open_watching(settings: Settings, certificates: Certificates | None) -> Watching:
    """Open what the settings ask for, if anything. Raises ServerExtraMissing, AddressInUse, CannotListen."""
    if not settings.http_listen:
        return Watching([], None)
    try:
        import tickwheel_broker.monitoring.web  # noqa: F401
    except ImportError as error:
        raise ServerExtraMissing(f"http_listen is true, and {error.name} is not installed.") from error
    try:
        found = await trio.open_tcp_listeners(settings.http_port, host=settings.http_host, backlog=_BACKLOG)
    except OSError as error:
        raise explain(error, f"{settings.http_host}:{settings.http_port}", _ADVICE) from error
    return Watching(found, certificates)
