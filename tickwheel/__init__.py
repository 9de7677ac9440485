"""Tickwheel: durable messages that are delivered at their time.

>>> import tickwheel
>>> async with tickwheel.Client("tickwheel://127.0.0.1:7411") as client:
...     await client.send("reminders", b"tea is ready", delay=timedelta(minutes=4))
...     async with client.subscribe("reminders") as sub:
...         async for message in sub:
...             await message.ack()

``tickwheel.sync.Client`` is the same without async. ``tickwheel.embedded(directory)`` runs the broker in this
process, and ``tickwheel.testing`` one for tests, with a clock that a test can advance.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tickwheel import errors, stats, sync, testing, tracing
    from tickwheel._embedded import embedded
    from tickwheel.client.admin.dropping import DropResult, LogPlace
    from tickwheel.client.admin.groups import GroupState, MessageInfo
    from tickwheel.client.admin.pipeline import AdoptResult, JobPlan
    from tickwheel.client.admin.prepared import CheckedMessage
    from tickwheel.client.admin.query import QueryResult
    from tickwheel.client.admin.schedules import Schedule
    from tickwheel.client.admin.topics import BrowsedMessage
    from tickwheel.client.admin.transactions import Prepared, Transaction
    from tickwheel.client.client import Client, connect
    from tickwheel.client.consumer.message import Batch, Message
    from tickwheel.client.consumer.subscription import Subscription
    from tickwheel.client.results import (
        CancelResult,
        ChangeResult,
        ReceiptResult,
        RedeliverResult,
        RescheduleResult,
        SendResult,
        SendResults,
    )
    from tickwheel.errors import (
        AckRefused,
        BadArgument,
        BadTime,
        BodyTooLarge,
        ClientClosed,
        ClientForked,
        DiskFull,
        NaiveDatetime,
        NotConnected,
        RemoteProtocolError,
        RequestTimeout,
        RequestUncertain,
        SendUncertain,
        StaleReceipt,
        TickwheelError,
        TransactionRefused,
    )

__all__ = [
    "AckRefused",
    "AdoptResult",
    "BadArgument",
    "BadTime",
    "Batch",
    "BodyTooLarge",
    "BrowsedMessage",
    "CancelResult",
    "ChangeResult",
    "CheckedMessage",
    "Client",
    "ClientClosed",
    "ClientForked",
    "DiskFull",
    "DropResult",
    "GroupState",
    "JobPlan",
    "LogPlace",
    "Message",
    "MessageInfo",
    "NaiveDatetime",
    "NotConnected",
    "Prepared",
    "QueryResult",
    "ReceiptResult",
    "RedeliverResult",
    "RemoteProtocolError",
    "RequestTimeout",
    "RequestUncertain",
    "RescheduleResult",
    "Schedule",
    "SendResult",
    "SendResults",
    "SendUncertain",
    "StaleReceipt",
    "Subscription",
    "TickwheelError",
    "Transaction",
    "TransactionRefused",
    "connect",
    "embedded",
    "errors",
    "stats",
    "sync",
    "testing",
    "tracing",
]

# Only what is used is imported: who only sends needs no broker, and `tickwheel --version` needs nothing.
_MODULES = frozenset({"errors", "stats", "sync", "testing", "tracing"})
_HOMES = {
    "AckRefused": "tickwheel.errors",
    "AdoptResult": "tickwheel.client.admin.pipeline",
    "BadArgument": "tickwheel.errors",
    "BadTime": "tickwheel.errors",
    "Batch": "tickwheel.client.consumer.message",
    "BodyTooLarge": "tickwheel.errors",
    "BrowsedMessage": "tickwheel.client.admin.topics",
    "CancelResult": "tickwheel.client.results",
    "ChangeResult": "tickwheel.client.results",
    "CheckedMessage": "tickwheel.client.admin.prepared",
    "Client": "tickwheel.client.client",
    "ClientClosed": "tickwheel.errors",
    "ClientForked": "tickwheel.errors",
    "DiskFull": "tickwheel.errors",
    "DropResult": "tickwheel.client.admin.dropping",
    "GroupState": "tickwheel.client.admin.groups",
    "JobPlan": "tickwheel.client.admin.pipeline",
    "LogPlace": "tickwheel.client.admin.dropping",
    "Message": "tickwheel.client.consumer.message",
    "MessageInfo": "tickwheel.client.admin.groups",
    "NaiveDatetime": "tickwheel.errors",
    "NotConnected": "tickwheel.errors",
    "Prepared": "tickwheel.client.admin.transactions",
    "QueryResult": "tickwheel.client.admin.query",
    "ReceiptResult": "tickwheel.client.results",
    "RedeliverResult": "tickwheel.client.results",
    "RemoteProtocolError": "tickwheel.errors",
    "RequestTimeout": "tickwheel.errors",
    "RequestUncertain": "tickwheel.errors",
    "RescheduleResult": "tickwheel.client.results",
    "Schedule": "tickwheel.client.admin.schedules",
    "SendResult": "tickwheel.client.results",
    "SendResults": "tickwheel.client.results",
    "SendUncertain": "tickwheel.errors",
    "StaleReceipt": "tickwheel.errors",
    "Subscription": "tickwheel.client.consumer.subscription",
    "TickwheelError": "tickwheel.errors",
    "Transaction": "tickwheel.client.admin.transactions",
    "TransactionRefused": "tickwheel.errors",
    "connect": "tickwheel.client.client",
    "embedded": "tickwheel._embedded",
}


if not TYPE_CHECKING:  # else type checkers would take any name

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"tickwheel.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
