"""What cannot be opened says why, and what to do."""

from __future__ import annotations

import builtins
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.outbox.messages import rolled_back
from tickwheel.errors import BadArgument
from tickwheel.outbox import (
    BadDatabase,
    Database,
    DatabaseBusy,
    DatabaseUnavailable,
    DriverMissing,
    KeySpace,
    MessageTable,
    OutboxError,
    Queue,
    open_database,
)


@pytest.mark.parametrize(
    "where",
    [
        "",
        "nonsense",
        "shop.db",
        "oracle://a/b",
        "postgresql+nosuch://a/b",
        "nosuch://a/b",
        "sqlite://",
        "sqlite:///:memory:",
    ],
)
def test_what_is_no_database_of_ours(where: str) -> None:
    with pytest.raises(BadDatabase) as caught:
        open_database(where)
    assert caught.value.advice


@pytest.fixture
def connections() -> Iterator[set[Any]]:
    """Those of SQLAlchemy that are open."""
    found: set[Any] = set()
    opened, closed = (lambda one, _: found.add(one)), (lambda one, _: found.discard(one))
    sa.event.listen(sa.Pool, "connect", opened)
    sa.event.listen(sa.Pool, "close", closed)
    yield found
    sa.event.remove(sa.Pool, "connect", opened)
    sa.event.remove(sa.Pool, "close", closed)


def test_what_is_refused_stays_open_nowhere(
    connections: set[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("sqlite://", "sqlite:///:memory:"):
        with pytest.raises(BadDatabase):
            open_database(where)
    with monkeypatch.context() as patched:
        patched.setattr("tickwheel.outbox.database._OLDEST", {"SQLite": (99,)})
        with pytest.raises(BadDatabase, match="too old"):
            open_database(f"sqlite:///{tmp_path / 'shop.db'}")
    for kind in (KeySpace, MessageTable, Queue):
        with pytest.raises((OutboxError, BadArgument)):
            kind(f"sqlite:///{tmp_path / 'shop.db'}", "")
    assert not connections
    with open_database(f"sqlite:///{tmp_path / 'shop.db'}"):
        assert connections
    assert not connections


def test_the_password_is_never_told() -> None:
    for where in ("postgresql://me:s3cret@127.0.0.1:1/x", "mariadb://me:s3cret@127.0.0.1:1/x"):
        with pytest.raises(DatabaseUnavailable) as caught:
            open_database(where)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("where", "package", "line"),
    [
        ("postgresql://a/b", "psycopg", "pip install 'psycopg[binary]'"),
        ("mariadb://a/b", "pymysql", "pip install 'PyMySQL'"),
        ("mysql://a/b", "pymysql", "pip install 'PyMySQL'"),
        ("postgresql+psycopg2://a/b", "psycopg2", "pip install 'psycopg2'"),
        ("mysql+mysqldb://a/b", "MySQLdb", "pip install 'mysqlclient'"),
    ],
)
@pytest.mark.parametrize("how", ["missing", "broken"])
def test_a_missing_driver_says_what_to_install(
    where: str, package: str, line: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] != package:
            return real(name, *rest)
        if how == "missing":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        raise ImportError("no library of C was found")

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DriverMissing) as caught:
        open_database(where)
    assert "tickwheel[sql]" in caught.value.advice
    if how == "missing":
        assert line in caught.value.advice


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("scheme", ["postgresql", "mariadb", "mysql", "postgresql+psycopg"])
@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid"])
def test_a_server_that_is_away_may_come_back(scheme: str, host: str) -> None:
    with pytest.raises(DatabaseUnavailable) as caught:
        open_database(f"{scheme}://user:password@{host}:{unused_port()}/shop")
    assert caught.value.retryable


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable):
        open_database(f"sqlite:///{tmp_path / 'none' / 'shop.db'}")


def test_a_server_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    monkeypatch.setattr(engine.dialect, "_get_server_version_info", lambda connection: (3, 34, 1))
    with pytest.raises(BadDatabase, match=r"3\.34\.1 is too old") as caught:
        open_database(engine)
    assert "3.35" in caught.value.advice
    engine.dispose()


def test_paths_are_absolute_and_lead_through_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    with open_database("sqlite:///link.db") as database:
        monkeypatch.chdir("/")
        assert open_database(database) is database
        assert database.name == "sqlite:///link.db"
        assert database.kind == "sqlite"


def test_paths_that_are_links(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    with open_database(f"sqlite:///{tmp_path / 'link.db'}") as database:
        assert database.path == (tmp_path / "real.db").resolve()


def test_work_is_tried_again_while_others_are_in_the_way(tmp_path: Path) -> None:
    with open_database(f"sqlite:///{tmp_path / 'shop.db'}") as database:
        attempts: list[int] = []

        def work(connection: sa.Connection) -> str:
            attempts.append(1)
            connection.execute(sa.text("create table if not exists t (n integer)"))
            connection.execute(sa.text("insert into t values (1)"))
            if len(attempts) < 4:
                raise DatabaseBusy
            return "done"

        assert database.run(work) == "done"
        with database.reading() as connection:
            assert connection.execute(sa.text("select count(*) from t")).scalar() == 1


def test_who_is_always_in_the_way_is_told_of(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}", connect_args={"timeout": 0.01})
    database = open_database(engine)
    with engine.connect() as other:
        other.exec_driver_sql("begin immediate")
        with pytest.raises(DatabaseBusy) as caught:
            database.run(lambda connection: connection.execute(sa.text("create table t (n integer)")))
        assert caught.value.retryable
        other.rollback()
    database.close()
    engine.dispose()


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with open_database(f"sqlite:///{tmp_path / 'shop.db'}") as database:
        with pytest.raises(sa.exc.OperationalError, match="no such table"), database.reading() as connection:
            connection.execute(sa.text("select * from nobody"))
        made = sa.text("create table t (n integer)")
        with pytest.raises(ZeroDivisionError):
            rolled_back(database, lambda connection: connection.execute(made))
        with database.reading() as connection:
            assert not sa.inspect(connection).has_table("t")
    assert isinstance(database, Database)
