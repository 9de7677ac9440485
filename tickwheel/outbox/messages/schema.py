"""The table itself: making one, taking one that is there, and noticing that it was changed.

The settings are the table's comment, as in Vitess; SQLite knows no comments, so there they are a row of
``tickwheel_message_tables``.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Connection
from sqlalchemy.exc import NoSuchTableError, ProgrammingError
from sqlalchemy.sql.elements import ColumnElement

from tickwheel.outbox.creation import COUNTING, INNODB, one_at_a_time
from tickwheel.outbox.database import Database, Kind, now_ns
from tickwheel.outbox.errors import BadTable, TableMissing
from tickwheel.outbox.messages.columns import REQUIRED, check_types, check_widths, narrow_columns
from tickwheel.outbox.messages.settings import MessageSettings, parse_comment
from tickwheel.outbox.sequence import SEQUENCE, sequence_columns, sequence_of
from tickwheel.outbox.watch import add_triggers

logger = logging.getLogger("tickwheel.outbox")
_OWN: Final = frozenset((*REQUIRED[1:], SEQUENCE))
_COMMENTS: Final = sa.Table(
    "tickwheel_message_tables",
    sa.MetaData(),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("comment", sa.Text, nullable=False),
)
_CHECK: Final = "has_a_time"
_LONGEST_NAME: Final = 63
_VACUUM_EARLY: Final = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.02}
"""Every delivery and every ack updates a row: PostgreSQL's defaults let such a table grow fivefold first."""


@dataclass(frozen=True)
class Schema:
    """A message table as it is now. ``columns``: those that are streamed, ``id`` first. ``version``: compares unequal
    after any change of the table or its settings. ``is_strict``: the table itself refuses messages without a time and
    without a priority."""

    table: sa.Table
    settings: MessageSettings
    columns: tuple[str, ...]
    version: tuple[Any, ...]
    is_strict: bool
    sequence: ColumnElement[Any] | None = None
    """What orders messages of one time as they were written; None: their ids."""


def create(database: Database, connection: Connection, table: sa.Table) -> None:
    """Makes a ``definition``, its indexes and what notifies of its changes; what is there already stays as it is."""
    with one_at_a_time(connection, table.name):
        _create(database, connection, table)


def _create(database: Database, connection: Connection, table: sa.Table) -> None:
    name = table.name
    inspector = sa.inspect(connection)
    if not inspector.has_table(name):
        table.create(connection)
        if database.kind == "sqlite":
            # A table of this name may have been dropped before.
            set_comment(database, connection, name, parse_comment(table.comment, name))
    elif database.kind == "sqlite" and _comment(database, connection, name) is None:
        raise BadTable(f"There is a table {name} already, which is no message table.")
    make_notify(connection, load(database, connection, name))


def adopt(database: Database, connection: Connection, name: str, settings: MessageSettings | None) -> None:
    """Makes a table of the user's own a message table: checks it, and writes settings where they are given."""
    table = reflected(connection, name)
    _check_columns(database.kind, table)
    check_widths(database.kind, table)
    if settings is not None:
        set_comment(database, connection, name, settings)
    add_triggers(connection, load(database, connection, name).table, "time_next")


def make_notify(connection: Connection, schema: Schema) -> None:
    """Makes sure that changes of the table wake its hubs, also when it was made by plain SQL. Raises BadTable."""
    try:
        add_triggers(connection, schema.table, "time_next")
    except ProgrammingError as error:
        raise BadTable(
            f"{schema.table.name} has no triggers that notify of its changes, and they cannot be made: {error.orig}",
            advice="Let the owner of the table run `tickwheel outbox init` once.",
        ) from error


def set_comment(database: Database, connection: Connection, name: str, settings: MessageSettings) -> None:
    """Replaces the settings of a table; they count at once for all who stream it. Raises BadTable before anything is
    changed: MariaDB would not roll it back."""
    table = reflected(connection, name)
    _check_columns(database.kind, table)
    _streamed(table, settings)
    if database.kind != "sqlite":
        connection.execute(new_comment(name, settings))
        return
    for statement in comment_statements(name, settings):
        connection.execute(statement)


def new_comment(name: str, settings: MessageSettings) -> sa.schema.SetTableComment:
    """The statement that writes settings, where tables have comments."""
    return sa.schema.SetTableComment(sa.Table(name, sa.MetaData(), comment=settings.comment()))


