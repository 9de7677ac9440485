"""The HTTP API on the daemon, in this process and as a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import tickwheel.web
from tests.support.clients.asgi import Caller
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.web_process import Web, started


@pytest.fixture
async def ask(daemon: Daemon) -> AsyncIterator[Caller]:
    """Requests to the application, without sockets."""
    app = tickwheel.web.app(daemon.url)
    async with app.router.lifespan_context(app):
        yield Caller(app)


@pytest.fixture
def web(shell: Shell) -> Iterator[Web]:
    """`tickwheel web` as a process."""
    found = started(shell)
    yield found
    found.process.kill()
    found.process.communicate(timeout=PATIENCE_S)
