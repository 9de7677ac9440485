"""The core of the integration suite, against clusters of two nodes: see `tests/support/cluster/in_a_cluster.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import in_a_cluster
from tests.support.cluster.kafka import needs_kafka

ROOT = Path(__file__).parents[2]
FOLDER = "tests/integration"
LIMIT_S = 540
STARTS_A_SERVER = re.compile(r"\bDaemon\(|\bdef test_\w+\([^)]*\b(?:daemon|shell):")
"""Itself, or by a fixture."""


def test_what_is_left_out_is_there() -> None:
    """Each name of a test, or of a file, is that of one."""
    for name in in_a_cluster.NOT_IN_A_CLUSTER:
        file, _, test = name.partition("::")
        text = (ROOT / FOLDER / file).read_text(encoding="utf-8")
        assert not test or f"def {test.partition('[')[0]}(" in text, name
    for file in in_a_cluster.CORE:
        assert STARTS_A_SERVER.search((ROOT / FOLDER / file).read_text(encoding="utf-8")), file


@pytest.mark.timeout(LIMIT_S + 30)
@needs_kafka
def test_clients_of_a_cluster_find_what_they_find_with_one_broker() -> None:
    ours = ("PYTEST_", "TICKWHEEL_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    files = [f"{FOLDER}/{file}" for file in in_a_cluster.CORE]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--cluster", "2", *files],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 80
