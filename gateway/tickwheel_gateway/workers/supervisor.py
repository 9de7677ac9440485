"""Several processes of the gateway on one port. One that ends is started anew; all of them are told, end, and are
watched together.

All answers can be given by any worker: what a client is given by one it can settle at another. Of its own a worker has
telemetry streams, the receipts that it renews, and its connections to the broker.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tickwheel_gateway.lifetime import Ready, Surroundings, live
from tickwheel_gateway.workers.report import joined, labelled
from tickwheel_gateway.workers.worker import Make, Worker


class WorkersDoNotStart(Exception):
    """The first workers ended before all of them served."""


async def supervise(count: int, make: Make, surroundings: Surroundings, ready: Ready) -> None:
    """See `live`. Raises WorkersDoNotStart, and OSError."""
    supervisor = Supervisor(count, make)
    await live(supervisor, supervisor.run, surroundings, ready)
    if supervisor.has_failed:
        raise WorkersDoNotStart


class Supervisor:
    """The process that starts them. It is a service as each of them is one."""

    def __init__(self, count: int, make: Make) -> None:
        self._stopping = trio.Event()
        self._all_serve = trio.Event()
        self.has_failed = False
        """The first workers ended before all of them served."""
        self._workers = [Worker(number, make, self._served, self._ended) for number in range(count)]
        self._registry = CollectorRegistry()
        self._registry.register(_Together(self._workers))

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to."""
        return self._stopping.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether calls are answered: connections only arrive at workers that are there."""
        return not self.is_stopping and any(worker.is_ready for worker in self._workers)

    async def look(self) -> None:
        """Asks all for their figures."""
        async with trio.open_nursery() as nursery:
            for worker in self._workers:
                nursery.start_soon(worker.ask)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """(the text, its content type) of the figures of all, each with the number of its worker."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def reload(self) -> None:
        """Certificates are to be loaded anew."""
        self._tell(signal.SIGHUP)

    def stop(self) -> None:
        """All are told to end, as soon as the calls that run were answered."""
        self._stopping.set()

    def hurry(self) -> None:
        """They are told again: then they wait for nothing."""
        self._tell(signal.SIGTERM)

    async def run(self, ready: Callable[[], None]) -> None:
        """Until it was told to stop, and they have ended. ``ready``: when all of them serve for the first time."""
        async with trio.open_nursery() as announcing:
            announcing.start_soon(self._announce, ready)
            async with trio.open_nursery() as running:
                for worker in self._workers:
                    running.start_soon(worker.process.run, self._stopping.wait)
            announcing.cancel_scope.cancel()

    async def _announce(self, ready: Callable[[], None]) -> None:
        await self._all_serve.wait()
        ready()

    def _served(self) -> None:
        if all(worker.report is not None for worker in self._workers):
            self._all_serve.set()

    def _ended(self) -> None:
        """Once all have served, one that does not start is another matter: it is tried again and again."""
        if not self._all_serve.is_set() and not self.is_stopping:
            self.has_failed = True
            self.stop()

    def _tell(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.process.tell(number)


class _Together(Collector):
    """The figures of all."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        """As Prometheus has it."""
        starts = CounterMetricFamily(
            "tickwheel_gateway_worker_starts", "How often a worker was started", labels=["worker"]
        )
        serving = GaugeMetricFamily(
            "tickwheel_gateway_worker_ready", "1: the worker answers calls", labels=["worker"]
        )
        for worker in self._workers:
            starts.add_metric([str(worker.number)], worker.process.starts)
            serving.add_metric([str(worker.number)], worker.is_ready)
        yield from (starts, serving)
        yield from joined(
            metric
            for worker in self._workers
            if worker.report is not None
            for metric in labelled(worker.report.metrics, worker=str(worker.number))
        )
