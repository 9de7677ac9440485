"""What Dramatiq's tests import from beside them, and its source distribution does not have."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import pytest

skip_on_pypy = pytest.mark.skipif(platform.python_implementation() == "PyPy", reason="not on PyPy")


@contextmanager
def worker(broker: dramatiq.Broker, **options: Any) -> Iterator[dramatiq.Worker]:
    """A worker that runs."""
    one = dramatiq.Worker(broker, **options)
    one.start()
    try:
        yield one
    finally:
        one.stop()
