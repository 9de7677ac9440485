"""The tables of a key space: how they are made, and how those that are there are checked.

``<name>`` has the keys and values, ``<name>_inbox`` what has arrived for a key. ``<name>_deliverable`` and
``<name>_executable`` are the outboxes: a row belongs to the range that its sender's key is in, so that splitting a
range moves no rows. ``<name>_failed`` has operations that could not be executed, ``<name>_accounting`` the stored
accounting of prefixes, ``<name>_ranges`` which worker has which range, and ``<name>_workers`` which are alive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateTable

from tickwheel.client.checks import shown
from tickwheel.outbox.creation import COUNTING, INNODB, LONG_BYTES, TableCheck, one_at_a_time
from tickwheel.outbox.database import Database, now_ns
from tickwheel.outbox.errors import BadTable, TableMissing
from tickwheel.outbox.keys.encoding import MAX_KEY_BYTES
from tickwheel.outbox.watch import add_triggers

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.sql.dml import Insert
    from sqlalchemy.sql.elements import ColumnElement

Service = Literal["dispatcher", "executor"]
SERVICES: Final[tuple[Service, ...]] = ("dispatcher", "executor")

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_ADVICE: Final = "Let KeySpace.create() make the tables, under a name that no other table has."
_CHECK: Final = TableCheck(
    missing="{table} has no column {column}.",
    unfit="{table}.{column} is {found}, which does not hold {needed}.",
    required="{table} has a column {column} that must be given.",
    primary_key="{table} has the primary key ({found}).",
)

# Bytewise order everywhere: VARBINARY compares no characters, and pads nothing.
_KEY: Final = (
    sa.VARBINARY(MAX_KEY_BYTES)
    .with_variant(sa.BLOB(), "sqlite")
    .with_variant(postgresql.BYTEA(), "postgresql")
)
_NS: Final = sa.BigInteger()
_WORKER: Final = sa.String(100)


def check_name(name: object) -> None:
    """Raises BadTable for what cannot name a key space."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise BadTable(
            f"{shown(name)} cannot name a key space.",
            advice="Use at most 40 letters, digits and underscores, and no digit first.",
        )


