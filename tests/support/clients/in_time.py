"""A real broker whose clients reach it over a network in memory, in simulated time: for tests with `autojump_clock`."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tests.support.native.driver import NOW_MS
from tickwheel import Client
from tickwheel_broker.broker import Broker
from tickwheel_broker.clock.clock import TrioClock
from tickwheel_broker.config.load import from_arguments
from tickwheel_broker.daemon import Running, serve_broker, store_settings
from tickwheel_broker.group_commit import InPlace
from tickwheel_simulation.network import Network, NetworkFaults
from timerlog.store import Store

_NO_FAULTS = NetworkFaults(0.001, 0.0, 0.0, 0.0, 0.0, 0.0)


class InTime:
    """The broker, and the network, whose connections a test may cut."""

    def __init__(self, broker: Broker, network: Network) -> None:
        self.broker = broker
        self.network = network

    def client(self, **options: Any) -> Client:
        """A client of it, not yet connected."""
        return Client("tickwheel://simulated:1", dial=self.network.dial, **options)


@asynccontextmanager
async def broker_in_time(directory: Path, **settings: Any) -> AsyncIterator[InTime]:
    """`settings` as in the configuration file."""
    chosen = from_arguments(data_dir=str(directory), segment_bytes="32MiB", **settings)
    store = Store.open(directory / "data", store_settings(chosen), NOW_MS)
    network = Network(random.Random(1), _NO_FAULTS)
    try:
        async with trio.open_nursery() as nursery:
            broker = Broker(
                settings=chosen, store=store, clock=TrioClock(NOW_MS), runner=InPlace(), nursery=nursery
            )
            listener = network.listen()
            running = Running(urls=[listener.url], settings=chosen)
            nursery.start_soon(serve_broker, broker, [listener], None, running, nursery)
            yield InTime(broker, network)
            nursery.cancel_scope.cancel()
    finally:
        store.close(clean=False)
