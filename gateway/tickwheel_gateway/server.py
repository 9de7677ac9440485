"""`tickwheel gateway`: its parts put together, the signals that end it, and who watches."""

from __future__ import annotations

import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import anyio
import trio
from anyio.abc import SocketAttribute

from tickwheel import Client
from tickwheel.sharing.listener import Listener
from tickwheel_gateway.calls.deciding import Deciding
from tickwheel_gateway.calls.presence import Presence
from tickwheel_gateway.calls.recalling import Recalling
from tickwheel_gateway.calls.receiving import Receiving
from tickwheel_gateway.calls.routes import Routes
from tickwheel_gateway.calls.sending import Sending
from tickwheel_gateway.calls.service import Identify, Service
from tickwheel_gateway.calls.settling import Settling
from tickwheel_gateway.calls.table import Handlers, methods
from tickwheel_gateway.calls.telemetry import Telemetry
from tickwheel_gateway.clients.brokers import Brokers
from tickwheel_gateway.clients.credentials import Credentials
from tickwheel_gateway.clients.registry import Registry
from tickwheel_gateway.config import Config
from tickwheel_gateway.delivery.acking import Acking
from tickwheel_gateway.delivery.attempts import Attempts
from tickwheel_gateway.delivery.checks import Checks
from tickwheel_gateway.delivery.clock import NowMs, wall_ms
from tickwheel_gateway.delivery.dead_letters import DeadLetters
from tickwheel_gateway.delivery.renewing import Renewing
from tickwheel_gateway.filters.expressions import Filters
from tickwheel_gateway.tally import Tally
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.listener import Server

Place: TypeAlias = tuple[str, int]
"""Host and port."""
_INPUT_BYTES: Final = 4_096

_log = logging.getLogger("tickwheel.gateway")


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What who starts it has decided."""

    open_client: Callable[[str], Client]
    """Makes the client of a token; of an empty one: that of the gateway itself."""
    config: Config = field(default_factory=Config)
    limits: Limits = field(default_factory=Limits)
    credentials: Path | None = None
    """None: all who come are the gateway itself."""
    tls: Callable[[], ssl.SSLContext] | None = None
    """For a handshake that begins now."""
    is_plain_allowed: bool = True
    """Where there is TLS."""
    watched_at: Place | None = None
    """Where to listen for who watches."""
    ends_with_stdin: bool = False
    """When standard input ends, so does the gateway: who started it is gone."""
    reload: Callable[[], None] = _nothing
    """At SIGHUP."""
    now_ms: NowMs = wall_ms
    """The time."""


class Gateway:
    """A process of it."""

    def __init__(self, serving: Serving) -> None:
        """Raises ConfigError."""
        self._serving = serving
        self._stopping = trio.Event()
        self.tally = Tally()
        self._registry = Registry()
        self._brokers = Brokers(serving.open_client)
        service = Service(_identify(serving.credentials), self._brokers, self._registry, self.tally)
        self._telemetry = Telemetry(
            serving.config, service.caller, self._brokers, self._registry, self._stopping, self.tally
        )
        self._checks = Checks(self._registry, self._brokers)
        self._renewing = Renewing(serving.config, self._brokers, self._registry)
        dead_letters = DeadLetters()
        self._receiving = Receiving(
            serving.config,
            self._registry,
            Filters(),
            self._renewing,
            Attempts(),
            dead_letters,
            self._stopping,
            serving.now_ms,
        )
        handlers = Handlers(
            Routes(serving.config),
            Presence(self._registry),
            self._telemetry,
            Sending(serving.config, self._registry, now_ms=serving.now_ms),
            Deciding(),
            Recalling(),
            self._receiving,
            Settling(serving.config, Acking(), self._renewing, dead_letters, serving.now_ms),
        )
        self._server = Server(
            methods(service, handlers),
            serving.limits,
            tls=serving.tls,
            is_plain_allowed=serving.is_plain_allowed,
        )
        self.tally.watch(self._server.tally)

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to."""
        return self._stopping.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether calls are answered."""
        return not self.is_stopping and self._brokers.is_connected

    def look(self) -> None:
        """Brings the figures of this moment into the tally."""
        self.tally.knows(len(self._registry), len(self._brokers))
        self.tally.holds(len(self._receiving), len(self._renewing))

    def stop(self) -> None:
        """No more connections; what only waits ends, and what is done is finished."""
        self._stopping.set()
        self._server.stop()

    async def serve_stream(self, stream: trio.abc.HalfCloseableStream) -> None:
        """One connection that came in another way than over a listener."""
        await self._server.serve_stream(stream)

    async def run(self, listeners: list[trio.SocketListener], ready: Callable[[], None]) -> None:
        """Until it was told to stop, and its calls have ended. Closes the listeners."""
        async with self._brokers.running(), trio.open_nursery() as nursery:
            nursery.start_soon(self._registry.look)
            for one in (self._telemetry, self._receiving, self._renewing, self._checks):
                nursery.start_soon(one.run)
            await nursery.start(self._accept, listeners, nursery.cancel_scope)
            ready()

    async def _accept(
        self,
        listeners: list[trio.SocketListener],
        everything: trio.CancelScope,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        await self._server.serve(listeners, task_status)
        await self._renewing.leave()
        everything.cancel()


async def serve(
    serving: Serving, listeners: list[trio.SocketListener], ready: Callable[[Place | None], None]
) -> None:
    """Until SIGTERM or Ctrl-C; a second one does not wait for what is on its way. ``ready`` is told where who watches
    may ask. Raises ConfigError, and OSError if it cannot listen for them."""
    gateway = Gateway(serving)
    failed: OSError | None = None
    async with trio.open_nursery() as nursery:
        try:
            place = None if serving.watched_at is None else await _watch(gateway, serving.watched_at, nursery)
            await nursery.start(_end_by_signal, gateway, serving.reload, nursery.cancel_scope)
            if serving.ends_with_stdin:
                nursery.start_soon(_end_with_stdin, gateway)
            await gateway.run(listeners, lambda: ready(place))
        except OSError as error:
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed


def _identify(path: Path | None) -> Identify:
    if path is None:
        return lambda _: ""
    return Credentials(path).token_of


async def _watch(gateway: Gateway, place: Place, nursery: trio.Nursery) -> Place:
    host, port = place
    opened = await anyio.create_tcp_listener(local_host=host, local_port=port)
    watching = Listener(gateway.tally, lambda: gateway.is_ready, gateway.look)
    for one in opened.listeners:
        nursery.start_soon(watching.listen, one)
    return host, int(opened.listeners[0].extra(SocketAttribute.local_address)[1])


async def _end_by_signal(
    gateway: Gateway,
    reload: Callable[[], None],
    everything: trio.CancelScope,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGHUP:
                reload()
            elif gateway.is_stopping:
                everything.cancel()
                return
            else:
                _log.info("ends as soon as the calls that run were answered")
                gateway.stop()


async def _end_with_stdin(gateway: Gateway) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        while await stream.receive_some(_INPUT_BYTES):
            pass
    gateway.stop()
