"""What all tasks of a run share: the seed's randomness, the clock, the network, the machine, the oracle, the trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from tickwheel import Client
from tickwheel_broker.config.settings import Settings
from tickwheel_simulation.cancelling import Cancels
from tickwheel_simulation.claims import Claims
from tickwheel_simulation.cluster.machines import Cluster
from tickwheel_simulation.machine import NOWHERE, Machine, installed
from tickwheel_simulation.oracle import Message
from tickwheel_simulation.scene import Scene

if TYPE_CHECKING:
    from tickwheel_simulation.rocketmq.site import Site


_SELDOM = 0.4
"""What clients of RocketMQ do takes longer than what others do, and more of it is to be done between two faults."""


class World(Scene):
    """One run: the scene, with a machine in it, and clients."""

    def __init__(self, seed: int, *, replays: float, is_cluster: bool, has_gateway: bool = False) -> None:
        """`replays`: at how many starts the state is compared with that of a replay. `has_gateway`: part of the clients
        are those of RocketMQ."""
        super().__init__(seed, replays=replays)
        self.cancels = Cancels()
        self.site = self._site() if has_gateway else None
        self.claims = Claims(self)
        self.cluster: Cluster | None = None
        self.machine: Machine | Cluster
        if is_cluster:
            # All clocks go together: one that is set differs by more than is promised.
            self.profile = replace(self.profile, jumps=0.0)
            self.machine = self.cluster = Cluster(self, self.claims, self._settings())
        else:
            self.machine = Machine(
                scene=self,
                claims=self.claims,
                settings=self._settings(),
                disk=self.disks[0],
                clock=self.clock,
            )
        self._last_token = 0

    def _site(self) -> Site:
        # The gateway needs what not every installation has.
        from tickwheel_simulation.rocketmq.site import Site

        site = self.others = Site(self, self.message, self.cancels)
        self.oracle.groups = {**self.oracle.groups, **site.groups}
        rates = (
            "kills",
            "kills_in_calls",
            "power_losses",
            "stops",
            "sync_errors",
            "write_errors",
            "disk_full",
            "cuts",
        )
        self.profile = replace(
            self.profile,
            **{name: getattr(self.profile, name) * _SELDOM for name in rates},
            producers=1,
            consumers_a_group=1,
            pause_s=8.0,
            max_topics=32,
        )
        return site

    def _settings(self) -> Settings:
        profile = self.profile
        checks = {} if self.site is None else self.site.checks
        return Settings(
            **checks,
            data_dir=NOWHERE,
            segment_bytes=5 << 20,
            max_frame_bytes=128 << 10,
            max_body_bytes=64 << 10,
            disk_reserve_bytes=1 << 20,
            max_topics=profile.max_topics,
            max_groups=32,
            ack_wait_ms=profile.ack_wait_ms,
            max_backoff_ms=profile.max_backoff_ms,
            purge_after_ms=profile.purge_after_ms,
            drain_timeout_ms=2_000,
        )

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, what runs on a simulated machine asks that one instead of the real one."""
        with ExitStack() as around:
            around.callback(self.machine.close)
            around.enter_context(installed(self))
            if self.cluster is not None:
                around.enter_context(self.cluster.installed())
            if self.site is not None:
                around.enter_context(self.site.installed())
            yield

    def calm_down(self) -> None:
        """See `Scene`."""
        super().calm_down()
        self.machine.calm_down()
        if self.site is not None:
            self.site.calm_down()

    # -- messages --

    def message(self, topic: str, *, size_bytes: int = 0, **fields: Any) -> Message:
        """A new one, which is about to be sent."""
        self._last_token += 1
        token = f"t{self._last_token}"
        self.count("messages")
        return self.oracle.sending(Message(token=token, topic=topic, size_bytes=size_bytes, **fields))

    def patient_client(self, timeout_s: float) -> Client:
        """A client that waits for so long, to connect and for each answer."""
        return Client(
            "tickwheel://simulated:1",
            name="simulated",
            dial=self.network.dial,
            timeout=timeout_s,
            connect_timeout=timeout_s,
        )

    def client(self, rng: Random) -> Client:
        """A client that reaches the broker through the simulated network."""
        return Client(
            "tickwheel://simulated:1",
            name="simulated",
            dial=self.network.dial,
            timeout=rng.choice((2.0, 10.0, 30.0)),
            connect_timeout=rng.choice((1.0, 20.0)),
            keepalive=rng.choice((4.0, 20.0)),
        )
