"""A user's database: opened by URL or given as an engine, with what its kind can do.

Everything that talks SQL here is synchronous and runs in a worker thread (``Database.call``), because SQLAlchemy's own
asynchronous layer needs asyncio. Time is the database's clock, so that all processes agree on what is due.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

import anyio
from anyio.lowlevel import RunVar

from tickwheel.client import forks as _forks
from tickwheel.client.waiting.backoff import Backoff, chance
from tickwheel.outbox.errors import (
    AWAY,
    BadDatabase,
    DatabaseBusy,
    DatabaseUnavailable,
    DriverMissing,
    OutboxError,
    SqlMissing,
)
from tickwheel.outbox.threads import finish_in_thread
from tickwheel.protocol.errors import ClientForked

try:
    import sqlalchemy as sa
    from sqlalchemy import event
    from sqlalchemy.engine import URL, Connection, Engine, make_url
    from sqlalchemy.exc import (
        ArgumentError,
        DBAPIError,
        NoSuchModuleError,
        OperationalError,
        ProgrammingError,
    )
    from sqlalchemy.exc import TimeoutError as PoolTimeout
except ModuleNotFoundError as error:
    if error.name is not None and error.name.partition(".")[0] == "sqlalchemy":
        raise SqlMissing from None
    raise

if TYPE_CHECKING:
    from sqlalchemy.sql.elements import ColumnElement

T = TypeVar("T")
Kind = Literal["sqlite", "postgresql", "mariadb"]

_PACKAGES: Final = {"psycopg": "psycopg[binary]", "pymysql": "PyMySQL", "MySQLdb": "mysqlclient"}
KINDS: Final[dict[str, Kind]] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "mysql": "mariadb",
    "mariadb": "mariadb",
}
_OLDEST: Final = {
    "SQLite": (3, 35),  # RETURNING
    "PostgreSQL": (12,),
    "MariaDB": (10, 6),  # SKIP LOCKED
    "MySQL": (8, 0, 1),
}
BUSY_TIMEOUT_S: Final = 15
ATTEMPTS: Final = 8
"""How often a transaction is tried when others are in its way."""
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.5
_THREADS: Final = 8
_TURN_S: Final = 0.25
_LOCK_PAUSE_S: Final = 0.001


class Database:
    """A database that holds messages beside the user's own tables.

    ``kind``: ``sqlite``, ``postgresql`` or ``mariadb`` (also MySQL). ``returning``: whether an UPDATE can return rows.
    ``skip_locked``: whether rows that others have locked can be passed over (SQLite has one writer at a time instead).
    """

    def __init__(self, engine: Engine, *, owned: bool) -> None:
        self.engine = engine
        self.kind: Kind = KINDS[engine.dialect.name]
        self.returning = bool(engine.dialect.update_returning)
        self.skip_locked = self.kind != "sqlite"
        self._owned = owned
        self._offset_ns = 0
        self._writer = threading.Lock()
        if owned:
            _forks.tell(self)
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar("tickwheel.outbox.limiter")

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self.engine.url.render_as_string(hide_password=True)

    def forked(self, error: ClientForked) -> None:
        """See ``_forks``: the connections are the parent's, and this process makes its own. For an engine of the user's
        that is the user's business, as SQLAlchemy says."""
        self._writer = threading.Lock()
        _forks.keep(self.engine.pool)
        self.engine.dispose(close=False)

    @cached_property
    def path(self) -> Path | None:
        """The file of an SQLite database; None for other databases, and for one in memory."""
        if self.kind != "sqlite":
            return None
        # As SQLite has opened it: the URL may be an SQLite URI, or relative to where this process was before.
        with self.reading() as connection:
            databases = connection.exec_driver_sql("PRAGMA database_list").all()
        return next((Path(file) for _, name, file in databases if name == "main" and file), None)

    def close(self) -> None:
        """Closes the connections; those of an engine that the user gave stay."""
        if self._owned:
            self.engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- transactions --

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction that writes: committed at the end of the block, rolled back when it raises.

        On SQLite it takes the write lock at once: a transaction that reads first and writes later fails as soon as
        another has written in between. Elsewhere it is READ COMMITTED, so that claims lock rows and no gaps.
        Raises DatabaseUnavailable and DatabaseBusy for what the driver raises of that kind.
        """
        with self.translated(), self.engine.connect() as plain:
            connection = plain if self._owned or self.kind == "sqlite" else _read_committed(plain)
            if self.kind != "sqlite":
                with connection.begin():
                    yield connection
                return
            with self._turn(), connection.begin():
                if not _has_begun(connection):
                    _begin_immediate(connection)
                yield connection

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Our own threads take turns at SQLite's one write lock: inside SQLite a waiting connection sleeps and
        tries again, at growing intervals. This only makes the wait shorter: SQLite decides which one writes."""
        has_turn = self._writer.acquire(timeout=_TURN_S)
        try:
            yield
        finally:
            if has_turn:
                self._writer.release()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for statements that only read."""
        with self.translated(), self.engine.connect() as connection:
            yield connection

    def run(self, work: Callable[[Connection], T]) -> T:
        """The result of ``work`` in a transaction of its own, which is tried again when others were in its way.

        ``work`` may run several times, for a quarter of a minute, but is committed once. Raises DatabaseBusy,
        DatabaseUnavailable; the latter may also come when the commit did happen and only its answer was lost.
        """
        deadline_s = time.monotonic() + BUSY_TIMEOUT_S
        for attempt in range(ATTEMPTS):
            try:
                with self.begin() as connection:
                    return work(connection)
            except DatabaseBusy:
                if attempt == ATTEMPTS - 1 or time.monotonic() >= deadline_s:
                    raise
                time.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt) * (0.5 + chance.random()))
        raise AssertionError("unreachable")

    async def call(
        self, work: Callable[..., T], *arguments: Any, keep: Callable[[T], object] | None = None
    ) -> T:
        """``work(*arguments)`` in a worker thread. A cancellation waits for its end: nothing is half done.

        ``keep`` gets the result when the caller was cancelled meanwhile, and so cannot get it."""
        limiter = self._limiter.get(None)  # a Database may live longer than an event loop
        if limiter is None:
            limiter = anyio.CapacityLimiter(_THREADS)
            self._limiter.set(limiter)
        return await finish_in_thread(work, *arguments, limiter=limiter, keep=keep)

    async def transaction(
        self, work: Callable[[Connection], T], keep: Callable[[T], object] | None = None
    ) -> T:
        """``run`` in a worker thread."""
        return await self.call(self.run, work, keep=keep)

    async def call_until_done(self, work: Callable[..., T], *arguments: Any) -> T:
        """``call``, again and again while the database is away or busy."""
        backoff = Backoff(max_s=2.0)
        while True:
            try:
                return await self.call(work, *arguments)
            except AWAY:
                await anyio.sleep(backoff.next_s())

    def own_connection(self) -> Any:
        """A connection of the driver's, which the caller closes: no pool has it. Raises DatabaseUnavailable."""
        driver: Any = self.engine.dialect.dbapi
        try:
            pooled = self.engine.raw_connection()
        except (
            DBAPIError,
            PoolTimeout,
            driver.Error,
        ) as error:  # a pool does not translate what the driver raises
            raise DatabaseUnavailable(f"{self.name}: {error}") from error
        connection = pooled.driver_connection
        pooled.detach()
        return connection

    @contextmanager
    def translated(self) -> Iterator[None]:
        """What the driver raises in the block as a typed error, where it can be waited out."""
        try:
            yield
        except PoolTimeout as error:
            raise DatabaseBusy(f"{self.name}: {error}") from error
        except DBAPIError as error:
            typed = typed_error(error, self.name)
            if typed is None:
                raise
            raise typed from error

    # -- time --

    def now_ns(self) -> int:
        """Nanoseconds since 1970 by the database's clock, as it was last compared with ours."""
        return time.time_ns() + self._offset_ns

    def now_sql(self) -> ColumnElement[int] | int:
        """The same for use in a statement: exact, where ``now_ns`` is wrong for a while after this machine's clock was
        set. What is delivered, and until when it is held, goes by this one."""
        is_ours = self.kind == "sqlite"  # whose clock is this machine's
        return self.now_ns() if is_ours else now_ns(self.kind)

    def ask_clock(self, connection: Connection) -> int:
        """``now_ns`` as the database says it now; the difference to ours is kept."""
        if self.kind != "sqlite":
            asked_ns = time.time_ns()
            theirs_ns = int(connection.execute(sa.select(now_ns(self.kind))).scalar_one())
            self._offset_ns = theirs_ns - (asked_ns + time.time_ns()) // 2
        return self.now_ns()

    def compare_clocks(self) -> int:
        """Asks the database for its time, and returns by how many ns its clock is ahead of ours."""
        if self.kind != "sqlite":
            with self.reading() as connection:
                connection.execute(sa.select(sa.literal(1)))  # a first connection is slow to make
                self.ask_clock(connection)
        return self._offset_ns


