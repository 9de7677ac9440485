"""Pytest fixtures: put `pytest_plugins = ["tickwheel.testing.fixtures"]` into `conftest.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tickwheel.testing import TestBroker, broker


@pytest.fixture
def tickwheel_broker() -> Iterator[TestBroker]:
    """A broker for one test, with a clock that the test moves: `tickwheel_broker.clock.advance(…)`."""
    with broker() as running:
        yield running
