"""The databases that the outbox is tested on: SQLite, and real PostgreSQL and MariaDB servers, started when needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.databases import DatabaseServer, MariaServer, PostgresServer

SERVERS = {"postgresql": "postgres_server", "mariadb": "maria_server"}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[DatabaseServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def maria_server() -> Iterator[DatabaseServer]:
    with MariaServer() as server:
        yield server


@pytest.fixture(params=SERVERS)
def database_server(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    server: DatabaseServer = request.getfixturevalue(SERVERS[request.param])
    yield server
    server.start()


@pytest.fixture(params=["sqlite", *SERVERS])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'database.sqlite'}"
        return
    server: DatabaseServer = request.getfixturevalue(SERVERS[request.param])
    with ExitStack() as stack:
        url = server.create_database()
        stack.callback(server.drop_database, url)
        yield url
