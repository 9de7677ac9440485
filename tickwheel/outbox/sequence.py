"""In which order rows were written, where their ids do not say it, as random ids (UUIDs) do not.

SQLite numbers rows by itself. In other databases a table has a column ``tickwheel_seq`` for it, which counts up.
"""

from __future__ import annotations

import re
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import UserDefinedType

from tickwheel.outbox.database import Kind

SEQUENCE: Final = "tickwheel_seq"
"""The column that counts the rows."""
_ROWID: Final = "rowid"
_WITHOUT_ROWID: Final = re.compile(r"\bwithout\s+rowid\b[^)]*$", re.IGNORECASE)


class _Counting(UserDefinedType[int]):
    """MariaDB's, beside a primary key that does not count."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "BIGINT AUTO_INCREMENT"


def sequence_columns(kind: Kind, user_columns: list[sa.Column[Any]]) -> list[sa.Column[Any]]:
    """The column that a table of the user's columns needs; none where its ids, or its database, count up."""
    ids = [one for one in user_columns if one.name == "id"]
    if kind == "sqlite" or not ids or isinstance(ids[0].type, sa.Integer):
        return []
    if kind == "postgresql":
        return [sa.Column(SEQUENCE, sa.BigInteger, sa.Identity(), nullable=False)]
    return [sa.Column(SEQUENCE, _Counting(), nullable=False, unique=True)]


def sequence_of(kind: Kind, connection: Connection, table: sa.Table) -> ColumnElement[Any] | None:
    """What orders the rows of a table as they were written. None: their ids do, or nothing does."""
    if SEQUENCE in table.c:
        return table.c[SEQUENCE]
    if kind != "sqlite" or isinstance(table.c.id.type, sa.Integer) or _ROWID in table.c:
        return None
    schema = "" if table.schema is None else f'"{table.schema}".'
    made = connection.execute(
        sa.text(f"select sql from {schema}sqlite_master where type = 'table' and name = :name"),
        {"name": table.name},
    ).scalar()
    if made is None or _WITHOUT_ROWID.search(made):
        return None
    return sa.literal_column(_ROWID, sa.BigInteger)
