"""Programs in other languages, with packages that come from the registries of those languages."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

LIMIT_S: Final = 120
FETCHED_WITHIN_S: Final = 90
"""All that comes from registries, together: what tests do between does not count."""


class Registries:
    """Where what the programs need comes from. Without them there is no test."""

    def __init__(self, within_s: float = FETCHED_WITHIN_S) -> None:
        self._left_s = within_s

    def fetch(self, folder: Path, *command: str, environment: Mapping[str, str] | None = None) -> None:
        """Has a language's own tool get it."""
        began_s = time.monotonic()
        try:
            done = run(folder, *command, environment=environment, limit_s=max(1.0, self._left_s))
        except subprocess.TimeoutExpired:
            pytest.skip(f"{' '.join(command)}: the registry did not answer in time")
        finally:
            self._left_s -= time.monotonic() - began_s
        if done.returncode:
            pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")


def needs(program: str) -> str:
    """Where it is. Without it there is no test."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not on this machine")
    return found


def succeed(folder: Path, *command: str, environment: Mapping[str, str] | None = None) -> str:
    """What it prints. Fails when it does."""
    done = run(folder, *command, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(
    folder: Path,
    *command: str,
    environment: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
