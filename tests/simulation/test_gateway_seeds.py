"""The simulator with clients of RocketMQ, and gateways between them and the broker, while everything fails."""

from __future__ import annotations

from collections import Counter

from tests.simulation.seeds import FIRST_SEED
from tests.support.run.profile import amount
from tickwheel_simulation.run import run_seed

HOURS = 0.02
"""Leases and polls of RocketMQ's clients are long."""


def test_every_promise_to_clients_of_rocketmq_is_kept() -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + amount("gateway_seeds")):
        report = run_seed(seed, HOURS, has_gateway=True)
        tail = "\n".join(report.trace_tail[-15:])
        assert not report.violation, f"{report.violation}\n{tail}\nTo repeat it: {report.command}"
        assert report.state_hash
        counts.update(report.counts)
    assert counts["gateways started"] > amount("gateway_seeds")
    for what in ("sent by rocketmq", "received by rocketmq", "acked by rocketmq"):
        assert counts[what] > amount("gateway_seeds"), what