class InDatabase:
    """What works in a database that it was given, or that it opened itself and closes again."""

    def __init__(self, where: str | URL | Engine | Database) -> None:
        self.database = open_database(where)
        self._owns_database = not isinstance(where, Database)

    def close(self) -> None:
        """Closes the connections, unless they are an engine's or a Database's of the caller."""
        if self._owns_database:
            self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    """All statements of the block, or none, inside of the caller's transaction."""
    if connection.dialect.name == "sqlite" and not _has_begun(connection):
        # The driver begins with the first change: a savepoint before that would be the transaction, and commit itself.
        connection.exec_driver_sql("BEGIN")
    with connection.begin_nested():
        yield


def in_parts(values: Sequence[T], size: int = 1000) -> Iterator[Sequence[T]]:
    """Values in numbers that one statement takes."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def by_epoch(receipts: Iterable[tuple[T, int]], size: int = 1000) -> Iterator[tuple[int, Sequence[T]]]:
    """The ids of each epoch, in numbers that one statement takes. Most receipts have the same epoch: it is their
    first."""
    ids: dict[int, list[T]] = {}
    for id_, epoch in receipts:
        ids.setdefault(epoch, []).append(id_)
    for epoch, some in ids.items():
        for part in in_parts(some, size):
            yield epoch, part


def now_ns(kind: Kind) -> ColumnElement[int]:
    """SQL: nanoseconds since 1970 by the database's clock when the statement begins. From UTC: in the local time of the
    session an hour of autumn comes twice."""
    texts = {
        "sqlite": (
            "(cast(strftime('%s', 'now') as integer) * 1000000000"
            " + cast(substr(strftime('%f', 'now'), 4) as integer) * 1000000)"
        ),
        "postgresql": "(extract(epoch from statement_timestamp()) * 1000000000)::bigint",
        "mariadb": "(timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) * 1000)",
    }
    return sa.literal_column(texts[kind], sa.BigInteger)


def open_database(where: str | URL | Engine | Database) -> Database:
    """A database by its SQLAlchemy URL, or around an engine of the user's.

    Raises DriverMissing, BadDatabase (a URL that means nothing, a server that is too old, SQLite without a file) and
    DatabaseUnavailable. Reads the version and the clock of the server, so it blocks for a moment.
    """
    if isinstance(where, Database):
        return where
    if isinstance(where, str | URL):
        _check_text(str(where))
    if not isinstance(where, str | URL | Engine) or getattr(where, "sync_engine", None) is not None:
        raise _no_sync_engine(f"{type(where).__name__} is")
    owned = not isinstance(where, Engine)
    engine = where if isinstance(where, Engine) else _engine(where)
    if engine.dialect.is_async:
        raise _no_sync_engine(f"The driver {engine.dialect.driver} is")
    if engine.dialect.name not in KINDS:
        raise BadDatabase(f"{engine.dialect.name} is no database that the outbox knows.")
    database = Database(engine, owned=owned)
    try:
        if database.kind == "sqlite" and database.path is None:
            raise BadDatabase(
                "An SQLite database in memory is seen by one connection only.",
                advice="Name a file: sqlite:///app.db",
            )
        _check_version(database)
        database.compare_clocks()
    except BaseException:
        database.close()
        raise
    return database


def _check_text(url: str) -> None:
    if "\0" in url or any("\ud800" <= one <= "\udfff" for one in url):
        raise BadDatabase(f"{url!a} is no database URL: it has characters that no name has.")


def _engine(where: str | URL) -> Engine:
    try:
        url = make_url(where)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")  # SQLAlchemy's own default is psycopg2
        elif url.drivername in ("mysql", "mariadb"):
            url = url.set(drivername=f"{url.drivername}+pymysql")
        backend = url.get_backend_name()
        if backend not in KINDS:
            raise BadDatabase(f"{backend} is no database that the outbox knows.")
        if url.get_dialect().is_async:
            raise _no_sync_engine(f"The driver of {url.drivername} is")
        options: dict[str, Any] = {} if backend == "sqlite" else {"isolation_level": "READ COMMITTED"}
        engine = sa.create_engine(url, **options)
    except ArgumentError as error:
        raise BadDatabase(f"{where!r} is no database URL: {error}.") from None
    except NoSuchModuleError as error:
        raise BadDatabase(f"SQLAlchemy has no driver of this name: {error}.") from None
    except ImportError as error:  # also of a driver that lacks its own C library
        raise _driver_missing(url, error) from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _no_sync_engine(what: str) -> BadDatabase:
    return BadDatabase(
        f"{what} not for blocking calls.",
        advice="Give a URL of its own, with a driver that blocks: postgresql+psycopg://, mariadb+pymysql://, sqlite:///."
        " Your AsyncEngine stays as it is: await connection.run_sync(lambda one: table.send(one, ...)).",
    )


def _driver_missing(url: URL, error: ImportError) -> OutboxError:
    name = (getattr(error, "name", None) or url.get_driver_name()).partition(".")[0]
    return DriverMissing(
        f"The Python package {name} is not installed, which {url.drivername} databases need.",
        advice=f"pip install '{_PACKAGES.get(name, name)}', or the usual drivers: pip install 'tickwheel[sql]'",
    )


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Readers do not block the writer (WAL), a locked database is waited for, and a commit is on the disk."""
    for pragma in (f"busy_timeout={BUSY_TIMEOUT_S * 1000}", "journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}").close()


