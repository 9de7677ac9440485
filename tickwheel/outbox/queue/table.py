"""The table of a queue: made where it is missing, checked where it exists.

| column | |
|---|---|
| ``id`` | the order in which messages were put; never used twice |
| ``body`` | |
| ``enqueued_ns`` | when it was put; all times are ns since 1970 by the database's clock |
| ``epoch`` | how often it was claimed; with the id it tells this claim from all others |
| ``lease_until_ns`` | 0: free. Otherwise the earliest time of the next claim |
| ``owner`` | the consumer that holds it; NULL: none. NULL with a ``lease_until_ns``: it waits for its retry |

Claims look for free messages by id, and for leases that end, and find both in an index: neither reads past what others
hold. PostgreSQL and SQLite have an index for each, MariaDB one for both.
"""

from __future__ import annotations

import re
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tickwheel.client.checks import shown
from tickwheel.outbox.creation import COUNTING, INNODB, LONG_BYTES, TableCheck, one_at_a_time
from tickwheel.outbox.database import Database
from tickwheel.outbox.errors import BadTable, TableMissing
from tickwheel.outbox.watch import add_triggers
from tickwheel.protocol.errors import BadArgument

MAX_NAME_BYTES: Final = 48
"""What leaves room for the names of indexes within the 63 bytes of PostgreSQL."""
MAX_OWNER_CHARACTERS: Final = 255

_PAGE: Final = "docs/how-to/outbox-queue.md lists the columns; queue.create() makes a table of another name."
_CHECK: Final = TableCheck(
    missing="{column} is missing",
    unfit="{column} is not {needed}",
    required="{column} must have a default, because the queue does not know it",
    primary_key="the primary key is not id",
    names={"integers": "a 64-bit integer", "bytes": "binary"},
)


def check_name(name: object) -> None:
    """Raises BadArgument for what cannot name a queue."""
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name) or len(name.encode()) > MAX_NAME_BYTES:
        raise BadArgument(
            f"{shown(name)} cannot be the name of a queue.",
            advice=f"Use 1 to {MAX_NAME_BYTES} bytes of letters, digits and underscores.",
        )


def queue_table(name: str, kind: str) -> sa.Table:
    """The table as SQLAlchemy sees it. Raises BadArgument for a name that cannot be one."""
    check_name(name)
    table = sa.Table(
        name,
        sa.MetaData(),
        sa.Column("id", COUNTING, primary_key=True),
        sa.Column("body", LONG_BYTES, nullable=False),
        sa.Column("enqueued_ns", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("lease_until_ns", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("owner", sa.String(MAX_OWNER_CHARACTERS)),
        sqlite_autoincrement=True,
        mysql_charset="utf8mb4",
        mariadb_charset="utf8mb4",
        **INNODB,
    )
    lease = table.c.lease_until_ns
    if kind == "mariadb":
        sa.Index(lease_index(name), lease, table.c.id)
    else:
        free, leased = lease == sa.literal_column("0"), lease > sa.literal_column("0")
        sa.Index(f"{name}_free", table.c.id, postgresql_where=free, sqlite_where=free)
        sa.Index(lease_index(name), lease, postgresql_where=leased, sqlite_where=leased)
    return table


def lease_index(name: str) -> str:
    """The name of the index by the ends of leases."""
    return f"{name}_lease"


def create(database: Database, table: sa.Table) -> None:
    """Makes what is missing of the table, its indexes and, on PostgreSQL, its triggers. Raises BadTable."""

    def work(connection: Connection) -> None:
        with one_at_a_time(connection, table.name):
            table.create(connection, checkfirst=True)
            check(connection, table)
            present = {index["name"] for index in sa.inspect(connection).get_indexes(table.name)}
            for index in table.indexes:
                if index.name not in present:
                    index.create(connection)
        # Also of updates: others learn of the leases that are given, and of messages that are given back.
        add_triggers(connection, table, "lease_until_ns")

    database.run(work)


def check(connection: Connection, table: sa.Table) -> None:
    """Raises TableMissing, or BadTable when the table has other columns than a queue has."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(table.name):
        raise missing(table.name)
    # What is missing is said first.
    wrong = sorted(_CHECK.faults(inspector, table), key=lambda fault: not fault.endswith("missing"))
    if wrong:
        raise BadTable(f"The table {table.name} is no queue: {', '.join(wrong)}.", advice=_PAGE)


def missing(name: str) -> TableMissing:
    """The error for a table that is not there."""
    return TableMissing(
        f"There is no table {name}.",
        advice="Make it with queue.create() or `tickwheel outbox queue init`, or check name and database.",
    )
