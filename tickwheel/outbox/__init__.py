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
_HOMES = {
    "Batch": "tickwheel.outbox.messages.delivered",
    "ddl": "tickwheel.outbox.messages.ddl",
    "Message": "tickwheel.outbox.messages.delivered",
    "Stream": "tickwheel.outbox.messages.stream",
    "MessageSettings": "tickwheel.outbox.messages.settings",
    "MessageTable": "tickwheel.outbox.messages.table",
    "ClaimedBatch": "tickwheel.outbox.queue.messages",
    "ClaimedMessage": "tickwheel.outbox.queue.messages",
    "Database": "tickwheel.outbox.database",
    "Inbox": "tickwheel.outbox.inbox",
    "Relay": "tickwheel.outbox.relay.relay",
    "RelayStats": "tickwheel.outbox.relay.batch",
    "Queue": "tickwheel.outbox.queue.queue",
    "QueueBatch": "tickwheel.outbox.queue.messages",
    "QueueConsumer": "tickwheel.outbox.queue.consumer",
    "QueueMessage": "tickwheel.outbox.queue.messages",
    "QueueStats": "tickwheel.outbox.queue.sql",
    "open_database": "tickwheel.outbox.database",
    "Account": "tickwheel.outbox.keys.operations",
    "Accounted": "tickwheel.outbox.keys.queues",
    "Accounting": "tickwheel.outbox.keys.queues",
    "BadKey": "tickwheel.outbox.keys.errors",
    "BadLimit": "tickwheel.outbox.keys.errors",
    "BadOperation": "tickwheel.outbox.keys.errors",
    "BadValue": "tickwheel.outbox.keys.errors",
    "CounterOverflow": "tickwheel.outbox.keys.errors",
    "Delete": "tickwheel.outbox.keys.operations",
    "DeleteRange": "tickwheel.outbox.keys.operations",
    "FailedOperation": "tickwheel.outbox.keys.queues",
    "InboxMessage": "tickwheel.outbox.keys.queues",
    "Increment": "tickwheel.outbox.keys.operations",
    "KeyService": "tickwheel.outbox.keys.service",
    "KeySpace": "tickwheel.outbox.keys.space",
    "KeySpaceStats": "tickwheel.outbox.keys.statistics",
    "NotAnInteger": "tickwheel.outbox.keys.errors",
    "Operation": "tickwheel.outbox.keys.operations",
    "Put": "tickwheel.outbox.keys.operations",
    "Range": "tickwheel.outbox.keys.leases",
}


def __getattr__(name: str) -> Any:
    if name == "inbox":  # a module, which has the functions of an inbox with the usual name
        return importlib.import_module("tickwheel.outbox.inbox")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
