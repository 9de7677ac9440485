"""The simulator over many seeds, while everything fails: a broker, several that share a log, an endpoint that somebody
changes all the time, clients of RocketMQ."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import (
    ALONE,
    CLUSTER,
    CLUSTER_ENDPOINT,
    ENDPOINT,
    GATEWAY,
    World,
    check,
    seeds,
    until,
)


@pytest.mark.promise(
    "when-is-a-message-safe",
    "what-a-power-loss-can-undo",
    "when-the-clock-jumps",
    "in-which-order",
    "cancel-and-reschedule-racing-delivery",
)
@seeds("seeds")
def test_every_promise_is_kept(seed: int) -> None:
    check(seed, ALONE)


@seeds("cluster_seeds")
def test_every_promise_is_kept_in_a_cluster(seed: int) -> None:
    check(seed, CLUSTER)


@pytest.mark.parametrize("world", [ENDPOINT, CLUSTER_ENDPOINT], ids=["alone", "cluster"])
@seeds("endpoint_seeds")
def test_what_was_answered_of_an_endpoint_is_so(seed: int, world: World) -> None:
    check(seed, world)


@seeds("gateway_seeds")
def test_every_promise_to_clients_of_rocketmq_is_kept(seed: int) -> None:
    check(seed, GATEWAY)


@pytest.mark.parametrize("world", [ENDPOINT, CLUSTER_ENDPOINT], ids=["alone", "cluster"])
def test_an_endpoint_is_changed_looked_at_and_told_of(world: World) -> None:
    until(world, "endpoint changes", "looks at endpoints", "tests told of")


def test_clients_of_rocketmq_send_receive_and_ack() -> None:
    until(GATEWAY, "gateways started", "sent by rocketmq", "received by rocketmq", "acked by rocketmq")
