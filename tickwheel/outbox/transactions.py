"""The caller's transaction, however it is passed.

SQLAlchemy's Connection; a Session, whose pending changes are flushed first; and for message tables also a connection of
the driver's own, such as Django's, which is borrowed: here it is neither committed, nor rolled back, nor closed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import InvalidRequestError, UnboundExecutionError
from sqlalchemy.pool import StaticPool

from tickwheel.outbox.database import Database, commits_each_statement
from tickwheel.outbox.errors import NotInTransaction
from tickwheel.protocol.errors import BadArgument

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session


class DriverConnection(Protocol):
    """A connection as Python's database drivers have it, and Django's around one."""

    def cursor(self) -> Any:
        """A cursor."""

    def commit(self) -> Any:
        """Commits."""

    def rollback(self) -> Any:
        """Rolls back."""


Transaction: TypeAlias = "Connection | Session | scoped_session[Any]"
"""What belongs to the caller, who commits it."""
AnyTransaction: TypeAlias = "Transaction | DriverConnection"
"""The same, or a connection of the driver's own."""


def require_transaction(where: Transaction) -> Connection:
    """The connection in whose transaction a change is to be made. Raises NotInTransaction unless a commit of the
    caller's will make it count; and BadArgument."""
    connection = _connection_of(where)
    if not connection.in_transaction():
        raise NotInTransaction("The connection is in no transaction.")
    if commits_each_statement(connection):
        raise NotInTransaction("The connection commits each statement by itself.")
    return connection


@contextmanager
def joined(where: AnyTransaction, database: Database) -> Iterator[Connection]:
    """``require_transaction``, also for connections of the driver's own, for changes of what is in ``database``."""
    raw = _driver_connection(where)
    if raw is None:
        connection = require_transaction(where)  # type: ignore[arg-type]
        _check_same_kind(connection, database)
        yield connection
        return
    _check_same_driver(raw, database)
    own = database.engine
    # The table's own dialect: a new one would introduce itself to the server first, and end that with a rollback.
    pool = StaticPool(lambda: _Borrowed(raw), dialect=own.dialect)
    with Engine(pool, own.dialect, own.url).connect() as connection, connection.begin():
        yield require_transaction(connection)


def _connection_of(where: object) -> Connection:
    if isinstance(where, Connection):
        return where
    orm = sys.modules.get("sqlalchemy.orm")  # a Session exists only after its import
    if orm is not None and isinstance(where, orm.scoped_session):
        where = where()
    if orm is not None and isinstance(where, orm.Session):
        return _connection_of_session(where)
    if hasattr(where, "run_sync"):
        advice = (
            "await it.run_sync(lambda one: table.send(one, ...)): what run_sync passes on is the right thing."
        )
    else:
        advice = "Pass SQLAlchemy's Connection, or a Session, with whose commit it is to count."
    raise BadArgument(f"The connection is a {type(where).__name__}.", advice=advice)


def _connection_of_session(session: Session) -> Connection:
    """What is pending is flushed first, as before a query: the message may refer to it."""
    try:
        if session.autoflush and not getattr(session, "_flushing", False):
            session.flush()
        return session.connection()
    except UnboundExecutionError as error:
        raise BadArgument(
            "The session has several engines, or none.",
            advice="Pass the connection that you mean: session.connection(bind_arguments={'mapper': Order})",
        ) from error
    except InvalidRequestError as error:  # it failed, and was not rolled back; or it begins nothing by itself
        raise NotInTransaction(
            f"The session has no transaction that could be committed: {error}",
            advice="Use `with Session(engine) as session, session.begin():`, and roll back after an error.",
        ) from error


def _check_same_kind(connection: Connection, database: Database) -> None:
    theirs, ours = connection.dialect.name, database.engine.dialect.name
    if theirs != ours and {theirs, ours} != {"mysql", "mariadb"}:
        raise BadArgument(
            f"The connection is to {theirs}, and the table is in {ours}.",
            advice="Pass a connection to the table's own database.",
        )


# -- connections of the driver's own --


class _Borrowed:
    """A connection of the caller's, who alone ends its transaction."""

    def __init__(self, raw: DriverConnection) -> None:
        self._raw = raw

    def commit(self) -> None:
        """Not ours to do."""

    def rollback(self) -> None:
        """Not ours to do."""

    def close(self) -> None:
        """Not ours to do."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def _driver_connection(where: Any) -> DriverConnection | None:
    """The driver's own connection; None if it is something else. Raises NotInTransaction for what Django says."""
    if hasattr(where, "ensure_connection"):  # Django's connection, which has the driver's inside
        if not where.in_atomic_block:
            raise NotInTransaction(
                "Django is in no transaction.", advice="Send inside of `with transaction.atomic():`."
            )
        where = where.connection
    methods = ("cursor", "commit", "rollback")
    if isinstance(where, Connection) or not all(callable(getattr(where, one, None)) for one in methods):
        return None
    driver: DriverConnection = where
    return driver


def _check_same_driver(raw: DriverConnection, database: Database) -> None:
    wanted = getattr(database.engine.dialect.dbapi, "__name__", "")
    homes = [one.__module__.partition(".")[0] for one in type(raw).__mro__]
    if wanted.partition(".")[0] not in homes:
        raise BadArgument(
            f"The connection is one of {homes[0]}, and the table was opened with {wanted}.",
            advice="Open the table with a URL that names the same driver, such as postgresql+psycopg2://.",
        )
