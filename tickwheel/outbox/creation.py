"""Tables of Tickwheel's own: made in turn by processes that start together, and checked where they are there.

"If not exists" is not enough. PostgreSQL's own catalogue refuses the second of two transactions that make a name at
once, and MariaDB commits a table before its indexes are there, so that a second process would make them too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection, Inspector

from tickwheel.outbox.database import BUSY_TIMEOUT_S, KINDS, Database

ONE_AT_A_TIME: Final = "pg_advisory_xact_lock(hashtext('tickwheel_notify'))"
"""SQL of PostgreSQL: transactions that define tables, functions and triggers take turns."""

COUNTING: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""A primary key that counts up: in SQLite only an INTEGER does."""
LONG_BYTES: Final = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
INNODB: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
"""Options of a table: a server may make tables without transactions by default."""


@dataclass(frozen=True, kw_only=True)
class TableCheck:
    """How tables of a kind are compared with those that are there: templates for what does not fit."""

    missing: str
    unfit: str
    """The type of ``{column}`` is ``{found}``, which does not hold ``{needed}``."""
    required: str
    """A column of somebody else's has to be given: it is not null, and has no default."""
    primary_key: str
    names: Mapping[str, str] = field(default_factory=dict)
    """Other words for ``{needed}`` than those of ``_family``."""

    def faults(self, inspector: Inspector, table: sa.Table) -> Iterator[str]:
        """What the table of this name lacks, or has, so that it cannot be used as ``table``."""
        there = {column["name"]: column for column in inspector.get_columns(table.name)}
        for column in table.columns:
            needed = _family(column.type)
            if column.name not in there:
                yield self.missing.format(table=table.name, column=column.name)
            elif _family(found := there[column.name]["type"]) != needed:
                named = {"table": table.name, "column": column.name, "found": found}
                yield self.unfit.format(**named, needed=self.names.get(needed, needed))
        for name, other in there.items():
            is_filled = other["nullable"] or other.get("default") is not None or other.get("computed")
            if name not in table.c and not is_filled:
                yield self.required.format(table=table.name, column=name)
        key = inspector.get_pk_constraint(table.name)["constrained_columns"]
        if key != [column.name for column in table.primary_key.columns]:
            yield self.primary_key.format(table=table.name, found=", ".join(key))


def _family(kind: sa.types.TypeEngine[Any]) -> str:
    """What columns of a type hold: bytes, integers, text, or the type's name. SQLite shows what was declared."""
    if isinstance(kind, sa.types._Binary):
        return "bytes"
    if isinstance(kind, sa.Integer):
        return "integers"
    return "text" if isinstance(kind, sa.String) else str(kind)


@contextmanager
def one_at_a_time(connection: Connection, name: str) -> Iterator[None]:
    """While the table ``name`` is made, in a transaction that writes. SQLite has one of those at a time anyhow."""
    kind = KINDS[connection.dialect.name]
    if kind == "postgresql":
        connection.exec_driver_sql(f"select {ONE_AT_A_TIME}")  # until the transaction ends
    if kind != "mariadb":
        yield
        return
    # The server's locks know no databases, and their names have up to 64 characters.
    lock = sa.literal(f"tickwheel.{hashlib.sha256(name.encode()).hexdigest()[:40]}")
    connection.execute(sa.select(sa.func.get_lock(lock, BUSY_TIMEOUT_S)))
    try:
        yield
    finally:
        connection.execute(sa.select(sa.func.release_lock(lock)))


def make_table(database: Database, table: sa.Table) -> None:
    """Makes a table with its indexes, unless it is there."""

    def work(connection: Connection) -> None:
        with one_at_a_time(connection, table.name):
            table.create(connection, checkfirst=True)

    database.run(work)
