"""Real PostgreSQL and MariaDB servers for tests: private ones that can be killed, or some that the user names."""

from __future__ import annotations

import os
from typing import Final

import pytest
from sqlalchemy import make_url

from tickwheel_bench.databases.servers import (
    PATIENCE_S,
    DatabaseServer,
    MariaServer,
    PostgresServer,
    PrivateServer,
    default_database,
)

__all__ = [
    "OUTBOX",
    "PATIENCE_S",
    "DatabaseServer",
    "MariaServer",
    "NamedServer",
    "PostgresServer",
    "PrivateServer",
    "server_for_tests",
]

OUTBOX: Final = (
    "tickwheel.outbox",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "anyio._backends._asyncio",
    "anyio._backends._trio",
    "psycopg",
    "pymysql",
    "tests.support.outbox.relaying",
)
"""What a program that uses it imports: see ``forking``."""


class NamedServer(DatabaseServer):
    """A server that somebody else runs: tests use it, and leave it running."""

    def __init__(self, url: str) -> None:
        home = make_url(url)
        super().__init__(home.set(database=home.database or default_database(home)))

    def start(self) -> None:
        """It runs."""

    def stop(self) -> None:
        """Skips the test: the server is not ours."""
        self._skip()

    def kill(self) -> None:
        """Skips the test: the server is not ours."""
        self._skip()

    def close(self) -> None:
        """It stays."""

    def _skip(self) -> None:
        pytest.skip(
            f"{self._home!r} is not ours to end: unset TICKWHEEL_TEST_… to test with a server that is"
        )


def server_for_tests(private: type[PrivateServer], *, durable: bool = True) -> DatabaseServer:
    """The server that the environment names, or else one of our own. Where neither can be had the test is skipped; or
    fails, in a run that must not skip it."""
    if named := os.environ.get(private.variable):
        return NamedServer(named)
    if reason := private.missing():
        if os.environ.get("CI_DATABASES") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return private(durable=durable)
