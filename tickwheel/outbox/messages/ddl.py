"""The statements that make a message table, as text: for migrations, and for programs that may not change tables.

They are what ``MessageTable.create`` executes, from the same definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

import sqlalchemy as sa
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.mock import MockConnection

from tickwheel.outbox.database import Kind
from tickwheel.outbox.messages.schema import comment_statements, definition, new_comment
from tickwheel.outbox.messages.settings import MessageSettings
from tickwheel.outbox.watch import notify_statements
from tickwheel.protocol.errors import BadArgument

DIALECTS: Final = (*get_args(Kind), "mysql")


def ddl(
    dialect: str,
    name: str,
    columns: Sequence[sa.Column[Any]] | None = None,
    settings: MessageSettings | None = None,
    *,
    adopt: bool = False,
) -> list[str]:
    """What ``MessageTable(..., name).create(columns, settings)`` executes, one statement each, without a database.

    ``dialect``: ``sqlite``, ``postgresql``, ``mysql`` or ``mariadb``. ``adopt``: what ``adopt(settings)`` executes, for
    a table that is there. Raises BadTable, BadArgument.
    """
    if dialect not in DIALECTS:
        raise BadArgument(f"{dialect!r} is no dialect.", advice=f"Use one of {', '.join(sorted(DIALECTS))}.")
    kind: Kind = "mariadb" if dialect == "mysql" else dialect  # type: ignore[assignment]
    chosen = settings or MessageSettings()
    written = _dialect(dialect)
    made: list[str] = []

    def write(statement: Any, *_: Any, **__: Any) -> None:
        options = {} if isinstance(statement, sa.schema.ExecutableDDLElement) else {"literal_binds": True}
        made.append(str(statement.compile(dialect=written, compile_kwargs=options)).strip())

    if adopt:
        table = sa.Table(name, sa.MetaData())
        if kind != "sqlite":
            write(new_comment(name, chosen))
    else:
        table = definition(kind, name, chosen, columns)
        table.create(MockConnection(written, write), checkfirst=False)
        indexes = sorted(
            one for one in made if one.startswith("CREATE INDEX")
        )  # those of a table have no order
        rest = [one for one in made if one not in indexes]
        first = min((made.index(one) for one in indexes), default=len(made))
        made[:] = [*rest[:first], *indexes, *rest[first:]]
    if kind == "sqlite":
        for statement in comment_statements(name, chosen):
            write(statement)
    if kind == "postgresql":
        made += [one.strip() for one in notify_statements(table, "time_next")]
    return made


def _dialect(name: str) -> Dialect:
    """Without a driver: those double the percent signs that they would take for parameters."""
    made: Any = {
        "sqlite": SQLiteDialect,
        "postgresql": PGDialect,
        "mysql": MySQLDialect,
        "mariadb": MariaDBDialect,
    }[name]
    dialect: Dialect = made(paramstyle="named")
    if isinstance(dialect, PGDialect):
        dialect._backslash_escapes = False  # as all servers of today
    return dialect
