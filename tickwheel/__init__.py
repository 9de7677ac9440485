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
    from tickwheel.client.admin.endpoints import (
        Endpoint,
        EndpointAttempt,
        EndpointAttempts,
        EndpointList,
        task_headers,
    )
    from tickwheel.client.admin.groups import GroupState, MessageInfo
    from tickwheel.client.admin.history import EventsTail, HistoryEvent, LoggedEvent, MessageHistory
    from tickwheel.client.admin.pipeline import AdoptResult, JobPlan
    from tickwheel.client.admin.prepared import CheckedMessage
    from tickwheel.client.admin.query import ArrowResult, QueryResult
    from tickwheel.client.admin.schedules import PreviewedTime, Schedule, SchedulePreview
    from tickwheel.client.admin.topics import BrowsedMessage
    from tickwheel.client.admin.transactions import Prepared, Transaction
    from tickwheel.client.client import Client, connect
    from tickwheel.client.consumer.fetching import Fetched
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
    from tickwheel.worker.handlers import Handlers
    from tickwheel.worker.outcomes import GiveUp, Retry
    from tickwheel.worker.retry_policy import RetryPolicy

__all__ = [
    "AckRefused",
    "AdoptResult",
    "ArrowResult",
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
    "Endpoint",
    "EndpointAttempt",
    "EndpointAttempts",
    "EndpointList",
    "EventsTail",
    "Fetched",
    "GiveUp",
    "GroupState",
    "Handlers",
    "HistoryEvent",
    "JobPlan",
    "LogPlace",
    "LoggedEvent",
    "Message",
    "MessageHistory",
    "MessageInfo",
    "NaiveDatetime",
    "NotConnected",
    "Prepared",
    "PreviewedTime",
    "QueryResult",
    "ReceiptResult",
    "RedeliverResult",
    "RemoteProtocolError",
    "RequestTimeout",
    "RequestUncertain",
    "RescheduleResult",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "SchedulePreview",
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
    "task_headers",
    "testing",
    "tracing",
]

# Only what is used is imported: who only sends needs no broker, and `tickwheel --version` needs nothing.
_MODULES = frozenset({"errors", "stats", "sync", "testing", "tracing"})
_NAMES_OF = {
    "tickwheel._embedded": ["embedded"],
    "tickwheel.client.admin.dropping": ["DropResult", "LogPlace"],
    "tickwheel.client.admin.endpoints": [
        "Endpoint",
        "EndpointAttempt",
        "EndpointAttempts",
        "EndpointList",
        "task_headers",
    ],
    "tickwheel.client.admin.groups": ["GroupState", "MessageInfo"],
    "tickwheel.client.admin.history": ["EventsTail", "HistoryEvent", "LoggedEvent", "MessageHistory"],
    "tickwheel.client.admin.pipeline": ["AdoptResult", "JobPlan"],
    "tickwheel.client.admin.prepared": ["CheckedMessage"],
    "tickwheel.client.admin.query": ["ArrowResult", "QueryResult"],
    "tickwheel.client.admin.schedules": ["PreviewedTime", "Schedule", "SchedulePreview"],
    "tickwheel.client.admin.topics": ["BrowsedMessage"],
    "tickwheel.client.admin.transactions": ["Prepared", "Transaction"],
    "tickwheel.client.client": ["Client", "connect"],
    "tickwheel.client.consumer.fetching": ["Fetched"],
    "tickwheel.client.consumer.message": ["Batch", "Message"],
    "tickwheel.client.consumer.subscription": ["Subscription"],
    "tickwheel.client.results": [
        "CancelResult",
        "ChangeResult",
        "ReceiptResult",
        "RedeliverResult",
        "RescheduleResult",
        "SendResult",
        "SendResults",
    ],
    "tickwheel.worker.handlers": ["Handlers"],
    "tickwheel.worker.outcomes": ["GiveUp", "Retry"],
    "tickwheel.worker.retry_policy": ["RetryPolicy"],
}
# All others are errors.
_HOMES = dict.fromkeys(set(__all__) - _MODULES, "tickwheel.errors") | {
    name: module for module, names in _NAMES_OF.items() for name in names
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
