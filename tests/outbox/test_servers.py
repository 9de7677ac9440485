"""The databases that other tests of the outbox rely on: each can be reached, and keeps its promises in a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    inspect,
    select,
    text,
)
from sqlalchemy.exc import OperationalError

from tests.support.outbox.databases import (
    DatabaseServer,
    MariaServer,
    NamedServer,
    PostgresServer,
    PrivateServer,
    server_for_tests,
)
from tickwheel_bench.processes import is_gone, wait_until

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = Table("numbers", MetaData(), Column("number", Integer, primary_key=True, autoincrement=False))
KINDS = [PostgresServer, MariaServer]

_RUN = """
import sys
from tests.support.outbox.databases import {kind}
with {kind}() as server:
    print(server.folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def connected(url: str) -> Iterator[Engine]:
    engine = create_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


def insert(connection: Connection, number: int) -> None:
    connection.execute(NUMBERS.insert().values(number=number))


def numbers(url: str) -> list[int]:
    """What a client that has just come sees."""
    with connected(url) as engine, engine.connect() as connection:
        return list(connection.execute(select(NUMBERS.c.number).order_by(NUMBERS.c.number)).scalars())


def test_database_can_be_reached_and_is_empty(database_url: str) -> None:
    with connected(database_url) as engine:
        assert inspect(engine).get_table_names() == []
        NUMBERS.metadata.create_all(engine)
        with engine.begin() as connection:
            insert(connection, 1)
        assert numbers(database_url) == [1]


def test_databases_of_a_server_are_apart(database_server: DatabaseServer) -> None:
    with database_server.database() as one, database_server.database() as other, connected(one) as engine:
        NUMBERS.metadata.create_all(engine)
        with connected(other) as elsewhere:
            assert inspect(elsewhere).get_table_names() == []


def test_database_is_dropped_under_an_open_transaction(database_server: DatabaseServer) -> None:
    url = database_server.create_database()
    with connected(url) as engine:
        NUMBERS.metadata.create_all(engine)
        with engine.connect() as connection:
            insert(connection, 1)
            database_server.drop_database(url)
            connection.invalidate()
        with pytest.raises(OperationalError), engine.connect():
            pass


def test_committed_row_survives_a_kill(database_server: DatabaseServer) -> None:
    with database_server.database() as url, connected(url) as engine:
        NUMBERS.metadata.create_all(engine)
        with engine.begin() as connection:
            insert(connection, 1)
        database_server.kill()
        with pytest.raises(OperationalError), engine.connect() as connection:
            connection.execute(select(NUMBERS))
        database_server.start()
        assert numbers(url) == [1]


def test_uncommitted_row_does_not_survive_a_kill(database_server: DatabaseServer) -> None:
    with database_server.database() as url, connected(url) as engine:
        NUMBERS.metadata.create_all(engine)
        with engine.connect() as connection:
            insert(connection, 1)
            # The other's commit takes the log to disk, and with it what the first has done so far.
            with engine.begin() as other:
                insert(other, 2)
            database_server.kill()
            connection.invalidate()
        database_server.start()
        assert numbers(url) == [2]


def test_stopped_server_comes_back_with_its_data(database_server: DatabaseServer) -> None:
    with database_server.database() as url, connected(url) as engine:
        NUMBERS.metadata.create_all(engine)
        with engine.begin() as connection:
            insert(connection, 1)
        engine.dispose()
        database_server.stop()
        database_server.start()
        assert numbers(url) == [1]


def test_postgres_is_as_durable_as_crash_tests_need(durable_postgres_server: DatabaseServer) -> None:
    with connected(durable_postgres_server.url("postgres")) as engine, engine.connect() as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert connection.execute(text(f"SHOW {setting}")).scalar_one() == "on"


def test_mariadb_is_as_durable_as_crash_tests_need(durable_maria_server: DatabaseServer) -> None:
    with connected(durable_maria_server.url("mysql")) as engine, engine.connect() as connection:
        for setting in ("innodb_flush_log_at_trx_commit", "innodb_doublewrite"):
            # How a switch that is on is shown depends on the version.
            assert connection.execute(text(f"SELECT @@{setting}")).scalar_one() in (1, "ON")


@pytest.mark.parametrize("kind", KINDS)
def test_server_ends_when_the_tests_are_killed(kind: type[PrivateServer]) -> None:
    if reason := kind.missing():
        pytest.skip(reason)
    command = [sys.executable, "-c", _RUN.format(kind=kind.__name__)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        folder = Path(tests.stdout.readline().strip())
        server = int((folder / "server.pid").read_text())
        assert not is_gone(server)
        tests.kill()
    wait_until(lambda: is_gone(server) and not folder.exists(), lambda: f"{folder} is still there")


def test_named_server_is_used_and_left_alone(database_server: DatabaseServer) -> None:
    with database_server.database() as url:
        with NamedServer(url) as named, named.database() as other, connected(other) as engine:
            NUMBERS.metadata.create_all(engine)
            for end in (named.kill, named.stop):
                with pytest.raises(pytest.skip.Exception, match="not ours to end"):
                    end()
        with connected(url) as engine:
            assert inspect(engine).get_table_names() == []


@pytest.mark.parametrize("kind", KINDS)
def test_environment_may_name_a_server(kind: type[PrivateServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kind.variable, f"{kind.scheme}://someone:secret@db.example:1234")
    server = server_for_tests(kind)
    assert server.url("mine") == f"{kind.scheme}://someone:secret@db.example:1234/mine"
    with pytest.raises(pytest.skip.Exception) as skipped:
        server.kill()
    assert "secret" not in str(skipped.value)


@pytest.mark.parametrize("kind", KINDS)
def test_missing_server_skips_or_fails_and_says_what_to_install(
    kind: type[PrivateServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(kind.variable, raising=False)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.delenv("CI_DATABASES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install"):
        server_for_tests(kind)
    monkeypatch.setenv("CI_DATABASES", "required")
    with pytest.raises(pytest.fail.Exception, match=f"or name a server in {kind.variable}"):
        server_for_tests(kind)
