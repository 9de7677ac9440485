"""A directory whose broker wants tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.guarded import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """No broker runs there yet."""
    return Place(tmp_path)
