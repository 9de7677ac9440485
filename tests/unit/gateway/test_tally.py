"""What is counted, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tickwheel_gateway.tally import Tally
from tickwheel_gateway.transport.tally import Tally as TransportTally
from tickwheel_gateway.wire.codes import Code


def samples(tally: Tally) -> dict[tuple[str, tuple[str, ...]], float]:
    """By name, without what all have in common, and values of labels in the order of labels."""
    found = {}
    for family in text_string_to_metric_families(tally.text()[0].decode()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found[sample.name.removeprefix("tickwheel_gateway_"), labels] = sample.value
    return found


def test_calls() -> None:
    tally = Tally()
    tally.called("SendMessage", Code.OK, 0.003)
    tally.called("SendMessage", Code.OK, 0.3)
    tally.called("SendMessage", 40_402, 0.001)
    found = samples(tally)
    assert found["calls_total", ("20000", "SendMessage")] == 2
    assert found["calls_total", ("40402", "SendMessage")] == 1
    assert found["call_seconds_count", ("SendMessage",)] == 3
    assert found["call_seconds_bucket", ("0.005", "SendMessage")] == 2


def test_what_there_is_now() -> None:
    tally = Tally()
    tally.streams(2)
    tally.streams(-1)
    tally.holds(waiting=3, renewed=10)
    tally.knows(7, 4)
    found = samples(tally)
    assert found["telemetry_streams", ()] == 1
    assert found["waiting_receives", ()] == 3
    assert found["renewed_receipts", ()] == 10
    assert (found["clients", ()], found["broker_connections", ()]) == (7, 4)


def test_the_transport() -> None:
    tally, transport = Tally(), TransportTally("nghttp2")
    tally.watch(transport)
    transport.connections, transport.accepted, transport.refused_connections = 2, 9, 1
    transport.ended[0] += 5
    transport.ended[12] += 1
    transport.abuses["resets"] += 1
    found = samples(tally)
    assert found["http2", ("nghttp2",)] == 1
    assert (found["connections", ()], found["accepted_connections_total", ()]) == (2, 9)
    assert found["refused_connections_total", ()] == 1
    assert (found["grpc_calls_total", ("0",)], found["grpc_calls_total", ("12",)]) == (5, 1)
    assert found["abuses_total", ("resets",)] == 1
