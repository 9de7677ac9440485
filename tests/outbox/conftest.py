"""The databases that the outbox is tested on: SQLite, and real PostgreSQL and MariaDB servers, started when needed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import tickwheel
from tests.support.outbox.databases import DatabaseServer, MariaServer, PostgresServer, server_for_tests
from tests.support.outbox.relaying import Messages
from tickwheel import outbox
from tickwheel._embedded import EmbeddedBroker

SERVERS = {"postgresql": "postgres_server", "mariadb": "maria_server"}
"""The databases that are servers, and the fixture of each."""


DURABLE_SERVERS = {"postgresql": "durable_postgres_server", "mariadb": "durable_maria_server"}
"""Those that are killed, and keep their promises then."""


_topics = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One for a module."""
    with tickwheel.embedded(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def topic() -> str:
    """One that no other test uses."""
    return f"topic-{next(_topics)}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[DatabaseServer]:
    """A PostgreSQL server that forgets everything in a crash. Tests share it; each creates its own database."""
    with server_for_tests(PostgresServer, durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def maria_server() -> Iterator[DatabaseServer]:
    """A MariaDB server that forgets everything in a crash. Tests share it; each creates its own database."""
    with server_for_tests(MariaServer, durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def durable_postgres_server() -> Iterator[DatabaseServer]:
    """A PostgreSQL server that tests may kill."""
    with server_for_tests(PostgresServer) as server:
        yield server


@pytest.fixture(scope="session")
def durable_maria_server() -> Iterator[DatabaseServer]:
    """A MariaDB server that tests may kill."""
    with server_for_tests(MariaServer) as server:
        yield server


@pytest.fixture(params=DURABLE_SERVERS)
def database_server(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """Each server in turn, for tests that kill it. It runs again afterwards."""
    server: DatabaseServer = request.getfixturevalue(DURABLE_SERVERS[request.param])
    yield server
    server.start()


@pytest.fixture(params=["sqlite", *SERVERS])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database on each kind in turn. It is dropped afterwards."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'database.sqlite'}"
        return
    server: DatabaseServer = request.getfixturevalue(SERVERS[request.param])
    with server.database() as url:
        yield url


@pytest.fixture(scope="module", params=["sqlite", *SERVERS])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[outbox.Database]:
    """One for all tests of a module: each has tables of its own."""
    if request.param == "sqlite":
        with outbox.open_database(f"sqlite:///{tmp_path_factory.mktemp('shared')}/a.db") as one:
            yield one
        return
    with (
        request.getfixturevalue(SERVERS[request.param]).database() as url,
        outbox.open_database(url) as one,
    ):
        yield one


@pytest.fixture
def messages(database_url: str) -> Iterator[Messages]:
    """A message table in each kind of database, closed afterwards."""
    found = Messages(database_url)
    yield found
    found.close()
