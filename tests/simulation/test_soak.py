"""The simulator for hours: `make soak`, or

TICKWHEEL_PROFILE=soak TICKWHEEL_SOAK_SIMULATION_S=21600 pytest -s tests/simulation/test_soak.py
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter

import pytest

from tickwheel_simulation.run import run_seed

BUDGET_S = float(os.environ.get("TICKWHEEL_SOAK_SIMULATION_S", "1800"))
"""How long to go on beginning seeds, by the real clock."""

FIRST_SEED = int(os.environ.get("TICKWHEEL_SOAK_FIRST_SEED", str(secrets.randbelow(1 << 31))))
HOURS = 0.01
YEAR_S = 365 * 86_400


@pytest.mark.soak
@pytest.mark.timeout(BUDGET_S + 600)
def test_thousands_of_seeds() -> None:
    totals: Counter[str] = Counter()
    failed: list[str] = []
    simulated_s, seed, end_s = 0.0, FIRST_SEED, time.monotonic() + BUDGET_S
    while time.monotonic() < end_s:
        report = run_seed(seed, HOURS)
        totals.update(report.counts)
        simulated_s += report.simulated_s
        seed += 1
        if report.violation:
            failed.append(f"{report.violation}\n    {report.command}")
    print(f"\nseeds {FIRST_SEED} to {seed - 1}, {simulated_s / YEAR_S:,.1f} simulated years")
    print("\n".join(f"{number:>12,} {name}" for name, number in sorted(totals.items())))
    assert not failed, "\n".join(failed)
