"""Accepts connections, watches over their deadlines, and ends them at shutdown."""

from __future__ import annotations

import math
from collections import Counter

import trio

from tickwheel.protocol.errors import (
    HandshakeTimeout,
    TickwheelError,
    TlsRequired,
    TooManyConnections,
    TooManyConnectionsFromAddress,
)
from tickwheel_broker import logs
from tickwheel_broker.connections.connection import Connection, Parts
from tickwheel_broker.connections.deadlines import overdue, watch_interval_s
from tickwheel_broker.net import open_files
from tickwheel_broker.net.listeners import GONE_BEFORE_ACCEPT, OUT_OF_RESOURCES, Listener
from tickwheel_broker.net.transport import Transport
from tickwheel_broker.security.addresses import ip_network_of

_log = logs.get_logger("server")

_RETRY_S = 0.1
_SILENT_S = 2.0
"""When there is no room, who has not logged in for so long makes some."""

_TELL_AGAIN_S = 60.0
_TURN_AWAY_S = 1.0
_MAX_TURNED_AWAY = 64
_FLUSH_S = 1.0
_WATCH_STEP = 256
"""So many connections are looked at before others have their turn: there may be ten thousand."""


class Server:
    """All connections of a broker."""

    def __init__(self, parts: Parts, nursery: trio.Nursery) -> None:
        """`nursery` takes one task a connection."""
        self._parts = parts
        self._nursery = nursery
        self._connections: dict[
            Connection, str
        ] = {}  # with addresses; in order: a run can be repeated exactly
        self._last_number = 0
        self._turned_away = 0
        self._by_address: Counter[str] = Counter()
        self._nobody_left = trio.Event()
        self._silent_until_s = -math.inf
        self._shut_by: TickwheelError | None = None

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
        """Watch the deadlines of all connections."""
        settings = self._parts.settings
        interval_s = watch_interval_s(settings)
        while True:
            await trio.sleep(interval_s)
            for number, connection in enumerate(list(self._connections)):
                if number % _WATCH_STEP == 0:
                    await trio.lowlevel.checkpoint()
                error = overdue(connection, settings, trio.current_time())
                if error is not None and connection in self._connections:  # it may have gone meanwhile
                    connection.end(error)

    def check_logins(self) -> None:
        """Tokens have changed: see `Connection.check_login`."""
        for connection in list(self._connections):
            connection.check_login()

    def shut(self, error: TickwheelError) -> None:
        """Close all connections at once, and turn new ones away with this error, until `reopen`."""
        self._shut_by = error
        for connection in list(self._connections):
            connection.drop(error)

    def reopen(self) -> None:
        """See `shut`."""
        self._shut_by = None

    def go_away(self, reason: str) -> None:
        """Tell all clients that the broker is stopping."""
        for connection in self._connections:
            connection.go_away(reason)

    async def wait_empty(self) -> None:
        """Return when no connection is left."""
        while self._connections:
            self._nobody_left = trio.Event()
            await self._nobody_left.wait()

    async def flush(self) -> None:
        """Give every client a moment to read its last answers."""
        with trio.move_on_after(_FLUSH_S):
            for connection in list(self._connections):
                await connection.outgoing.flush()

    async def _accept_one(self, listener: Listener) -> Transport | None:
        try:
            return await listener.accept()
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                self._tell_of_scarcity(error.strerror)
                self._drop_silent(0.0)
                await trio.sleep(_RETRY_S)
            elif error.errno not in GONE_BEFORE_ACCEPT:
                raise
            return None

    def _welcome(self, transport: Transport) -> None:
        # Those at a Unix socket are not counted: who may open it is decided by the file's permissions.
        address = ip_network_of(transport.peer)
        error = self._refusal_of(address)
        if error is not None and self._drop_silent(_SILENT_S):
            error = self._refusal_of(address)
        if error is None and open_files.are_scarce() and not self._drop_silent(0.0):
            self._tell_of_scarcity("nearly as many files are open as may be")
            self._parts.counters.refusal(0, TooManyConnections())
            transport.close()  # to tell it would take a file for a while
            return
        if error is None:
            self._last_number += 1
            connection = Connection(self._parts, transport, self._last_number)
            self._connections[connection] = address
            self._by_address[address] += 1
            self._parts.counters.connections = len(self._connections)
            self._nursery.start_soon(self._serve, connection)
            return
        frame = self._parts.counters.refusal(0, error)
        if self._turned_away < _MAX_TURNED_AWAY:
            self._turned_away += 1
            self._nursery.start_soon(self._turn_away, transport, error, frame)
        else:
            transport.close()

    def _drop_silent(self, age_s: float) -> bool:
        """Makes room: closes the oldest connection that has not logged in for so long. Whether there was one."""
        now_s = trio.current_time()
        for connection in self._connections:  # the oldest first
            if not connection.is_greeted and now_s - connection.opened_s >= age_s:
                connection.drop(
                    HandshakeTimeout("There are too many connections, and this one did not log in.")
                )
                self._forget(connection)
                return True
        return False

    def _tell_of_scarcity(self, reason: str | None) -> None:
        """Once in a while: it may go on for long."""
        now_s = trio.current_time()
        if now_s >= self._silent_until_s:
            self._silent_until_s = now_s + _TELL_AGAIN_S
            _log.error(
                "cannot accept connections",
                reason=reason,
                advice="Raise the limit of open files (ulimit -n; LimitNOFILE= for systemd), or lower max_connections.",
            )

    def _refusal_of(self, address: str) -> TickwheelError | None:
        """Why one more connection from an address cannot be served."""
        settings = self._parts.settings
        if self._shut_by is not None:
            return self._shut_by
        if len(self._connections) >= settings.max_connections:
            return TooManyConnections()
        if address and self._by_address[address] >= settings.max_connections_per_address:
            return TooManyConnectionsFromAddress()
        return None

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.serve()
        finally:
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        """It does not count any more; it may have been forgotten before it was closed."""
        address = self._connections.pop(connection, None)
        if address is None:
            return
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        self._parts.counters.connections = len(self._connections)
        if not self._connections:
            self._nobody_left.set()

    async def _turn_away(self, transport: Transport, error: TickwheelError, frame: bytes) -> None:
        """Say why before closing; wait for the client to have read it, but not for long."""
        self._parts.access.audit.refused("connection", peer=transport.peer, code=error.code)
        scrap = memoryview(bytearray(1 << 12))
        try:
            with trio.move_on_after(_TURN_AWAY_S):
                await transport.send_some(frame)
                transport.end_sending()
                while await transport.receive_into(scrap):
                    pass
        except (trio.BrokenResourceError, TlsRequired):
            _log.debug("connection lost", peer=transport.peer)
        finally:
            self._turned_away -= 1
            transport.close()
