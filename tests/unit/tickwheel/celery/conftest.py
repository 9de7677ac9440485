"""One broker for the tests of a module, whose clock begins at its ``START`` or now, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tickwheel import sync
from tickwheel.testing import TestBroker, broker


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Iterator[TestBroker]:
    start: datetime | None = getattr(request.module, "START", None)
    with broker(start=start or datetime.now(UTC)) as running:
        yield running


@pytest.fixture(scope="module")
def client(shared: TestBroker) -> Iterator[sync.Client]:
    with shared.sync_client() as one:
        yield one
