"""What Prometheus scrapes of `tickwheel gateway`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tickwheel_gateway.transport.tally import Tally as TransportTally

_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)


class Tally:
    """All calls of a process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._calls = _Calls()
        self._registry.register(self._calls)
        self._streams = Gauge(
            "tickwheel_gateway_telemetry_streams", "Clients that can be spoken to", registry=self._registry
        )
        self._waiting = Gauge(
            "tickwheel_gateway_waiting_receives",
            "Calls of ReceiveMessage that wait for messages",
            registry=self._registry,
        )
        self._renewed = Gauge(
            "tickwheel_gateway_renewed_receipts",
            "Messages at push consumers, whose leases are renewed for them",
            registry=self._registry,
        )
        self._clients = Gauge(
            "tickwheel_gateway_clients",
            "Clients that were heard of in the last minute",
            registry=self._registry,
        )
        self._brokers = Gauge(
            "tickwheel_gateway_broker_connections",
            "Connections to the broker: one for each token in use",
            registry=self._registry,
        )

    def called(self, name: str, code: int, duration_s: float, times: int = 1) -> None:
        """So many calls have ended, with this code of RocketMQ; 0: the request was none."""
        self._calls.add(name, int(code), duration_s, times)

    def streams(self, change: int) -> None:
        """So many more telemetry streams are open."""
        self._streams.inc(change)

    def knows(self, clients: int, broker_connections: int) -> None:
        """How many there are now."""
        self._clients.set(clients)
        self._brokers.set(broker_connections)

    def holds(self, waiting: int, renewed: int) -> None:
        """How many receives wait now, and how many receipts are renewed."""
        self._waiting.set(waiting)
        self._renewed.set(renewed)

    def watch(self, transport: TransportTally) -> None:
        """Its figures belong to these from now on."""
        self._registry.register(_Transport(transport))

    def collect(self) -> Iterable[Metric]:
        """All figures."""
        return self._registry.collect()

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """(the text, its content type), in the form that the Accept header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Calls(Collector):
    """Calls by what they were answered, and how long that took: counted by many at a time."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, int], int] = {}
        self._buckets: dict[str, list[int]] = {}
        """By method; the last is for what took longer than all others."""
        self._seconds: dict[str, float] = {}

    def add(self, name: str, code: int, duration_s: float, times: int) -> None:
        """So many took so long."""
        self._codes[name, code] = self._codes.get((name, code), 0) + times
        buckets = self._buckets.get(name)
        if buckets is None:
            buckets = self._buckets[name] = [0] * (len(_SECONDS) + 1)
        buckets[bisect_left(_SECONDS, duration_s)] += times
        self._seconds[name] = self._seconds.get(name, 0.0) + duration_s * times

    def collect(self) -> Iterator[Metric]:
        """As Prometheus has it."""
        calls = CounterMetricFamily(
            "tickwheel_gateway_calls",
            "Calls that were answered, by method and code of RocketMQ; 0: the request was none of its method",
            labels=["method", "code"],
        )
        for (name, code), count in sorted(self._codes.items()):
            calls.add_metric([name, str(code)], count)
        yield calls
        took = HistogramMetricFamily(
            "tickwheel_gateway_call_seconds",
            "From a whole request until its answer; of ReceiveMessage with its wait",
            labels=["method"],
        )
        bounds = [*map(floatToGoString, _SECONDS), "+Inf"]
        for name, buckets in sorted(self._buckets.items()):
            reached = list(zip(bounds, accumulate(buckets), strict=True))
            took.add_metric([name], reached, self._seconds[name])
        yield took


class _Transport(Collector):
    """What the transport counts, as metrics."""

    def __init__(self, tally: TransportTally) -> None:
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        """As Prometheus has it."""
        tally = self._tally
        library = GaugeMetricFamily(
            "tickwheel_gateway_http2", "The library that serves HTTP/2: its value is 1", labels=["library"]
        )
        library.add_metric([tally.stack], 1)
        yield library
        yield GaugeMetricFamily("tickwheel_gateway_connections", "Open connections", tally.connections)
        yield GaugeMetricFamily("tickwheel_gateway_running_calls", "Calls that run", tally.calls)
        yield CounterMetricFamily(
            "tickwheel_gateway_accepted_connections", "Connections that were accepted", tally.accepted
        )
        yield CounterMetricFamily(
            "tickwheel_gateway_refused_connections",
            "Connections that were refused because there were too many",
            tally.refused_connections,
        )
        yield CounterMetricFamily(
            "tickwheel_gateway_failed_handshakes", "Connections that did not begin", tally.failed_handshakes
        )
        ended = CounterMetricFamily(
            "tickwheel_gateway_grpc_calls",
            "Calls by the status of gRPC with which they ended",
            labels=["status"],
        )
        for status, count in sorted(tally.ended.items()):
            ended.add_metric([str(int(status))], count)
        yield ended
        abuses = CounterMetricFamily(
            "tickwheel_gateway_abuses",
            "Connections that were ended because they were abused",
            labels=["reason"],
        )
        for reason, count in sorted(tally.abuses.items()):
            abuses.add_metric([reason], count)
        yield abuses