def comment_statements(name: str, settings: MessageSettings) -> list[sa.Executable]:
    """Those that do so in SQLite."""
    return [
        sa.schema.CreateTable(_COMMENTS, if_not_exists=True),
        sa.delete(_COMMENTS).where(_COMMENTS.c.name == name),
        sa.insert(_COMMENTS).values(name=name, comment=settings.comment()),
    ]


def drop(database: Database, connection: Connection, name: str) -> None:
    """Drops a message table, with everything in it."""
    load(database, connection, name).table.drop(connection)
    if database.kind == "sqlite":
        connection.execute(sa.delete(_COMMENTS).where(_COMMENTS.c.name == name))


def message_tables(database: Database, connection: Connection) -> list[str]:
    """The names of all message tables of the database."""
    inspector = sa.inspect(connection)
    if database.kind == "sqlite":
        if not inspector.has_table(_COMMENTS.name):
            return []
        names = connection.execute(sa.select(_COMMENTS.c.name).order_by(_COMMENTS.c.name)).scalars()
        return [name for name in names if inspector.has_table(name)]
    comments = inspector.get_multi_table_comment()
    return sorted(
        name
        for (_, name), found in comments.items()
        if (found.get("text") or "").partition(",")[0].strip() in ("tickwheel_message", "vitess_message")
    )


def load(database: Database, connection: Connection, name: str) -> Schema:
    """The table as it is now. Raises TableMissing, and BadTable when it is no message table."""
    version = current_version(database, connection, name)
    if version is None:
        raise TableMissing(f"There is no table {name}.")
    try:
        settings = parse_comment(_comment(database, connection, name), name)
    except NoSuchTableError:  # dropped in between
        raise TableMissing(f"There is no table {name}.") from None
    table = reflected(connection, name)
    _check_columns(database.kind, table)
    for narrow in narrow_columns(database.kind, table):
        logger.warning("%s: a message table with this column would not be adopted: %s", name, narrow)
    checks = {one["name"] for one in sa.inspect(connection).get_check_constraints(name)}
    is_strict = _named(name, _CHECK) in checks and not table.c.priority.nullable
    sequence = sequence_of(database.kind, connection, table)
    return Schema(table, settings, _streamed(table, settings), version, is_strict, sequence)


_JSON_OF_MARIADB: Final = re.compile(r"json_valid\(`(.+)`\)?")
"""What its type JSON is: a text, and a check."""
_CHECKS_OF_MARIADB: Final = sa.text(
    "select check_clause from information_schema.check_constraints "
    "where constraint_schema = coalesce(:schema, database()) and table_name = :name"
)


def reflected(connection: Connection, name: str, schema: str | None = None) -> sa.Table:
    """A table as the database has it. Raises TableMissing."""
    try:
        table = sa.Table(name, sa.MetaData(), schema=schema, autoload_with=connection)
    except NoSuchTableError:
        raise TableMissing(f"There is no table {name}.") from None
    if connection.dialect.name in ("mysql", "mariadb") and getattr(connection.dialect, "is_mariadb", False):
        # SQLAlchemy tells of checks of tables only, and MariaDB's of a type JSON is one of a column.
        for (clause,) in connection.execute(_CHECKS_OF_MARIADB, {"name": name, "schema": schema}):
            found = _JSON_OF_MARIADB.fullmatch(clause.strip("()"))
            if found is not None and found[1] in table.c:
                table.c[found[1]].type = sa.JSON()
    return table


def current_version(database: Database, connection: Connection, name: str) -> tuple[Any, ...] | None:
    """What changes with the table and its settings: one statement that is cheap to repeat. None: no such table."""
    row = connection.execute(sa.text(_VERSIONS[database.kind]), {"name": name}).one_or_none()
    if row is None or row[0] is None:
        return None
    comment = _comment(database, connection, name) if database.kind == "sqlite" else None
    return (*row, comment)


_VERSIONS: Final[dict[Kind, str]] = {
    "sqlite": "select sql from sqlite_master where type = 'table' and name = :name",
    "postgresql": (
        "select c.oid, obj_description(c.oid, 'pg_class'),"
        " (select string_agg(concat_ws(' ', attname, atttypid, attnotnull), ',' order by attnum)"
        " from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped)"
        " from pg_class c where c.oid = to_regclass(quote_ident(:name))"
    ),
    "mariadb": (
        "select table_comment, create_time, (select group_concat(concat_ws(' ', column_name, column_type, is_nullable)"
        " order by ordinal_position) from information_schema.columns where table_schema = database()"
        " and table_name = :name) from information_schema.tables where table_schema = database() and table_name = :name"
    ),
}


