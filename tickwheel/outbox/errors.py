"""What can go wrong between Tickwheel and the user's database, as typed errors."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from tickwheel.protocol.errors import TickwheelError


class OutboxError(TickwheelError):
    """Something went wrong between Tickwheel and a database."""

    code = "outbox"
    advice = "docs/how-to/outbox.md says what the outbox expects of a database."


class SqlMissing(OutboxError, ImportError):
    """SQLAlchemy is not installed."""

    code = "extra_missing"
    advice = "Install it: pip install 'tickwheel[sql]'."


class DriverMissing(OutboxError):
    """The Python package that talks to this kind of database is not installed."""

    code = "driver_missing"
    advice = "pip install 'tickwheel[sql]'"


class BadDatabase(OutboxError):
    """A database URL cannot be used."""

    code = "bad_database"
    advice = "Use sqlite:///app.db, postgresql+psycopg://user:password@host/name or mariadb+pymysql://user:password@host/name."


class DatabaseUnavailable(OutboxError):
    """The database does not answer, broke the connection or cannot write; what was not committed did not happen."""

    code = "database_unavailable"
    advice = "Check that the server runs and that the URL is right, and try again."
    retryable = True


class DatabaseBusy(OutboxError):
    """Other transactions held locks for too long, or a statement took longer than it may; nothing was changed."""

    code = "database_busy"
    advice = "Try again; if it goes on, look for transactions that stay open."
    retryable = True


AWAY: Final = (DatabaseUnavailable, DatabaseBusy)
"""What can be waited out."""


class BadTable(OutboxError):
    """A table is not what the outbox needs; nothing was changed."""

    code = "bad_table"
    advice = "docs/how-to/outbox-message-tables.md lists the columns and the keys of the comment."


class TableMissing(OutboxError):
    """There is no such table."""

    code = "table_missing"
    advice = "Create it with `tickwheel outbox init`, or check the name and the database."


class NotInTransaction(OutboxError):
    """This is only possible inside a transaction, whose commit makes it count."""

    code = "not_in_transaction"
    advice = "Use `with engine.begin() as connection:` and pass the connection."


class AlreadyInTransaction(OutboxError):
    """The connection is in a transaction, which the code that began it has to commit."""

    code = "already_in_transaction"
    advice = "Pass a connection on which nothing was executed; or use inbox.mark, commit, and then ack the message."


class LeaseLost(OutboxError):
    """A message, or a range of keys, is not held any more: another consumer or worker took it over, or it is done."""

    code = "lease_lost"
    advice = (
        "Roll back: the new holder does the work. Make the lease longer, or extend it, if this is frequent."
    )

    ids: Sequence[Hashable]
    """What was lost."""

    def __init__(
        self, message: str | None = None, *, advice: str | None = None, ids: Sequence[Hashable] = ()
    ) -> None:
        super().__init__(message, advice=advice)
        self.ids = ids
