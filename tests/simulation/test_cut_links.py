"""One link after the other is cut between the machines of a simulated cluster, and it goes on to serve."""

from __future__ import annotations

import math

import pytest

from tests.simulation.seeds import in_order, seeds
from tests.support.run.profile import SEED
from tickwheel_broker.sharedlog import node
from tickwheel_simulation.cluster import cuts
from tickwheel_simulation.cluster.cuts import run_cuts
from tickwheel_simulation.oracle import Violation

MANY_SEEDS = 30


@seeds("cut_seeds")
def test_a_cluster_serves_while_a_link_is_cut(seed: int) -> None:
    assert run_cuts(SEED + seed)["takeovers"]


def test_a_seed_gives_the_same_again() -> None:
    assert run_cuts(3) == run_cuts(3)


def found(first: int = 0) -> str:
    """How one of some seeds finds the defect. `first`: a seed that did."""
    for seed in in_order(first, MANY_SEEDS):
        try:
            run_cuts(seed)
        except Violation as violation:
            return str(violation)
    return ""


def test_an_owner_that_never_gives_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "GIVE_UP_TIMEOUTS", math.inf)
    assert "nobody serves" in found()


def test_nodes_that_never_hear_of_another_leader_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "NEWS_S", math.inf)
    assert "nobody serves" in found()
