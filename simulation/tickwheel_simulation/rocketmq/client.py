"""What all clients do, as the official ones: a connection that is opened again when it is gone, settings over a stream
of telemetry, heartbeats, and calls that are tried again."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol

import trio

from tickwheel_gateway.wire import schema
from tickwheel_gateway.wire.codes import Code
from tickwheel_simulation.cancelling import Cancels
from tickwheel_simulation.network import Network
from tickwheel_simulation.oracle import Message, Violation
from tickwheel_simulation.rocketmq.channel import CallFailed, Channel, chance
from tickwheel_simulation.rocketmq.process import GatewayProcess
from tickwheel_simulation.rocketmq.profile import Profile
from tickwheel_simulation.rocketmq.promises import Promises
from tickwheel_simulation.scene import Scene

HEARTBEAT_S: Final = 10.0
_SETTINGS_S: Final = 6.0
_UNCERTAIN: Final = frozenset({Code.INTERNAL_SERVER_ERROR, Code.PROXY_TIMEOUT})
"""What was asked for may have been done."""
_DISK_FULL: Final = "disk_full"


class Place(Protocol):
    """Where clients are."""

    scene: Scene
    profile: Profile
    promises: Promises
    network: Network
    cancels: Cancels
    processes: list[GatewayProcess]

    def message(self, topic: str, size_bytes: int, **fields: Any) -> Message:
        """A new one, which is about to be sent."""

    def body_of(self, message: Message) -> bytes:
        """What is sent of it."""


class Vanished(Exception):
    """The program of a client ends, without a word or with one."""


class RocketClient:
    """One client, which may vanish and come back with the same id."""

    client_type = schema.PRODUCER

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self.scene = place.scene
        self.promises = place.promises
        self.name = name
        self.rng: random.Random = place.scene.random(f"rocketmq/{name}")
        self._wire: random.Random = place.scene.random(f"rocketmq/wire/{name}")
        self._channel: Channel | None = None
        self._dialling = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self._timeout_s = 3.0
        self.heard_s = -1.0
        """When a call was answered last."""
        self.breaks = 0
        """How often its connection has gone."""
        self.says_goodbye = False

    async def run(self) -> None:
        """One life after the other, until cancelled."""
        while True:
            self._timeout_s = self.rng.choice((1.5, 3.0, 10.0))
            self.says_goodbye = self.rng.random() < self.place.profile.says_goodbye
            try:
                async with trio.open_nursery() as self._nursery:
                    for work in (self._telemetry, self._beat, self.live):
                        self._nursery.start_soon(work)
            except* Vanished:
                self.scene.count("clients vanished")
            finally:
                self.vanished()
                if self._channel is not None:
                    self._channel.break_off()
                self._channel = None
                self.breaks += 1
            await trio.sleep(self.rng.random() * 8)

    async def live(self) -> None:
        """What it is for; raises Vanished in the end."""
        raise NotImplementedError

    def vanished(self) -> None:
        """What it had is gone."""

    async def perhaps_vanish(self) -> None:
        """Sometimes a program ends. Raises Vanished."""
        if self.scene.is_calm or self.rng.random() >= self.place.profile.vanish:
            return
        if self.says_goodbye:
            request = schema.NotifyClientTerminationRequest()
            self.fill_termination(request)
            self.vanished()
            with suppress(CallFailed):
                await self.ask("NotifyClientTermination", request, schema.NotifyClientTerminationResponse)
        self.scene.trace(self.name, "vanishes", self.says_goodbye)
        raise Vanished

    def fill_termination(self, request: Any) -> None:
        """Who goes."""

    # -- the connection --

    async def channel(self) -> Channel:
        """Raises CallFailed."""
        async with self._dialling:
            channel = self._channel
            if channel is not None and not (channel.is_over or channel.is_leaving):
                return channel
            try:
                connection = await self.place.network.connect()
            except OSError as error:
                raise CallFailed("no gateway") from error
            headers = {"x-mq-client-id": self.name, "x-mq-language": "JAVA", "x-mq-client-version": "5.2.0"}
            loses = chance(self._wire, lambda: 0.0 if self.scene.is_calm else self.place.profile.lost_answers)
            self._channel = channel = Channel(connection, headers, loses)
            self.breaks += 1
            assert self._nursery is not None
            self._nursery.start_soon(channel.run)
            return channel

    async def call(self, name: str, request: Any, timeout_s: float | None = None) -> list[bytes]:
        """All messages of an answer. Raises CallFailed."""
        channel = await self.channel()
        found: list[bytes] = []

        async def call() -> None:
            found.extend(await channel.call(name, request.SerializeToString(), timeout_s or self._timeout_s))

        cancels = self.place.profile.cancels
        if not self.scene.is_calm and cancels and self.rng.random() < cancels:
            if await self.place.cancels.run(self.rng, call):
                self.scene.count("calls taken back")
                raise CallFailed("it was taken back")
        else:
            await call()
        self.heard_s = trio.current_time()
        return found

    async def ask(self, name: str, request: Any, response_class: Any, timeout_s: float | None = None) -> Any:
        """The answer to a unary call. Raises CallFailed."""
        since_s = trio.current_time()
        found = await self.call(name, request, timeout_s)
        if len(found) != 1:
            raise Violation(f"{name} is answered with {len(found)} messages")
        response = response_class.FromString(found[0])
        self.check(name, response.status, since_s)
        return response

    def check(self, name: str, status: Any, since_s: float) -> None:
        """Some codes are excused by what was done, others never are. Raises Violation."""
        code, text = status.code, status.message
        self.scene.trace(self.name, name, code)
        if code == Code.INTERNAL_ERROR:
            raise Violation(f"{name} is answered with an internal error: {text}")
        if (
            code == Code.INTERNAL_SERVER_ERROR
            and text.startswith(_DISK_FULL)
            and not self.scene.was_full(since_s)
        ):
            raise Violation(f"{name} is refused as disk_full, and the disk was not full: {text}")

    @staticmethod
    def is_uncertain(status: Any) -> bool:
        """Whether it may have been done all the same."""
        return status.code in _UNCERTAIN

    async def retried(self, attempts: int, work: Callable[[], Awaitable[Any]]) -> Any:
        """The first result of `work` that is not None, of so many attempts; a call that fails has none."""
        for attempt in range(attempts):
            try:
                found = await work()
            except CallFailed:
                found = None
            if found is not None:
                return found
            await trio.sleep(self._wire.random() * (0.1 + attempt))
        return None

    # -- what is always there --

    async def _beat(self) -> None:
        while True:
            await trio.sleep(HEARTBEAT_S)
            request = schema.HeartbeatRequest(client_type=self.client_type)
            try:
                await self.ask("Heartbeat", request, schema.HeartbeatResponse)
            except CallFailed:
                continue

    async def _telemetry(self) -> None:
        while True:
            with suppress(CallFailed):
                await self._converse(await self.channel())
            await trio.sleep(0.5 + self._wire.random())

    async def _converse(self, channel: Channel) -> None:
        async with channel.open("Telemetry") as (stream, send):
            command = schema.TelemetryCommand()
            command.settings.client_type = self.client_type
            schema.set_milliseconds(command.settings.request_timeout, round(self._timeout_s * 1_000))
            self.fill_settings(command.settings)
            await send(command.SerializeToString(), False)
            with trio.move_on_after(_SETTINGS_S):
                while not stream.messages and not stream.is_over:
                    await stream.wait()
            if not stream.messages:
                return
            self._check_settings(schema.TelemetryCommand.FromString(stream.messages.pop(0)))
            while not stream.is_over:
                while stream.messages:
                    self.told(schema.TelemetryCommand.FromString(stream.messages.pop(0)))
                await stream.wait()

    def _check_settings(self, command: Any) -> None:
        if command.WhichOneof("command") != "settings":
            self.check("Telemetry", command.status, trio.current_time())
            return
        self.heard_s = trio.current_time()
        self.has_settings(command.settings)

    def has_settings(self, settings: Any) -> None:
        """Its own and those of the gateway."""

    def fill_settings(self, settings: Any) -> None:
        """What it says of itself."""
        raise NotImplementedError

    def told(self, command: Any) -> None:
        """The gateway says something."""

    def start(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Beside what else it does."""
        assert self._nursery is not None
        self._nursery.start_soon(work, *args)
