"""What a node says that does not serve: to each HELLO, which node does.

It takes the place of `connections.server` while another node owns the log. Clients go on at once to the URL that they
are told, or to the next one of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from tickwheel.protocol.bodies.requests import Hello
from tickwheel.protocol.errors import (
    ConnectionDenied,
    HandshakeTimeout,
    NotOwner,
    RemoteProtocolError,
    TickwheelError,
    TlsRequired,
)
from tickwheel.protocol.limits import MAX_HANDSHAKE_BYTES
from tickwheel.protocol.machine import Requested, ServerMachine
from tickwheel_broker import logs
from tickwheel_broker.counters import Counters
from tickwheel_broker.net import open_files
from tickwheel_broker.net.listeners import GONE_BEFORE_ACCEPT, OUT_OF_RESOURCES, Listener
from tickwheel_broker.net.transport import Transport
from tickwheel_broker.security.access import Access, real_peer

_log = logs.get_logger("referral")

MAX_CONNECTIONS = 1_000
"""So many are answered at a time; beyond that they are closed at once, which clients take for `not now`."""

_RETRY_S = 0.1
_LINGER_S = 1.0


class Referral:
    """Answers until it is cancelled. The listeners stay open: the node may serve on them next."""

    def __init__(
        self, owner_url: Callable[[], str], access: Access, counters: Counters, handshake_timeout_s: float
    ) -> None:
        """`owner_url`: where the node is that serves, as far as it is known; see `KnownOwner`."""
        self._owner_url, self._access, self._counters = owner_url, access, counters
        self._handshake_timeout_s = handshake_timeout_s
        self._connections = 0

    async def run(self, listeners: list[Listener]) -> None:
        """Answer whoever connects to these."""
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept, listener, nursery)

    async def _accept(self, listener: Listener, nursery: trio.Nursery) -> None:
        while True:
            try:
                transport = await listener.accept()
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    _log.error("cannot accept connections", reason=error.strerror)
                    await trio.sleep(_RETRY_S)
                elif error.errno not in GONE_BEFORE_ACCEPT:
                    raise
                continue
            if self._connections >= MAX_CONNECTIONS or open_files.are_scarce():
                transport.close()
                continue
            self._connections += 1
            nursery.start_soon(self._answer, transport)

    async def _answer(self, transport: Transport) -> None:
        try:
            with trio.move_on_after(self._handshake_timeout_s):
                correlation, error = await self._refuse(transport)
                await _tell(transport, self._counters.refusal(correlation, error))
        except (trio.BrokenResourceError, TlsRequired) as error:
            _log.debug("connection lost", peer=transport.peer, reason=str(error))
        finally:
            self._connections -= 1
            transport.close()

    async def _refuse(self, transport: Transport) -> tuple[int, TickwheelError]:
        """What to answer, and to which request. Who may not log in is not told where the others are."""
        machine = ServerMachine(MAX_HANDSHAKE_BYTES)
        buffer = memoryview(bytearray(1 << 12))
        try:
            while count_bytes := await transport.receive_into(buffer):
                for event in machine.receive_data(buffer[:count_bytes]):
                    assert isinstance(event, Requested)
                    assert isinstance(event.request, Hello)
                    await self._access.log_in(event.request.token, real_peer(event.request.peer, transport))
                    return event.correlation, NotOwner.naming(self._owner_url())
        except (RemoteProtocolError, ConnectionDenied) as error:
            return 0, error
        return 0, HandshakeTimeout("The connection ended before its HELLO.")


async def _tell(transport: Transport, frame: bytes) -> None:
    """Write, and wait until the other side has read it and closes, but not for long."""
    left = memoryview(frame)
    while left:
        left = left[await transport.send_some(left) :]
    transport.end_sending()
    scrap = memoryview(bytearray(1 << 12))
    with trio.move_on_after(_LINGER_S):
        while await transport.receive_into(scrap):
            pass