def _comment(database: Database, connection: Connection, name: str) -> str | None:
    if database.kind != "sqlite":
        text = sa.inspect(connection).get_table_comment(name)["text"]
        return None if text is None else str(text)
    if not sa.inspect(connection).has_table(_COMMENTS.name):
        return None
    return connection.execute(sa.select(_COMMENTS.c.comment).where(_COMMENTS.c.name == name)).scalar()


def definition(
    kind: Kind, name: str, settings: MessageSettings, columns: Sequence[sa.Column[Any]] | None
) -> sa.Table:
    """The table that ``create`` makes. Raises BadTable."""
    user_columns = [sa.Column("message", _LONG_TEXT)] if columns is None else [one._copy() for one in columns]
    taken = {one.name for one in user_columns} & _OWN
    if taken:
        raise BadTable(f"The columns {', '.join(sorted(taken))} are the message table's own.")
    own_id = (
        [] if any(one.name == "id" for one in user_columns) else [sa.Column("id", COUNTING, primary_key=True)]
    )
    counting = sequence_columns(kind, user_columns)
    due_now = sa.text(f"({now_ns(kind)})")
    table = sa.Table(
        name,
        sa.MetaData(),
        *own_id,
        sa.Column("priority", sa.SmallInteger, nullable=False, server_default="50"),
        sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("time_next", sa.BigInteger, server_default=due_now),
        sa.Column("time_acked", sa.BigInteger),
        *counting,
        *user_columns,
        # A message without a time would never be delivered, without any error.
        sa.CheckConstraint("(time_acked is null) <> (time_next is null)", name=_named(name, _CHECK)),
        comment=settings.comment(),
        postgresql_with=_VACUUM_EARLY,
        sqlite_autoincrement=bool(own_id),  # an id is never given twice
        **INNODB,
    )
    open_only = sa.text("time_acked is null")
    pending = (table.c.priority, table.c.time_next, *(counting or [table.c.id]))
    if kind == "mariadb":
        sa.Index(_named(name, "poller"), table.c.time_acked, *pending)
    else:
        sa.Index(_named(name, "poller"), *pending, postgresql_where=open_only, sqlite_where=open_only)
        acked = sa.text("time_acked is not null")
        sa.Index(_named(name, "acked"), table.c.time_acked, postgresql_where=acked, sqlite_where=acked)
    return table


def _named(table: str, what: str) -> str:
    """The name of an index or a constraint, which must not be longer than that of a table, and readable in SQLite."""
    name = f"{table}_{what}"
    if len(name.encode()) <= _LONGEST_NAME and '"' not in name:
        return name
    return f"tickwheel_{hashlib.sha256(table.encode()).hexdigest()[:32]}_{what}"


_LONG_TEXT: Final = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def _check_columns(kind: Kind, table: sa.Table) -> None:
    missing = [name for name in REQUIRED if name not in table.c]
    if missing:
        raise BadTable(f"{table.name} lacks the columns {', '.join(missing)}, which a message table needs.")
    check_types(kind, table)
    if not _is_unique(table, "id"):
        raise BadTable(
            f"{table.name}.id is not unique.", advice="Make it the primary key, or give it a unique index."
        )


def _is_unique(table: sa.Table, column: str) -> bool:
    keys = [tuple(one.name for one in table.primary_key.columns)]
    keys += [tuple(one.name for one in index.columns) for index in table.indexes if index.unique]
    keys += [
        tuple(c.name for c in one.columns)
        for one in table.constraints
        if isinstance(one, sa.UniqueConstraint)
    ]
    return (column,) in keys


def _streamed(table: sa.Table, settings: MessageSettings) -> tuple[str, ...]:
    unknown = [name for name in settings.columns if name not in table.c]
    if unknown:
        raise BadTable(f"vt_message_cols names {', '.join(unknown)}, which {table.name} does not have.")
    if settings.columns:
        return tuple(settings.columns)
    return ("id", *(str(one.name) for one in table.columns if one.name not in (*REQUIRED, SEQUENCE)))
