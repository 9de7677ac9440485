"""Seeds that every run of the tests goes through, in equal parts, so that as many processes share them.

Each day has its own, and all runs of a day have the same."""

from __future__ import annotations

import pytest

from tests.support.run.profile import amount, today
from tickwheel_simulation.run import run_seed

SEEDS, CLUSTER_SEEDS = amount("seeds"), amount("cluster_seeds")
FIRST_SEED = today() * 1_000
PARTS, CLUSTER_PARTS = 4, 3
HOURS = 0.0025
CLUSTER_HOURS = 0.0015
"""What a seed of a cluster takes is mostly its starts and its end."""


def part(number: int) -> pytest.MarkDecorator:
    """The seeds of one part, counted from the day's first."""
    return pytest.mark.parametrize("seed", range(number, SEEDS, PARTS))


def cluster_part(number: int) -> pytest.MarkDecorator:
    """The same of those that run a cluster."""
    return pytest.mark.parametrize("seed", range(number, CLUSTER_SEEDS, CLUSTER_PARTS))


def check(seed: int, *, is_cluster: bool = False) -> None:
    """Every promise is kept, or it is said how to see that it is not."""
    report = run_seed(FIRST_SEED + seed, CLUSTER_HOURS if is_cluster else HOURS, is_cluster=is_cluster)
    tail = "\n".join(report.trace_tail[-15:])
    assert not report.violation, f"{report.violation}\n{tail}\nTo repeat it: {report.command}"
    assert report.state_hash
    assert report.counts["starts"] > 1
