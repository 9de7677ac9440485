"""Gateways and clients of RocketMQ in one world, and what goes wrong between them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import trio

from tickwheel.protocol.limits import PREPARED_SUFFIX
from tickwheel_simulation.cancelling import Cancels
from tickwheel_simulation.network import Network
from tickwheel_simulation.oracle import Lease, Message
from tickwheel_simulation.rocketmq.consumers import all_consumers
from tickwheel_simulation.rocketmq.process import Defects, GatewayProcess, installed
from tickwheel_simulation.rocketmq.producers import Producer
from tickwheel_simulation.rocketmq.profile import (
    CHECK_AFTER_MS,
    CHECK_ATTEMPTS,
    CHECK_INTERVAL_MS,
    GROUPS,
    Profile,
    all_groups,
    dead_letters_of,
)
from tickwheel_simulation.rocketmq.promises import Promises
from tickwheel_simulation.scene import CALM, Scene

_RATE_S: Final = 10.0


class Site:
    """See `client.Place`."""

    def __init__(self, scene: Scene, make: Callable[..., Message], cancels: Cancels) -> None:
        """`make`: makes a message."""
        self.scene = scene
        self.cancels = cancels
        self.profile = Profile.draw(scene.random("rocketmq/profile"))
        self.promises = Promises(scene, self.profile)
        self.network = Network(scene.random("rocketmq/network"), self.profile.network)
        self.processes = [
            GatewayProcess(scene, self.profile, self.network, number)
            for number in range(self.profile.gateways)
        ]
        self.groups: Mapping[str, tuple[str, ...]] = GROUPS
        self.prepared = frozenset(topic + PREPARED_SUFFIX for topic in GROUPS)
        """Topics of prepared messages that are asked after."""
        self.checks: dict[str, Any] = {
            "check_after_ms": CHECK_AFTER_MS,
            "check_interval_ms": CHECK_INTERVAL_MS,
            "check_attempts": CHECK_ATTEMPTS,
        }
        """Settings of the broker."""
        self._make = make
        self._defects = Defects()
        self._rng: random.Random = scene.random("rocketmq/faults")
        self._producers = [Producer(self, number) for number in range(self.profile.producers)]
        self._dead = {dead_letters_of(group) for _, group in all_groups()}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, gateways can run."""
        with installed(self._defects):
            yield

    def message(self, topic: str, size_bytes: int, **fields: Any) -> Message:
        """See `Place`."""
        return self._make(topic, size_bytes=size_bytes, **fields)

    def body_of(self, message: Message) -> bytes:
        """See `Place`."""
        return self.scene.body_of(message)

    # -- what the broker gives out --

    def is_dead_letter(self, topic: str) -> bool:
        """See `Others`."""
        return topic in self._dead

    def dead_letter(self, topic: str, token: str, message_id: int) -> None:
        """See `Others`."""
        self.promises.dead_letter(topic, token, message_id)

    def leased(self, lease: Lease, attempt: int) -> None:
        """See `Others`."""
        if lease.topic in GROUPS:
            self.promises.leased(lease, attempt)

    # -- life --

    async def run(self) -> None:
        """Runs the gateways that are wanted."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._defects.watch)
            for process in self.processes:
                nursery.start_soon(process.run)

    async def day(self) -> None:
        """All clients are there, and everything goes wrong."""
        for process in self.processes:
            await process.start()
        async with trio.open_nursery() as nursery:
            for client in (*self._producers, *all_consumers(self, self.profile.consumers_a_group)):
                nursery.start_soon(client.run)
            for rate, fault in (
                (self.profile.kills, self._kill),
                (self.profile.stops, self._stop),
                (self.profile.cuts, self._cut),
            ):
                if rate:
                    nursery.start_soon(self._again_and_again, rate, fault)

    async def night(self) -> None:
        """The gateways end, each in its way."""
        for process in self.processes:
            if self._rng.random() < 0.5:
                process.is_wanted = False
                process.kill()
            await process.stop()

    def calm_down(self) -> None:
        """No more faults."""
        self.network.faults = CALM

    async def heal(self) -> None:
        """What is left is consumed, and who is asked answers."""
        for process in self.processes:
            await process.start()
        async with trio.open_nursery() as nursery:
            for client in (*self._producers, *all_consumers(self, 1)):
                nursery.start_soon(client.run)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left of what only clients can do."""
        return not self.promises.undecided()

    def check_at_end(self) -> None:
        """When all has settled. Raises Violation."""
        self.promises.check_decided()
        self.promises.check_dead()

    # -- faults --

    async def _again_and_again(self, rate: float, fault: Callable[[], Awaitable[None]]) -> None:
        while True:
            await trio.sleep(self._rng.expovariate(rate / _RATE_S))
            await fault()

    async def _kill(self) -> None:
        self._rng.choice(self.processes).kill()

    async def _stop(self) -> None:
        process = self._rng.choice(self.processes)
        await process.stop()
        await trio.sleep(self._rng.random() * 5)
        await process.start()

    async def _cut(self) -> None:
        if self.network.cut_one():
            self.scene.trace("cut of a client of rocketmq")
