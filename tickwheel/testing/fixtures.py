"""Pytest fixtures: put `pytest_plugins = ["tickwheel.testing.fixtures"]` into `conftest.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tickwheel.testing import TestBroker, broker, http

if TYPE_CHECKING:
    from starlette.applications import Starlette


@pytest.fixture
def tickwheel_broker() -> Iterator[TestBroker]:
    """A broker for one test, with a clock that the test moves: `tickwheel_broker.advance(…)`."""
    with broker() as running:
        yield running


@pytest.fixture
def tickwheel_web(tickwheel_broker: TestBroker) -> Starlette:
    """The HTTP API of that broker, as an ASGI application. Its lifespan is the test's business."""
    return http.web(tickwheel_broker)


@pytest.fixture
def tickwheel_answering() -> http.Answering:
    """What `tickwheel_push` calls: have a fixture of this name return your ASGI application."""
    return None


@pytest.fixture
def tickwheel_push(
    tickwheel_broker: TestBroker, tickwheel_answering: http.Answering
) -> Iterator[http.SyncPush]:
    """`tickwheel push` for that broker: `tickwheel_push.advance(…)`, `tickwheel_push.requests`."""
    with http.sync_push(tickwheel_broker, tickwheel_answering) as running:
        yield running
