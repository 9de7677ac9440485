"""A message table's form: its name, settings and columns as they were when last looked at, and the SQL for it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine

from tickwheel.client.checks import encoded, shown
from tickwheel.outbox.database import Database, InDatabase
from tickwheel.outbox.errors import BadTable
from tickwheel.outbox.messages import schema as schemas
from tickwheel.outbox.messages.candidates import SetAside
from tickwheel.outbox.messages.settings import MessageSettings
from tickwheel.outbox.messages.statements import Statements
from tickwheel.outbox.messages.values import Values


class TableForm(InDatabase):
    """What claiming, acking, purging and the hub know of the table that they work on; see ``MessageTable``."""

    def __init__(self, where: str | URL | Engine | Database, name: str) -> None:
        check_name(name)
        super().__init__(where)
        self.name = name
        self.aside = SetAside()
        """What the database refuses to have claimed."""
        self.kept = SetAside()
        """What it refuses to have deleted."""
        self._loaded: tuple[schemas.Schema, Statements, Values] | None = None

    def reload(self) -> schemas.Schema:
        """Reads the table's form and settings again. Raises TableMissing, BadTable."""
        with self.database.reading() as connection:
            schema = schemas.load(self.database, connection, self.name)
        self._loaded = (schema, Statements(self.database, schema), Values(self.database.kind, schema.table))
        return schema

    @property
    def schema(self) -> schemas.Schema:
        """The table, its settings and what is streamed, as they were when last looked at."""
        return self._current()[0]

    @property
    def settings(self) -> MessageSettings:
        """How messages are delivered."""
        return self.schema.settings

    @property
    def table(self) -> sa.Table:
        """For queries of your own: messages are rows."""
        return self.schema.table

    @property
    def columns(self) -> tuple[str, ...]:
        """What is streamed: ``id``, then the user's columns."""
        return self.schema.columns

    @property
    def statements(self) -> Statements:
        """The SQL for the table as it is."""
        return self._current()[1]

    @property
    def values(self) -> Values:
        """Reads and judges what is to be written."""
        return self._current()[2]

    def _current(self) -> tuple[schemas.Schema, Statements, Values]:
        if self._loaded is None:
            self.reload()
        assert self._loaded is not None
        return self._loaded


def check_name(name: object) -> None:
    """Raises BadTable for what cannot name a table; how long a name may be, the database says."""
    if isinstance(name, str) and name and "\0" not in name:
        encoded(name, "The name of the table")
        return
    raise BadTable(f"{shown(name)} cannot name a table.", advice="Use a text that is not empty.")