def _read_committed(connection: Connection) -> Connection:
    return connection.execution_options(isolation_level="READ COMMITTED")


def _begin_immediate(connection: Connection) -> None:
    """Takes SQLite's write lock. Waits in steps of a millisecond, where SQLite's own steps grow to 100 ms: many
    short transactions of other processes would keep us waiting for half a second."""
    timeout_ms = int(connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one())
    deadline_s = time.monotonic() + timeout_ms / 1000
    connection.exec_driver_sql("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                return
            except DBAPIError as error:
                if not is_busy(error) or time.monotonic() >= deadline_s:
                    raise
            time.sleep(_LOCK_PAUSE_S * (0.5 + chance.random()))
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {timeout_ms}")


def _has_begun(connection: Connection) -> bool:
    """Whether the engine's own settings have begun the transaction already."""
    return bool(getattr(connection.connection.driver_connection, "in_transaction", False))


def commits_each_statement(connection: Connection) -> bool:
    """Whether there are no transactions on a connection, however that was asked for."""
    driver: Any = connection.connection.driver_connection
    level = connection.get_execution_options().get("isolation_level", _engine_level(connection.engine))
    if connection.dialect.name == "sqlite":
        if connection.in_transaction() and _has_begun(connection):
            return False
        # The driver begins none by itself, and SQLAlchemy, or an event of the user's, would have by now.
        begins_none = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
        return level == "AUTOCOMMIT" or (connection.in_transaction() and begins_none)
    if level == "AUTOCOMMIT":
        return True
    asked = getattr(driver, "get_autocommit", None)  # of MariaDB's and MySQL's drivers
    return bool(asked() if asked is not None else getattr(driver, "autocommit", False))


def _engine_level(engine: Engine) -> str | None:
    """What create_engine was given."""
    return getattr(engine.dialect, "_on_connect_isolation_level", None)


def _check_version(database: Database) -> None:
    with database.reading() as connection:
        dialect = connection.dialect
        version = tuple(dialect.server_version_info or ())
        if database.kind == "mariadb":
            product = "MariaDB" if getattr(dialect, "is_mariadb", False) else "MySQL"
        else:
            product = "SQLite" if database.kind == "sqlite" else "PostgreSQL"
    needed = _OLDEST[product]
    if tuple(part for part in version if isinstance(part, int)) < needed:
        have, need = (".".join(map(str, one)) for one in (version, needed))
        raise BadDatabase(f"{product} {have} is too old.", advice=f"Use {product} {need} or newer.")


# -- what the drivers raise --

# Serialization failure, deadlock, lock not available; cancelled, which statement_timeout does too.
_BUSY_POSTGRESQL: Final = ("40001", "40P01", "55P03", "57014")
# Lock wait timeout, deadlock, NOWAIT, record changed; interrupted, by a time limit of MariaDB's or MySQL's.
_BUSY_MARIADB: Final = (1205, 1213, 3572, 1020, 1317, 1969, 3024)
# Shut down, crashed, starting, connection errors; no disk, memory or connections left; read only, as a standby is.
_GONE_POSTGRESQL: Final = ("57P01", "57P02", "57P03", "08", "53", "25006")
# The same: from the client, from the server; disk or table full, no connections left for the user; read only.
_GONE_MARIADB: Final = (2002, 2003, 2006, 2013, 2055, 1053, 1927, 1040, 1021, 1114, 1203, 1226, 1290, 1836)
# No right to do it.
_DENIED: Final = (1044, 1045, 1142, 1143, 1227, "42501")
_DENIED_SQLITE: Final = ("readonly database", "no such table", "no such column")


def is_busy(error: DBAPIError) -> bool:
    """Whether other transactions were in the way, so that trying again makes sense."""
    code = error_code(error)
    return code in _BUSY_POSTGRESQL or code in _BUSY_MARIADB or "database is locked" in str(code)


def is_gone(error: DBAPIError) -> bool:
    """Whether the server, or the connection to it, went away."""
    if error.connection_invalidated:
        return True
    code = error_code(error)
    if isinstance(code, int):
        return code in _GONE_MARIADB
    if getattr(error.orig, "sqlstate", None) is not None:
        return str(code).startswith(_GONE_POSTGRESQL)
    if isinstance(error, OperationalError) and type(error.orig).__module__.partition(".")[0] == "psycopg":
        return True  # the server gives each of its errors a state; this one comes from the way there
    texts = (
        "connection failed",
        "unable to open database file",
        "connection is closed",
        "server closed the connection",
    )
    return any(text in str(code) for text in texts)


def is_denied(error: DBAPIError) -> bool:
    """Whether we may not do this at all, or tables are not what they were: whatever the rows are."""
    code = error_code(error)
    if str(code).startswith("P0"):  # PostgreSQL: what the user's own trigger says, which is of a row
        return False
    said = isinstance(code, str) and any(text in code for text in _DENIED_SQLITE)
    return isinstance(error, ProgrammingError) or code in _DENIED or said


def is_missing_table(error: DBAPIError) -> bool:
    """Whether a statement named a table that is not there."""
    code = error_code(error)
    return code in (1146, "42P01") or (isinstance(code, str) and "no such table" in code)


def error_code(error: DBAPIError) -> object:
    """MariaDB's and MySQL's number (their SQLSTATE says less), PostgreSQL's SQLSTATE, or the text of SQLite's error."""
    original = error.orig
    first = original.args[0] if original is not None and original.args else None
    return first if isinstance(first, int) else getattr(original, "sqlstate", None) or first


def typed_error(error: DBAPIError, name: str) -> OutboxError | None:
    """The typed error for one of the driver's; None if it is of no kind that can be waited out."""
    if is_busy(error):
        return DatabaseBusy(f"{name}: {_first_line(error)}.")
    if is_gone(error):
        gone = DatabaseUnavailable(f"{name}: {_first_line(error)}.")
        if "unable to open database file" in str(error.orig):
            gone.advice = "Check that the file's directory exists, and that you may write to it."
        return gone
    return None


def _first_line(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines() or [type(error.orig).__name__]
    return lines[0].rstrip(".")
