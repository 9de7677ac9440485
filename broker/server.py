"""Accepts connections, watches over their deadlines, and ends them at shutdown."""

from __future__ import annotations

import errno

import trio

from broker import logs
from broker.connection import Connection
from broker.core import Broker
from broker.listeners import Listener
from broker.transport import Transport
from tickwheel.protocol.errors import TooManyConnections
from tickwheel.protocol.security_errors import TlsRequired

_log = logs.get_logger("server")

_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_GONE_BEFORE_ACCEPT = {errno.ECONNABORTED, errno.EPROTO, errno.EINTR}
_RETRY_S = 0.1
_TURN_AWAY_S = 1.0
_MAX_TURNED_AWAY = 64
_WATCH_S = 1.0
_FLUSH_S = 1.0


class Server:
    """All connections of a broker."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        """`nursery` takes one task a connection."""
        self._broker = broker
        self._nursery = nursery
        self._connections: dict[Connection, None] = {}  # in order: a run can be repeated exactly
        self._last_number = 0
        self._turned_away = 0
        self._nobody_left = trio.Event()

    async def accept(self, listener: Listener) -> None:
        """Accept until cancelled, then close the listener."""
        try:
            while True:
                transport = await self._accept_one(listener)
                if transport is not None:
                    self._welcome(transport)
        finally:
            listener.close()

    async def watch(self) -> None:
        """Watch all deadlines: one look a second is cheaper than a timer for each read and write."""
        settings = self._broker.settings
        shortest_ms = min(settings.handshake_timeout_ms, settings.idle_timeout_ms, settings.send_timeout_ms)
        while True:
            await trio.sleep(min(_WATCH_S, shortest_ms / 4_000))
            for connection in self._connections:
                reason = self._overdue(connection)
                if reason:
                    connection.end(reason)

    def check_logins(self) -> None:
        """Tokens have changed: see `Connection.check_login`."""
        for connection in list(self._connections):
            connection.check_login()

    def go_away(self, reason: str) -> None:
        """Tell all clients that the broker is stopping."""
        for connection in self._connections:
            connection.go_away(reason)

    async def wait_empty(self) -> None:
        """Return when no connection is left."""
        while self._connections:
            self._nobody_left = trio.Event()
            await self._nobody_left.wait()

    def give_leases_back(self) -> int:
        """End all subscriptions and give back what they hold; how many messages."""
        released = 0
        for connection in self._connections:
            for subscription in connection.subscriptions.values():
                released += self._broker.give_back(subscription)
            connection.subscriptions.clear()
        return released

    async def flush(self) -> None:
        """Give every client a moment to read its last answers."""
        with trio.move_on_after(_FLUSH_S):
            for connection in list(self._connections):
                await connection.outgoing.flush()

    async def _accept_one(self, listener: Listener) -> Transport | None:
        try:
            return await listener.accept()
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                _log.error(
                    "cannot accept",
                    reason=error.strerror,
                    advice="Raise the limit of open files (ulimit -n).",
                )
                await trio.sleep(_RETRY_S)
            elif error.errno not in _GONE_BEFORE_ACCEPT:
                raise
            return None

    def _welcome(self, transport: Transport) -> None:
        if len(self._connections) < self._broker.settings.max_connections:
            self._last_number += 1
            connection = Connection(self._broker, transport, self._last_number)
            self._connections[connection] = None
            self._broker.counters.connections = len(self._connections)
            self._nursery.start_soon(self._serve, connection)
        elif self._turned_away < _MAX_TURNED_AWAY:
            self._turned_away += 1
            self._nursery.start_soon(self._turn_away, transport)
        else:
            transport.close()

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.serve()
        finally:
            self._connections.pop(connection, None)
            self._broker.counters.connections = len(self._connections)
            if not self._connections:
                self._nobody_left.set()

    async def _turn_away(self, transport: Transport) -> None:
        """Say why before closing; wait for the client to have read it, but not for long."""
        _log.warning("connection refused", code=TooManyConnections.code, peer=transport.peer)
        scrap = memoryview(bytearray(1 << 12))
        try:
            with trio.move_on_after(_TURN_AWAY_S):
                await transport.send_some(self._broker.counters.refusal(0, TooManyConnections()))
                transport.end_sending()
                while await transport.receive_into(scrap):
                    pass
        except (trio.BrokenResourceError, TlsRequired):
            _log.debug("connection lost", peer=transport.peer)
        finally:
            self._turned_away -= 1
            transport.close()

    def _overdue(self, connection: Connection) -> str:
        settings, now_s = self._broker.settings, trio.current_time()
        if (
            not connection.is_greeted
            and (now_s - connection.opened_s) * 1_000 > settings.handshake_timeout_ms
        ):
            return "no HELLO within handshake_timeout"
        stalled_s = connection.outgoing.stalled_since_s
        if stalled_s is not None and (now_s - stalled_s) * 1_000 > settings.send_timeout_ms:
            return "the client does not read (send_timeout)"
        listening_s = connection.listening_since_s
        if listening_s is not None and (now_s - listening_s) * 1_000 > settings.idle_timeout_ms:
            return "nothing was sent for idle_timeout"
        return ""
