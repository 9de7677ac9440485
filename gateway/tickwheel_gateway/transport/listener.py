"""The server: where connections come from, how many there may be, and how all of them end."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Final

import trio

from tickwheel_gateway.transport.call import AnyMethod, Ends
from tickwheel_gateway.transport.connection import Connection
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.opening import NotWelcome, open_stream
from tickwheel_gateway.transport.stacks import choose
from tickwheel_gateway.transport.tally import Tally

_LOOK_S: Final = 1.0
_SPARE_FILES: Final = 16
"""Descriptors that connections leave to others: without one the broker cannot be reached again."""
_BACKLOG: Final = 1_024
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    # While something is unconfirmed there are no probes, and the system tries for a quarter of an hour.
    ("TCP_USER_TIMEOUT", 60_000),
)

_log = logging.getLogger("tickwheel.gateway.transport")


class Server:
    """Serves methods to any number of connections."""

    def __init__(
        self,
        *,
        methods: Mapping[str, AnyMethod],
        limits: Limits | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        is_plain_allowed: bool = True,
        stack: str = "",
    ) -> None:
        """``methods``: by whole path. ``tls``: the context for a handshake that begins now. ``stack``: the library for
        HTTP/2, by name; else the best that is there."""
        self._methods = methods
        self._limits = limits or Limits()
        self._stack = choose(stack, methods, self._limits)
        self._tls = tls
        self._is_plain_allowed = is_plain_allowed
        self._connections: dict[Connection, None] = {}
        self._all_gone = trio.Event()
        self._accepting = trio.CancelScope()
        self.stopping = trio.Event()
        """Set by `stop`: what only waits, as a long poll, ends itself then."""
        self.tally = Tally(self._stack.name)

    async def serve(
        self,
        listeners: list[trio.SocketListener],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Until `stop`, and until calls that ran then are finished, or their time is over. Closes the listeners."""
        _log.info("HTTP/2 is served by %s", self._stack.name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            with self._accepting:
                await self._accept(listeners, nursery, task_status)
            for connection in self._connections:
                connection.leave()
            with trio.move_on_after(self._limits.stop_s):
                await self._wait_all_gone()
            for connection in self._connections:
                connection.break_off()
            with trio.move_on_after(2 * self._limits.farewell_s):
                await self._wait_all_gone()
            nursery.cancel_scope.cancel()

    def stop(self) -> None:
        """No more connections, and those that there are are told to go."""
        self.stopping.set()
        self._accepting.cancel()

    async def serve_stream(self, stream: trio.abc.HalfCloseableStream) -> None:
        """One connection."""
        is_full = self.tally.connections >= self._limits.connections or _takes_last_files(stream)
        if is_full or self.stopping.is_set():
            self.tally.refused_connections += 1
            await trio.aclose_forcefully(stream)
            return
        self.tally.connections += 1
        self.tally.accepted += 1
        try:
            await self._converse(stream)
        except Exception:
            _log.exception("a connection failed")
        finally:
            self.tally.connections -= 1
            await trio.aclose_forcefully(stream)

    async def _accept(
        self,
        listeners: list[trio.SocketListener],
        nursery: trio.Nursery,
        task_status: trio.TaskStatus[None],
    ) -> None:
        async with contextlib.AsyncExitStack() as opened:
            for listener in listeners:
                await opened.enter_async_context(listener)
            task_status.started()
            if listeners:
                await trio.serve_listeners(self.serve_stream, listeners, handler_nursery=nursery)
            await trio.sleep_forever()  # whoever has other streams gives them to `serve_stream`

    async def _converse(self, stream: trio.abc.HalfCloseableStream) -> None:
        connection = await self._open(stream)
        if connection is None:
            return
        self._connections[connection] = None
        try:
            if self.stopping.is_set():
                connection.leave()
            await connection.run()
        finally:
            del self._connections[connection]
            if not self._connections:
                self._all_gone.set()

    async def _open(self, stream: trio.abc.HalfCloseableStream) -> Connection | None:
        """None: it did not begin."""
        peer, local = _names(stream)
        opened = None
        try:
            with trio.move_on_after(self._limits.handshake_s):
                opened = await open_stream(stream, self._tls, is_plain_allowed=self._is_plain_allowed)
        except NotWelcome as reason:
            _log.info("a connection is refused: %s, %s", peer, reason)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        if opened is None:
            self.tally.failed_handshakes += 1
            return None
        return Connection(
            opened=opened,
            methods=self._methods,
            limits=self._limits,
            tally=self.tally,
            ends=Ends(peer, local, is_tls=opened.is_tls),
            stack=self._stack,
        )

    async def _wait_all_gone(self) -> None:
        while self._connections:
            self._all_gone = trio.Event()
            await self._all_gone.wait()

    async def _look(self) -> None:
        """One task sees to all connections: thousands of idle ones cost next to nothing."""
        while True:
            await trio.sleep(_LOOK_S)
            now = trio.current_time()
            for connection in list(self._connections):
                connection.look(now)


async def open_listeners(host: str, port: int, *, is_shared: bool = False) -> list[trio.SocketListener]:
    """Listening sockets. ``is_shared``: other processes may listen on the same port. Raises OSError."""
    if not is_shared:
        return await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    found = []
    with contextlib.ExitStack() as opened:
        for family, kind, protocol, _, address in await trio.socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            sock = trio.socket.socket(family, kind, protocol)
            opened.callback(sock.close)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            await sock.bind(address)
            sock.listen(_BACKLOG)
            found.append(trio.SocketListener(sock))
        opened.pop_all()
    return found


def _takes_last_files(stream: object) -> bool:
    """Whether few descriptors are left: the system always gives the lowest number that is free."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        isinstance(stream, trio.SocketStream)
        and most != resource.RLIM_INFINITY
        and stream.socket.fileno() >= most - _SPARE_FILES
    )


def _names(stream: object) -> tuple[str, tuple[str, int]]:
    """Who is there, and where it came to. Peers that vanished without a word are found by probes."""
    if not isinstance(stream, trio.SocketStream):
        return "", ("", 0)
    with contextlib.suppress(OSError):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    try:
        peer, local = stream.socket.getpeername(), stream.socket.getsockname()
    except OSError:
        return "gone", ("", 0)
    return f"{peer[0]}:{peer[1]}", (local[0], local[1])
