"""The same seed gives the same run, to the last event, also in another process in which much else is different."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.run.profile import amount

PROGRAM = Path(__file__).with_name("repeated.py")
SEEDS = ["3", "4", "9", "5c", "5r", "0r"]
"""One of them runs a cluster, and the last ones have clients of RocketMQ: in 0 a gateway stops while they wait."""
HOURS = amount("repeated_s") / 3_600


def outcomes(how: str, hash_seed: str) -> dict[str, list[object]]:
    """By seed."""
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), how, str(HOURS), *SEEDS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(300)
def test_a_seed_decides_everything() -> None:
    first = outcomes("undisturbed", "1")
    assert first == outcomes("disturbed", "2")
    assert len({json.dumps(one) for one in first.values()}) == len(SEEDS)
