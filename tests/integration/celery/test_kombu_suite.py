"""Kombu's own integration tests, from its source distribution: the quick part of `make celery-suites`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.celery.run import judge


def test_all_of_it_passes(tmp_path: Path) -> None:
    assert judge("kombu-integration", sys.executable, tmp_path) == []
