"""A gateway that is killed, stopped in order, and started again. Its clients lose their connections then."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import trio
from anyio.abc import ByteStream

from tickwheel import Client
from tickwheel.client.url import Address
from tickwheel_gateway.server import Gateway, Serving
from tickwheel_gateway.transport.limits import Limits
from tickwheel_gateway.wire import handles
from tickwheel_simulation.network import ClientStream, Connection, MemoryListener, Network
from tickwheel_simulation.oracle import Violation
from tickwheel_simulation.rocketmq.channel import ServerEnd
from tickwheel_simulation.rocketmq.profile import Profile
from tickwheel_simulation.scene import Scene

_STOP_S = 5.0


class Defects(logging.Handler):
    """What a gateway writes into its log as an error is a defect: nothing that is done to it excuses one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first: logging.LogRecord | None = None
        self._found = trio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.first is None:
            self.first = record
            self._found.set()

    async def watch(self) -> None:
        """Until there is one. Raises Violation."""
        await self._found.wait()
        assert self.first is not None
        error = self.first.exc_info[1] if self.first.exc_info else None
        told = "" if error is None else f" ({''.join(traceback.format_exception(error)).strip()})"
        raise Violation(f"the gateway has a defect: {self.first.getMessage()}{told}")


@contextmanager
def installed(defects: Defects) -> Iterator[None]:
    """Inside, gateways number what they hand out as new processes do, and their errors are seen."""
    logger = logging.getLogger("tickwheel.gateway")
    level = logger.level
    logger.setLevel(logging.ERROR)
    logger.addHandler(defects)
    try:
        with mock.patch.object(handles.numbers, "next", 1):
            yield
    finally:
        logger.removeHandler(defects)
        logger.setLevel(level)


class GatewayProcess:
    """Runs one gateway at a time."""

    def __init__(self, scene: Scene, profile: Profile, network: Network, number: int) -> None:
        """`network`: between it and its clients."""
        self._scene = scene
        self._profile = profile
        self._network = network
        self._rng: random.Random = scene.random(f"rocketmq/gateway/{number}")
        self.name = f"gateway-{number}"
        self.is_wanted = False
        self.life = 0
        """How often it was started."""
        self._is_wanted_again = trio.Event()
        self._scope: trio.CancelScope | None = None
        self._gateway: Gateway | None = None
        self._listener: MemoryListener | None = None
        self._links: list[Connection] = []
        """To the broker."""
        self._is_dead = True

    @property
    def links(self) -> tuple[object, ...]:
        """What changes whenever it reaches the broker another way."""
        return (self.life, *(link for link in self._links if not link.is_over))

    async def run(self) -> None:
        """Starts it whenever it is wanted and does not run."""
        while True:
            while not self.is_wanted:
                self._is_wanted_again = trio.Event()
                await self._is_wanted_again.wait()
            await self._live()
            await trio.sleep(self._rng.random() * 2)

    async def start(self) -> None:
        """Returns when it runs."""
        self.is_wanted = True
        self._is_wanted_again.set()
        while self._is_dead or self._gateway is None:
            await trio.sleep(0.1)

    async def stop(self) -> None:
        """In order; returns when it has ended."""
        self.is_wanted = False
        if self._gateway is not None and not self._is_dead:
            self._scene.note("stop", gateway=self.name)
            self._gateway.stop()
            if self._listener is not None:
                self._listener.close()
        while self._gateway is not None:
            await trio.sleep(0.1)

    def kill(self) -> None:
        """Its memory is gone, its connections break."""
        if self._is_dead or self._scope is None:
            return
        self._scene.note("kill", gateway=self.name)
        self._scene.count("gateways killed")
        self._is_dead = True
        self._disconnect()
        self._scope.cancel()

    async def _live(self) -> None:
        self.life += 1
        self._is_dead = False
        self._links = []
        serving = Serving(
            open_client=self._client,
            config=self._profile.config(),
            limits=Limits(stop_s=_STOP_S),
            now_ms=self._scene.clock.now_ms,
        )
        self._gateway = gateway = Gateway(serving)
        listener = self._listener = self._network.listen()
        self._scene.note("started", gateway=self.name)
        try:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._accept, gateway, listener, nursery)
                    await gateway.run([], lambda: None)
                    nursery.cancel_scope.cancel()
        finally:
            self._is_dead = True
            self._disconnect()
            self._gateway = self._scope = self._listener = None
            self._scene.count("gateways started")

    async def _accept(self, gateway: Gateway, listener: MemoryListener, nursery: trio.Nursery) -> None:
        while True:
            nursery.start_soon(gateway.serve_stream, ServerEnd(await listener.accept()))

    def _disconnect(self) -> None:
        if self._listener is not None:
            self._network.gone(self._listener)
        for link in self._links:
            link.cut()

    def _client(self, _token: str) -> Client:
        return Client("tickwheel://simulated:1", name="gateway", dial=self._dial)

    async def _dial(self, _address: Address) -> ByteStream:
        if self._is_dead:
            raise ConnectionRefusedError("it has ended")
        network = self._scene.network
        connection = await network.connect()
        self._links = [*(link for link in self._links if not link.is_over), connection]
        return ClientStream(connection, network)
