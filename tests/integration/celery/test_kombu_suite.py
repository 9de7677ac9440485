"""Kombu's own integration tests, from its source distribution: the quick part of `make celery-suites`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.interop.celery.run import judge


@pytest.mark.ci
@pytest.mark.skipif(
    importlib.util.find_spec("pytest_freezer") is None, reason="pytest-freezer is not installed"
)
def test_all_of_it_passes(tmp_path: Path) -> None:
    assert judge("kombu-integration", sys.executable, tmp_path) == []
