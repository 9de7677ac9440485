"""The dashboard on the daemon, and a client to look behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import tickwheel.web
from tests.support.clients.visiting import Visitor
from tests.support.processes.daemon_harness import Daemon
from tests.support.processes.guarded import Guarded


@pytest.fixture
async def visitor(daemon: Daemon) -> AsyncIterator[Visitor]:
    """A browser, whose broker wants no tokens."""
    app = tickwheel.web.app(daemon.url)
    async with app.router.lifespan_context(app):
        yield Visitor(app)


@pytest.fixture
async def stranger(guarded: Guarded) -> AsyncIterator[Visitor]:
    """A browser that has not logged in, whose broker wants tokens."""
    app = tickwheel.web.app(guarded.daemon.url)
    async with app.router.lifespan_context(app):
        yield Visitor(app)


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[tickwheel.Client]:
    """A client of the same broker."""
    async with tickwheel.Client(daemon.url) as found:
        yield found
