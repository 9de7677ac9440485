"""The simulator for hours, with seeds that no run has had before: `make soak`, or

TICKWHEEL_PROFILE=soak TICKWHEEL_SOAK_SIMULATION_S=21600 pytest -s tests/simulation/test_soak.py
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest

from tests.simulation.seeds import WORLDS
from tests.support.run.profile import SEED

BUDGET_S = float(os.environ.get("TICKWHEEL_SOAK_SIMULATION_S", "1800"))
"""How long to go on beginning seeds, by the real clock."""

LONGER = 4
"""A soak runs a seed so many times as long as other profiles."""
YEAR_S = 365 * 86_400


@pytest.mark.soak
@pytest.mark.timeout(BUDGET_S + 600)
def test_thousands_of_seeds() -> None:
    totals: Counter[str] = Counter()
    failed: list[str] = []
    simulated_s, end_s = 0.0, time.monotonic() + BUDGET_S
    for seed in count(SEED):
        name, world = list(WORLDS.items())[seed % len(WORLDS)]
        world = replace(world, hours=world.hours * LONGER)
        report = world.run(seed)
        totals.update(report.counts)
        simulated_s += report.simulated_s
        if report.violation:
            failed.append(f"{seed} {name} {world.hours:g} {report.violation}")
        if time.monotonic() > end_s:
            break
    print(f"\nseeds {SEED} to {seed}, {simulated_s / YEAR_S:,.1f} simulated years")
    print("\n".join(f"{number:>12,} {name}" for name, number in sorted(totals.items())))
    assert not failed, "lines for tests/simulation/found.txt:\n" + "\n".join(failed)
