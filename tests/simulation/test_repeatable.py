"""The same seed gives the same run, to the last event, also in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.run.profile import amount

SCRIPT = """
import json, sys
from tickwheel_simulation.run import run_seed
hours = float(sys.argv[1])
reports = [
    run_seed(int(seed.rstrip("cr")), hours, is_cluster=seed.endswith("c"), has_gateway=seed.endswith("r"))
    for seed in sys.argv[2:]
]
assert all(r.counts['leases'] for r in reports)
print(json.dumps([[r.violation, r.trace_hash, r.state_hash, r.counts] for r in reports]))
"""
SEEDS = ["3", "4", "13", "5c", "5r"]
"""One of them runs a cluster, and the last one has clients of RocketMQ."""
HOURS = amount("repeated_s") / 3_600


def outcome(hash_seed: str) -> list[object]:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(HOURS), *SEEDS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(300)
def test_a_seed_decides_everything() -> None:
    first = outcome("1")
    assert first == outcome("2")
    assert len({json.dumps(one) for one in first}) == len(SEEDS)