class Tables:
    """The tables of one key space, and the SQL that differs between databases."""

    def __init__(self, database: Database, name: str) -> None:
        check_name(name)
        self.name = name
        self.kind = database.kind
        self.now: Callable[[], ColumnElement[int]] = lambda: now_ns(database.kind)
        """SQL: ns since 1970. All times here are the database's, so that processes agree on them."""
        self.metadata = sa.MetaData()
        self.data = self._table("", sa.Column("key", _KEY, primary_key=True), _column("value", LONG_BYTES))
        self.inbox = self._table(
            "_inbox",
            sa.Column("key", _KEY, primary_key=True),
            sa.Column("timestamp_ns", _NS, primary_key=True, autoincrement=False),
            sa.Column("sequence", _NS, primary_key=True, autoincrement=False),
            sa.Column("sender", _KEY, primary_key=True),
            _column("value", LONG_BYTES),
        )
        self.deliverable = self._outbox(
            "_deliverable", _column("recipient", _KEY), _column("value", LONG_BYTES)
        )
        self.executable = self._outbox("_executable", *_operation_columns())
        self.failed = self._table(
            "_failed",
            sa.Column("sequence", _NS, primary_key=True, autoincrement=False),
            _column("timestamp_ns", _NS),
            _column("sender", _KEY),
            *_operation_columns(),
            _column("failed_ns", _NS),
            _column("error_code", sa.String(40)),
            _column("error", sa.Text()),
        )
        self.accounting = self._table(
            "_accounting",
            sa.Column("prefix", _KEY, primary_key=True),
            _column("item_count", sa.BigInteger()),
            _column("size_bytes", sa.BigInteger()),
        )
        self.ranges = self._table(
            "_ranges",
            sa.Column("service", sa.String(20), primary_key=True),
            sa.Column("range_start", _KEY, primary_key=True),
            sa.Column("range_end", _KEY),
            sa.Column("owner", _WORKER),
            _column("epoch", sa.BigInteger()),
            _column("lease_until_ns", _NS),
        )
        self.workers = self._table(
            "_workers",
            sa.Column("service", sa.String(20), primary_key=True),
            sa.Column("worker", _WORKER, primary_key=True),
            _column("since_ns", _NS),
            _column("alive_until_ns", _NS),
        )

    def outbox(self, service: Service) -> sa.Table:
        """Where a service finds its work."""
        return self.deliverable if service == "dispatcher" else self.executable

    def _table(self, suffix: str, *parts: sa.schema.SchemaItem, **options: Any) -> sa.Table:
        return sa.Table(self.name + suffix, self.metadata, *parts, **(INNODB | options))

    def _outbox(self, suffix: str, *columns: sa.Column[Any]) -> sa.Table:
        return self._table(
            suffix,
            sa.Column("sequence", COUNTING, primary_key=True, autoincrement=True),
            _column("timestamp_ns", _NS),
            _column("sender", _KEY),
            *columns,
            # Constraints and no indexes: they come with the table, in one statement that may run twice.
            sa.UniqueConstraint("timestamp_ns", "sequence"),
            sa.UniqueConstraint("sender", "sequence"),
            # A number is given once only: SQLite would otherwise give that of the last row again once the row is
            # deleted, and a new message could get the place of one that lies in an inbox.
            sqlite_autoincrement=True,
        )

    # -- SQL that differs --

    def upsert(self, table: sa.Table, change: Callable[[Any], Mapping[str, Any]]) -> Insert:
        """INSERT of all columns, or where the primary key is taken, what ``change(new values)`` says."""
        if self.kind == "mariadb":
            into = mysql.insert(table)
            return into.on_duplicate_key_update(dict(change(into.inserted)))
        maker = postgresql.insert if self.kind == "postgresql" else sqlite.insert
        other = maker(table)
        return other.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=dict(change(other.excluded))
        )

    def insert_or_lock(self, table: sa.Table) -> Insert:
        """INSERT, or where the primary key is taken, a change of nothing, which locks the row."""
        first = next(column for column in table.columns if not column.primary_key)
        return self.upsert(table, lambda _new: {first.name: first})

    def size(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        """SQL: the length in bytes. PostgreSQL's length() would fetch the value from where long ones are kept."""
        function = sa.func.octet_length if self.kind == "postgresql" else sa.func.length
        return function(column, type_=sa.BigInteger)


def _column(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _operation_columns() -> Sequence[sa.Column[Any]]:
    return (
        _column("operation", sa.String(20)),
        _column("key", _KEY),
        sa.Column("end_key", _KEY),
        sa.Column("value", LONG_BYTES),
        sa.Column("amount", sa.BigInteger()),
        sa.Column("amount_bytes", sa.BigInteger()),
    )


def within(column: ColumnElement[bytes], start: bytes, end: bytes | None) -> ColumnElement[bool]:
    """SQL: whether a key is in a range."""
    conditions: list[ColumnElement[bool]] = [column >= start] if start else []
    if end is not None:
        conditions.append(column < end)
    return sa.and_(sa.true(), *conditions)


# -- making and checking --


def create_tables(connection: Connection, tables: Tables) -> None:
    """Makes what is missing."""
    with one_at_a_time(connection, tables.name):
        for table in tables.metadata.sorted_tables:
            connection.execute(CreateTable(table, if_not_exists=True))
    for outbox in (tables.deliverable, tables.executable):
        add_triggers(connection, outbox, updates=False)
    everything = {"range_start": b"", "range_end": None, "owner": None, "epoch": 0, "lease_until_ns": 0}
    connection.execute(
        tables.insert_or_lock(tables.ranges), [{"service": service, **everything} for service in SERVICES]
    )


def check_tables(connection: Connection, tables: Tables) -> None:
    """Raises TableMissing and BadTable unless all tables are there and are what is needed."""
    inspector = sa.inspect(connection)
    present = set(inspector.get_table_names())
    missing = [name for name in tables.metadata.tables if name not in present]
    if missing:
        raise TableMissing(
            f"There is no table {', '.join(sorted(missing))}.",
            advice="Make it with KeySpace.create() or `tickwheel outbox keys init`, or check name and database.",
        )
    for table in tables.metadata.tables.values():
        for fault in _CHECK.faults(inspector, table):
            raise BadTable(fault, advice=_ADVICE)
        if tables.kind == "mariadb":
            engine = inspector.get_table_options(table.name).get(f"{connection.dialect.name}_engine")
            if engine != "InnoDB":
                raise BadTable(f"{table.name} is stored by {engine}, not InnoDB.", advice=_ADVICE)
    found = set(
        connection.scalars(sa.select(tables.ranges.c.service).where(tables.ranges.c.range_start == b""))
    )
    if not found >= set(SERVICES):
        raise BadTable(f"{tables.ranges.name} has no first range.", advice=_ADVICE)
