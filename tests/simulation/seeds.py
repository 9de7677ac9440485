"""Seeds that every run of the tests goes through, in four equal parts, so that as many processes share them.

Each day has its own, and all runs of a day have the same."""

from __future__ import annotations

import pytest

from tests.support.profile import amount, today
from tickwheel_simulation.run import run_seed

SEEDS = amount("seeds")
FIRST_SEED = today() * 1_000
PARTS = 4
HOURS = 0.0025


def part(number: int) -> pytest.MarkDecorator:
    """The seeds of one part, counted from the day's first."""
    return pytest.mark.parametrize("seed", range(number, SEEDS, PARTS))


def check(seed: int) -> None:
    """Every promise is kept, or it is said how to see that it is not."""
    report = run_seed(FIRST_SEED + seed, HOURS)
    tail = "\n".join(report.trace_tail[-15:])
    assert not report.violation, f"{report.violation}\n{tail}\nTo repeat it: {report.command}"
    assert report.state_hash
    assert report.counts["starts"] > 1
