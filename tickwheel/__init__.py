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
from typing import TYPE_CHECKING, Any

from tickwheel import errors, stats, sync
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

if TYPE_CHECKING:
    from tickwheel import testing, tracing
    from tickwheel._embedded import embedded

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


def __getattr__(name: str) -> Any:
    # The broker is imported only by who runs one: a producer starts faster without it.
    if name == "embedded":
        return importlib.import_module("tickwheel._embedded").embedded
    if name in ("testing", "tracing"):
        return importlib.import_module(f"tickwheel.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
