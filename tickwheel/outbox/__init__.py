"""Messages inside the user's own SQL database, where "pay the order" and "send the e-mail" commit together.

>>> from tickwheel import outbox
>>> table = outbox.MessageTable("sqlite:///app.db", "reminders").create()
>>> with table.database.begin() as connection:
...     connection.execute(orders.insert().values(...))
...     table.send(connection, message="remind the customer", delay=timedelta(days=3))

``MessageTable``: messages in a table, delivered at their time (as Vitess's). ``Relay``: moves them to the broker.
``inbox``: what came from the broker counts once. ``Queue``: first in, first out. ``KeySpace``: keys with inboxes and
outboxes. docs/how-to/outbox.md says which one you need. All need SQLAlchemy: ``pip install 'tickwheel[sql]'``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tickwheel.outbox.errors import (
    BadDatabase,
    BadTable,
    DatabaseBusy,
    DatabaseUnavailable,
    DriverMissing,
    LeaseLost,
    NotInTransaction,
    OutboxError,
    SqlMissing,
    TableMissing,
)

if TYPE_CHECKING:
    from tickwheel.outbox.database import Database, open_database
    from tickwheel.outbox.messages.settings import MessageSettings
    from tickwheel.outbox.messages.stream import Batch, Message, Stream
    from tickwheel.outbox.messages.table import MessageTable

__all__ = [
    "BadDatabase",
    "BadTable",
    "Batch",
    "Database",
    "DatabaseBusy",
    "DatabaseUnavailable",
    "DriverMissing",
    "LeaseLost",
    "Message",
    "MessageSettings",
    "MessageTable",
    "NotInTransaction",
    "OutboxError",
    "SqlMissing",
    "Stream",
    "TableMissing",
    "open_database",
]

# Only what is used is imported: SQLAlchemy is an extra.
_HOMES = {
    "Batch": "tickwheel.outbox.messages.stream",
    "Message": "tickwheel.outbox.messages.stream",
    "Stream": "tickwheel.outbox.messages.stream",
    "MessageSettings": "tickwheel.outbox.messages.settings",
    "MessageTable": "tickwheel.outbox.messages.table",
    "Database": "tickwheel.outbox.database",
    "open_database": "tickwheel.outbox.database",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
