"""The exception tree. Every error has a stable ``code``, says what to do about it, and whether to try again.

What the storage engine refuses has the same codes (``timerlog.errors``), and clients are told of it by these classes:
so what is said about a code stands here only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tickwheel.protocol.errors.base import TickwheelError, to_wire
from tickwheel.protocol.errors.client import (
    BadArgument,
    ClientClosed,
    ClientForked,
    NotConnected,
    RequestTimeout,
    RequestUncertain,
    SendUncertain,
    TracingMissing,
)
from tickwheel.protocol.errors.connection import (
    BadCrc,
    BadFrame,
    BadHandshake,
    CreditTooLarge,
    FrameTimeout,
    FrameTooLarge,
    HandshakeTimeout,
    IdleTimeout,
    RemoteProtocolError,
    SendTimeout,
    TooManyConnections,
    TooManyConnectionsFromAddress,
    UnknownFrame,
    UnsupportedProtocol,
)
from tickwheel.protocol.errors.directory import (
    BadDirectory,
    ConfigError,
    DamagedLog,
    DirectoryLocked,
    DirectoryReadOnly,
    UnsupportedFormat,
)
from tickwheel.protocol.errors.requests import (
    AckRefused,
    AlreadyAcked,
    BadJob,
    BadQuery,
    BadRequest,
    BadSchedule,
    BadTime,
    BadTopicName,
    BadTopicSettings,
    BodyTooLarge,
    DiskFull,
    GroupInUse,
    HeadersTooLarge,
    InternalError,
    KeyTooLong,
    MessageCancelled,
    MessageNotFound,
    NaiveDatetime,
    NeverDelivered,
    OrderKeyTooLong,
    OtherLog,
    QueryFailed,
    QueryTimeout,
    QueryUnavailable,
    ScheduleExists,
    ServerError,
    ShuttingDown,
    StaleReceipt,
    TooManyGroups,
    TooManyQueries,
    TooManyRejects,
    TooManySchedules,
    TooManySubscriptions,
    TooManyTopics,
    TopicExists,
    TopicInUse,
    TransactionRefused,
    TransactionTooLarge,
    UnknownGroup,
    UnknownSchedule,
    UnknownShard,
    UnknownTopic,
)
from tickwheel.protocol.errors.security import (
    BadCertificate,
    BadToken,
    ConnectionDenied,
    Forbidden,
    GrantsChanged,
    InsecureListener,
    LoginRequired,
    TlsFailed,
    TlsRequired,
    TokenExpired,
    TokenNeedsTls,
    TokenRevoked,
    TokensUnusable,
    TooManyAttempts,
    UnknownToken,
)

__all__ = [
    "AckRefused",
    "AlreadyAcked",
    "BadArgument",
    "BadCertificate",
    "BadCrc",
    "BadDirectory",
    "BadFrame",
    "BadHandshake",
    "BadJob",
    "BadQuery",
    "BadRequest",
    "BadSchedule",
    "BadTime",
    "BadToken",
    "BadTopicName",
    "BadTopicSettings",
    "BodyTooLarge",
    "ClientClosed",
    "ClientForked",
    "ConfigError",
    "ConnectionDenied",
    "CreditTooLarge",
    "DamagedLog",
    "DirectoryLocked",
    "DirectoryReadOnly",
    "DiskFull",
    "Forbidden",
    "FrameTimeout",
    "FrameTooLarge",
    "GrantsChanged",
    "GroupInUse",
    "HandshakeTimeout",
    "HeadersTooLarge",
    "IdleTimeout",
    "InsecureListener",
    "InternalError",
    "KeyTooLong",
    "LoginRequired",
    "MessageCancelled",
    "MessageNotFound",
    "NaiveDatetime",
    "NeverDelivered",
    "NotConnected",
    "OrderKeyTooLong",
    "OtherLog",
    "QueryFailed",
    "QueryTimeout",
    "QueryUnavailable",
    "RemoteProtocolError",
    "RequestTimeout",
    "RequestUncertain",
    "ScheduleExists",
    "SendTimeout",
    "SendUncertain",
    "ServerError",
    "ShuttingDown",
    "StaleReceipt",
    "TickwheelError",
    "TlsFailed",
    "TlsRequired",
    "TokenExpired",
    "TokenNeedsTls",
    "TokenRevoked",
    "TokensUnusable",
    "TooManyAttempts",
    "TooManyConnections",
    "TooManyConnectionsFromAddress",
    "TooManyGroups",
    "TooManyQueries",
    "TooManyRejects",
    "TooManySchedules",
    "TooManySubscriptions",
    "TooManyTopics",
    "TopicExists",
    "TopicInUse",
    "TracingMissing",
    "TransactionRefused",
    "TransactionTooLarge",
    "UnknownFrame",
    "UnknownGroup",
    "UnknownSchedule",
    "UnknownShard",
    "UnknownToken",
    "UnknownTopic",
    "UnsupportedFormat",
    "UnsupportedProtocol",
    "error_class",
    "error_from_wire",
    "to_wire",
]


def _subclasses(cls: type[TickwheelError]) -> Iterator[type[TickwheelError]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


# A base class and its refinement may share a code: the refinement comes later and wins.
_CLASS_OF_CODE: Final[dict[str, type[TickwheelError]]] = {c.code: c for c in _subclasses(TickwheelError)}


def error_class(code: str) -> type[TickwheelError]:
    """The class of an error code; ``ServerError`` for one that this version does not know."""
    return _CLASS_OF_CODE.get(code, ServerError)


def error_from_wire(fields: Mapping[str, Any]) -> TickwheelError:
    """The typed exception of an ERROR body: ``{code, message, advice, retryable}``."""
    cls = error_class(str(fields["code"]))
    error = cls(str(fields["message"]), advice=str(fields["advice"]))
    if cls is ServerError:
        error.code = str(fields["code"])
    error.retryable = bool(fields["retryable"])
    if fields.get("details"):
        error.details = dict(fields["details"])
    return error
