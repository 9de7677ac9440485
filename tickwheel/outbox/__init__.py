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
    AlreadyInTransaction,
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
    from tickwheel.outbox import inbox
    from tickwheel.outbox.database import Database, open_database
    from tickwheel.outbox.inbox import Inbox
    from tickwheel.outbox.keys.errors import (
        BadKey,
        BadLimit,
        BadOperation,
        BadValue,
        CounterOverflow,
        NotAnInteger,
    )
    from tickwheel.outbox.keys.leases import Range
    from tickwheel.outbox.keys.operations import Account, Delete, DeleteRange, Increment, Operation, Put
    from tickwheel.outbox.keys.queues import Accounted, Accounting, FailedOperation, InboxMessage
    from tickwheel.outbox.keys.service import KeyService
    from tickwheel.outbox.keys.space import KeySpace
    from tickwheel.outbox.keys.statistics import KeySpaceStats
    from tickwheel.outbox.messages.ddl import ddl
    from tickwheel.outbox.messages.delivered import Batch, Message
    from tickwheel.outbox.messages.settings import MessageSettings
    from tickwheel.outbox.messages.stream import Stream
    from tickwheel.outbox.messages.table import MessageTable
    from tickwheel.outbox.queue.consumer import QueueConsumer
    from tickwheel.outbox.queue.messages import ClaimedBatch, ClaimedMessage, QueueBatch, QueueMessage
    from tickwheel.outbox.queue.queue import Queue
    from tickwheel.outbox.queue.sql import QueueStats
    from tickwheel.outbox.relay.batch import RelayStats
    from tickwheel.outbox.relay.relay import Relay

__all__ = [
    "Account",
    "Accounted",
    "Accounting",
    "AlreadyInTransaction",
    "BadDatabase",
    "BadKey",
    "BadLimit",
    "BadOperation",
    "BadTable",
    "BadValue",
    "Batch",
    "ClaimedBatch",
    "ClaimedMessage",
    "CounterOverflow",
    "Database",
    "DatabaseBusy",
    "DatabaseUnavailable",
    "Delete",
    "DeleteRange",
    "DriverMissing",
    "FailedOperation",
    "Inbox",
    "InboxMessage",
    "Increment",
    "KeyService",
    "KeySpace",
    "KeySpaceStats",
    "LeaseLost",
    "Message",
    "MessageSettings",
    "MessageTable",
    "NotAnInteger",
    "NotInTransaction",
    "Operation",
    "OutboxError",
    "Put",
    "Queue",
    "QueueBatch",
    "QueueConsumer",
    "QueueMessage",
    "QueueStats",
    "Range",
    "Relay",
    "RelayStats",
    "SqlMissing",
    "Stream",
    "TableMissing",
    "ddl",
    "inbox",
    "open_database",
]

# Only what is used is imported: SQLAlchemy is an extra.
_MODULES = {
    "database": ("Database", "open_database"),
    "inbox": ("Inbox",),
    "keys.errors": ("BadKey", "BadLimit", "BadOperation", "BadValue", "CounterOverflow", "NotAnInteger"),
    "keys.leases": ("Range",),
    "keys.operations": ("Account", "Delete", "DeleteRange", "Increment", "Operation", "Put"),
    "keys.queues": ("Accounted", "Accounting", "FailedOperation", "InboxMessage"),
    "keys.service": ("KeyService",),
    "keys.space": ("KeySpace",),
    "keys.statistics": ("KeySpaceStats",),
    "messages.ddl": ("ddl",),
    "messages.delivered": ("Batch", "Message"),
    "messages.settings": ("MessageSettings",),
    "messages.stream": ("Stream",),
    "messages.table": ("MessageTable",),
    "queue.consumer": ("QueueConsumer",),
    "queue.messages": ("ClaimedBatch", "ClaimedMessage", "QueueBatch", "QueueMessage"),
    "queue.queue": ("Queue",),
    "queue.sql": ("QueueStats",),
    "relay.batch": ("RelayStats",),
    "relay.relay": ("Relay",),
}
_HOMES = {name: f"tickwheel.outbox.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "inbox":  # a module, which has the functions of an inbox with the usual name
        return importlib.import_module("tickwheel.outbox.inbox")
    if name in _HOMES:
        try:
            return getattr(importlib.import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "sqlalchemy":
                raise
            raise SqlMissing from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
