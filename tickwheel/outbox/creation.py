"""Making tables: several processes that start together make the same ones, and take turns.

"If not exists" is not enough. PostgreSQL's own catalogue refuses the second of two transactions that make a name at
once, and MariaDB commits a table before its indexes are there, so that a second process would make them too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tickwheel.outbox.database import BUSY_TIMEOUT_S, Kind

ONE_AT_A_TIME: Final = "pg_advisory_xact_lock(hashtext('tickwheel_notify'))"
"""SQL of PostgreSQL: transactions that define tables, functions and triggers take turns."""


def family(kind: sa.types.TypeEngine[Any]) -> str:
    """What columns of a type hold: bytes, integers, text, or the type's name. SQLite shows what was declared."""
    if isinstance(kind, sa.types._Binary):
        return "bytes"
    if isinstance(kind, sa.Integer):
        return "integers"
    return "text" if isinstance(kind, sa.String) else str(kind)


@contextmanager
def one_at_a_time(connection: Connection, kind: Kind, name: str) -> Iterator[None]:
    """While the table ``name`` is made, in a transaction that writes. SQLite has one of those at a time anyhow."""
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
