"""A shell without a broker: its commands start what they need themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.cli_harness import Shell


@pytest.fixture
def local_shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
