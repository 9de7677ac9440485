"""The databases of the outbox benchmark: an SQLite file, and private servers with their usual durability."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

KINDS: Final = ("sqlite", "postgresql", "mariadb")
_DRIVERS: Final = {"sqlite": "sqlite3", "postgresql": "psycopg", "mariadb": "pymysql"}
_BUSY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """An empty database. ``url``: SQLAlchemy's. Needs nothing but the driver, so that any process can use it."""

    kind: str
    url: str

    def connect(self, *, autocommit: bool = False) -> Any:
        """The driver's own connection, as durable as ours. SQLite's never begins a transaction by itself."""
        driver: Any = importlib.import_module(_DRIVERS[self.kind])
        parts = urlsplit(self.url)
        if self.kind == "sqlite":
            connection = driver.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
            for pragma in (f"busy_timeout={_BUSY_S * 1000:.0f}", "journal_mode=WAL", "synchronous=FULL"):
                connection.execute(f"PRAGMA {pragma}").close()
            return connection
        where: dict[str, Any] = {
            "host": parts.hostname,
            "port": parts.port,
            "user": parts.username,
            "password": unquote(parts.password or ""),
        }
        name = parts.path.removeprefix("/")
        if self.kind == "postgresql":
            return driver.connect(**where, dbname=name, autocommit=autocommit)
        connection = driver.connect(**where, database=name, autocommit=autocommit)
        # The default would lock gaps, and a poller would keep the producers waiting.
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return connection

    def sql(self, text: str) -> str:
        """A statement with the driver's own placeholders."""
        return text.replace("%s", "?") if self.kind == "sqlite" else text

    def execute(self, *statements: str) -> None:
        """Executes and commits each, in this order."""
        with closing(self.connect(autocommit=True)) as connection, closing(connection.cursor()) as cursor:
            for statement in statements:
                cursor.execute(statement)

    def numbers(self, count: int) -> str:
        """What a SELECT can be made FROM: ``count`` rows, numbered ``n`` from 0."""
        return {
            "sqlite": f"(WITH RECURSIVE r(n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM r LIMIT {count})"
            " SELECT n FROM r)",
            "postgresql": f"generate_series(0, {count - 1}) AS numbers(n)",
            "mariadb": f"(SELECT seq AS n FROM seq_0_to_{count - 1}) AS numbers",
        }[self.kind]

    def body(self) -> str:
        """An expression: the number ``n`` as a text of 100 characters."""
        return "printf('%0100d', n)" if self.kind == "sqlite" else "lpad(cast(n AS char(20)), 100, '0')"

    def settle(self, *tables: str) -> None:
        """Gives the optimizer its statistics, and background work nothing to do."""
        self.execute(
            *(
                {
                    "sqlite": f"ANALYZE {table}",
                    "postgresql": f"VACUUM ANALYZE {table}",
                    "mariadb": f"ANALYZE TABLE {table}",
                }[self.kind]
                for table in tables
            )
        )


class ServerCount:
    """How many statements (PostgreSQL: transactions) a server has executed. On MariaDB asking is none itself: it would
    wake who watches that count."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection: Any = place.connect(autocommit=True) if place.kind == "mariadb" else None

    def read(self) -> int | None:
        """None where there is no server."""
        if self._place.kind == "sqlite":
            return None
        return self._transactions() if self._connection is None else self._questions()

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()

    def _questions(self) -> int:
        from pymysql.constants import COMMAND

        self._connection._execute_command(COMMAND.COM_STATISTICS, b"")
        found = re.search(rb"Questions: (\d+)", self._connection._read_packet().get_all_data())
        assert found is not None
        return int(found[1])

    def _transactions(self) -> int:
        # A new connection each time: what it did itself is added when it ends.
        connection = self._place.connect(autocommit=True)
        with closing(connection), closing(connection.cursor()) as cursor:
            cursor.execute(
                "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database WHERE datname = current_database()"
            )
            return int(cursor.fetchone()[0])


def missing(kind: str) -> str | None:
    """Why there is no such database here; None if there is."""
    absent = [one for one in ("sqlalchemy", _DRIVERS[kind]) if importlib.util.find_spec(one) is None]
    if absent:
        return f"{', '.join(absent)} cannot be imported: pip install 'tickwheel[sql]'"
    server = _server(kind)
    return None if server is None else server.missing()


def _server(kind: str) -> Any:
    """The class of the server; None if there is nothing to serve."""
    if kind == "sqlite":
        return None
    from tickwheel_bench.databases import servers as database_servers

    return {"postgresql": database_servers.PostgresServer, "mariadb": database_servers.MariaServer}[kind]


@contextmanager
def open_place(kind: str, directory: Path) -> Iterator[Place]:
    """An empty database of a server of our own, or of a file in ``directory``."""
    server = _server(kind)
    if server is None:
        directory.mkdir(parents=True)
        yield Place(kind, f"sqlite:///{directory / 'bench.db'}")
        shutil.rmtree(directory)
        return
    with server() as running:
        yield Place(kind, running.create_database())
