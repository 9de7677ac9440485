"""Every example runs as written and says what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SAYS = {
    "query.py": [
        "acked: 2",
        "scheduled: 2, the next one later today or tomorrow",
        "waits longest: carol, 30 euros",
    ],
    "reminders.py": ["bed: cancelled", "dentist: call the dentist", "tea: take the tea out"],
    "bulk.py": ["received 100,000 of 100,000"],
}


def test_no_example_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == SAYS[name]
    assert done.stderr == ""
