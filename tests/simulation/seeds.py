"""Seeds of the simulator in tests: what each must show, and how a world is run until something has happened in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.run.profile import SEED, amount
from tickwheel_simulation.run import Report, run_seed

MANY = 40
"""So many seeds are tried until each of some events has happened: most of them happen in the first few."""


@dataclass(frozen=True)
class World:
    """What a seed is run in: see ``run_seed``."""

    hours: float
    is_cluster: bool = False
    has_endpoint: bool = False
    has_gateway: bool = False

    def run(self, seed: int) -> Report:
        return run_seed(
            seed,
            self.hours,
            is_cluster=self.is_cluster,
            has_endpoint=self.has_endpoint,
            has_gateway=self.has_gateway,
        )


ALONE = World(0.0025)
CLUSTER = World(0.0015, is_cluster=True)
"""A seed of a cluster takes its time mostly for its starts and its end."""
ENDPOINT = World(0.0025, has_endpoint=True)
CLUSTER_ENDPOINT = World(0.0025, is_cluster=True, has_endpoint=True)
GATEWAY = World(0.02, has_gateway=True)
"""Leases and polls of RocketMQ's clients are long."""
WORLDS = {
    "alone": ALONE,
    "cluster": CLUSTER,
    "endpoint": ENDPOINT,
    "cluster-endpoint": CLUSTER_ENDPOINT,
    "gateway": GATEWAY,
}
"""By the names that `found.txt` uses."""


def in_order(first: int, many: int) -> Iterator[int]:
    """The seed that found a defect when its test was written, which saves the search, and then the others."""
    yield first
    yield from (seed for seed in range(many) if seed != first)


def seeds(name: str) -> pytest.MarkDecorator:
    """As many seeds as this profile has of the amount ``name``: 0, 1, … on every day."""
    return pytest.mark.parametrize("seed", range(amount(name)))


def check(seed: int, world: World) -> None:
    """Every promise is kept, or the failure says how to see it again. A run that draws adds what it has drawn."""
    keeps_every_promise(SEED + seed, world)


def keeps_every_promise(seed: int, world: World) -> Report:
    report = world.run(seed)
    tail = "\n".join(report.trace_tail[-15:])
    name = next((name for name, known in WORLDS.items() if known == world), "")
    assert not report.violation, (
        f"{report.violation}\n{tail}\nTo repeat it: {report.command}\n"
        f"To keep it: {seed} {name} {world.hours:g} in tests/simulation/found.txt"
    )
    assert report.state_hash
    assert report.counts["starts"] > 1, "the last start compares the state"
    return report


def until(world: World, *events: str) -> None:
    """Run seeds until each of these events has happened. Fails when some event never does: then nothing was shown."""
    counts: Counter[str] = Counter()
    for seed in range(MANY):
        counts.update(keeps_every_promise(seed, world).counts)
        if all(counts[event] for event in events):
            return
    pytest.fail(f"in {MANY} seeds never: {', '.join(event for event in events if not counts[event])}")
