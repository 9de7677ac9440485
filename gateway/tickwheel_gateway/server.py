"""`tickwheel gateway`: a process that serves, of its parts put together."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from tickwheel import Client
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
from tickwheel_gateway.lifetime import Ready, Surroundings, live, standard_input
from tickwheel_gateway.tally import Tally
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.transport.listener import Server
from tickwheel_gateway.workers.report import Report, encode_report, lines


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
    reload: Callable[[], None] = _nothing
    """At SIGHUP."""
    now_ms: NowMs = wall_ms
    """The time."""
    surroundings: Surroundings = field(default_factory=Surroundings)
    is_worker: bool = False
    """Standard input is a socket, with a supervisor at the other end."""


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
            config=serving.config,
            identify=service.caller,
            brokers=self._brokers,
            registry=self._registry,
            stopping=self._stopping,
            tally=self.tally,
        )
        self._checks = Checks(self._registry, self._brokers)
        self._renewing = Renewing(serving.config, self._brokers, self._registry)
        self._attempts = Attempts()
        dead_letters = DeadLetters()
        self._receiving = Receiving(
            config=serving.config,
            registry=self._registry,
            filters=Filters(),
            renewing=self._renewing,
            attempts=self._attempts,
            dead_letters=dead_letters,
            stopping=self._stopping,
            now_ms=serving.now_ms,
        )
        handlers = Handlers(
            routes=Routes(serving.config, self._registry),
            presence=Presence(self._registry),
            telemetry=self._telemetry,
            sending=Sending(serving.config, self._registry, now_ms=serving.now_ms),
            deciding=Deciding(),
            recalling=Recalling(),
            receiving=self._receiving,
            settling=Settling(
                config=serving.config,
                acking=Acking(),
                renewing=self._renewing,
                dead_letters=dead_letters,
                now_ms=serving.now_ms,
            ),
        )
        self._server = Server(
            methods=methods(service, handlers),
            limits=serving.limits,
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

    async def look(self) -> None:
        """Brings the figures of this moment into the tally."""
        self.tally.knows(len(self._registry), len(self._brokers))
        self.tally.holds(len(self._receiving), len(self._renewing))

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """Its figures: see `Tally.text`."""
        return self.tally.text(accept)

    def reload(self) -> None:
        """Certificates are loaded anew."""
        self._serving.reload()

    def hurry(self) -> None:
        """What runs is not waited for: it is cancelled."""

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
            for one in (self._telemetry, self._receiving, self._renewing, self._attempts, self._checks):
                nursery.start_soon(one.run)
            await nursery.start(self._accept, listeners, nursery.cancel_scope)
            ready()

    async def _accept(
        self,
        listeners: list[trio.SocketListener],
        everything: trio.CancelScope,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        has_left = False
        try:
            await self._server.serve(listeners, task_status)
            await self._renewing.leave()
            has_left = True
        finally:
            if not has_left:
                self._renewing.warn_of_rest()
        everything.cancel()


async def serve(serving: Serving, listeners: list[trio.SocketListener], ready: Ready) -> None:
    """See `live`. Raises ConfigError, and OSError."""
    gateway = Gateway(serving)
    _calm_collector()

    async def run(begun: Callable[[], None]) -> None:
        if not serving.is_worker:
            await gateway.run(listeners, begun)
            return
        async with standard_input() as stream, trio.open_nursery() as nursery:
            reporting = _Reporting(gateway, stream)
            nursery.start_soon(reporting.run)
            await gateway.run(listeners, lambda: nursery.start_soon(reporting.begin))
            nursery.cancel_scope.cancel()

    await live(gateway, run, serving.surroundings, ready)


def _calm_collector() -> None:
    """Takes what start-up has made out of the garbage collector's sight, and lets it look less often: calls leave few
    circles, and all of them at once end with their connection. Of 50,000 young objects
    it made pauses of 16 to 22 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 100, 100)


def check(serving: Serving) -> None:
    """Raises ConfigError if it cannot be served so."""
    Gateway(serving)


class _Reporting:
    """To the supervisor of a worker. When it is gone, the worker ends."""

    def __init__(self, gateway: Gateway, stream: trio.SocketStream) -> None:
        self._gateway = gateway
        self._stream = stream
        self._sending = trio.Lock()

    async def begin(self) -> None:
        """It serves."""
        await self._tell(0)

    async def run(self) -> None:
        """Until it is cancelled."""
        async for line in lines(self._stream):
            await self._tell(int(line))
        self._gateway.stop()

    async def _tell(self, number: int) -> None:
        await self._gateway.look()
        report = Report(number, self._gateway.is_ready, list(self._gateway.tally.collect()))
        async with self._sending:
            with suppress(trio.BrokenResourceError):
                await self._stream.send_all(encode_report(report))


def _identify(path: Path | None) -> Identify:
    if path is None:
        return lambda _: ""
    return Credentials(path).token_of
