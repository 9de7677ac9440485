"""How far a relay is, in the user's database: one row a table, changed by the commit that marks messages as sent."""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from tickwheel.outbox.creation import make_table

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from tickwheel.outbox.database import Database

TABLE_NAME = "tickwheel_relay"


class Turn(NamedTuple):
    """The right to send the next batch. ``batch`` is the number of the last one that was committed. ``has_gaps``: the
    database has forgotten commits, so that rows which it takes for unsent may be in the broker."""

    relay_id: str
    batch: int
    has_gaps: bool = False


class Ledger:
    """The row of one message table in ``tickwheel_relay``. The relay that has it locked is the active one."""

    def __init__(self, database: Database, source: sa.Table) -> None:
        self._database = database
        self._source = source.fullname
        # A hash, because databases differ in which texts they take for equal.
        self._key = hashlib.sha256(self._source.encode()).hexdigest()
        self._table = sa.Table(
            TABLE_NAME,
            sa.MetaData(),
            sa.Column("source_hash", sa.String(64), primary_key=True),
            sa.Column("source", sa.Text, nullable=False),
            sa.Column("relay_id", sa.String(32), nullable=False),
            sa.Column("batch", sa.BigInteger, nullable=False),
            sa.Column("has_gaps", sa.SmallInteger, nullable=False),
            schema=source.schema,
        )

    def create(self) -> None:
        """Creates the table, and the row with an id that no other relay has; keeps what is there."""
        if not self._exists():
            make_table(self._database, self._table)
        with suppress(IntegrityError):  # another relay was faster
            self._database.run(self._add_row)

    def _exists(self) -> bool:
        with self._database.reading() as connection:
            return sa.inspect(connection).has_table(TABLE_NAME, schema=self._table.schema)

    def _add_row(self, connection: Connection) -> None:
        mine = self._table.c.source_hash == self._key
        if connection.execute(sa.select(self._table.c.batch).where(mine)).first() is None:
            row = {"source_hash": self._key, "source": self._source, "relay_id": secrets.token_hex(16)}
            connection.execute(self._table.insert().values(**row, batch=0, has_gaps=0))

    def take_turn(self, connection: Connection) -> Turn | None:
        """Locks the row until the end of the transaction; None: another relay has it."""
        columns = self._table.c
        statement = sa.select(columns.relay_id, columns.batch, columns.has_gaps)
        statement = statement.where(columns.source_hash == self._key)
        if self._database.skip_locked:
            statement = statement.with_for_update(skip_locked=True)
        row = connection.execute(statement).first()
        return None if row is None else Turn(row.relay_id, int(row.batch), bool(row.has_gaps))

    def set_turn(self, connection: Connection, turn: Turn) -> None:
        """Whose turn it is next; it counts with the commit."""
        mine = self._table.c.source_hash == self._key
        changes = {"batch": turn.batch, "has_gaps": int(turn.has_gaps)}
        connection.execute(self._table.update().where(mine).values(changes))
