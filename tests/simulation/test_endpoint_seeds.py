"""The simulator with an endpoint that is made, changed, switched and deleted all the time, while everything fails."""

from __future__ import annotations

import pytest

from tests.simulation.seeds import FIRST_SEED, HOURS
from tests.support.run.profile import amount
from tickwheel_simulation.run import run_seed


@pytest.mark.parametrize("is_cluster", [False, True], ids=["alone", "cluster"])
def test_what_was_answered_of_an_endpoint_is_so(is_cluster: bool) -> None:
    changes = looks = told = 0
    for seed in range(FIRST_SEED, FIRST_SEED + amount("endpoint_seeds")):
        report = run_seed(seed, HOURS, is_cluster=is_cluster, has_endpoint=True)
        tail = "\n".join(report.trace_tail[-15:])
        assert not report.violation, f"seed {seed}: {report.violation}\n{tail}"
        assert report.state_hash
        changes += report.counts.get("endpoint changes", 0)
        looks += report.counts.get("looks at endpoints", 0)
        told += report.counts.get("tests told of", 0)
    assert changes > 5
    assert told > 0
    assert looks > 3
