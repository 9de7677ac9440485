"""The benchmarks can be started as the documents say."""

from __future__ import annotations

import subprocess
import sys


def test_the_package_can_be_run() -> None:
    command = [sys.executable, "-m", "tickwheel_bench", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "send-many" in done.stdout
