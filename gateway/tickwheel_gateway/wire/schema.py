"""The classes of the messages, made from the compiled schema.

They live in a pool of their own: a program that has RocketMQ's own classes as well, such as a test with its client,
has no clash of names, and no generated code asks for one version of protobuf.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"/{PACKAGE}.MessagingService/"
"""Before the name of a method, in the path of a request."""
COMPILED: Final = "rocketmq.binpb"


def _load() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(
        (resources.files(__package__) / COMPILED).read_bytes()
    )
    for file in files.file:
        pool.Add(file)
    return pool


_POOL: Final = _load()


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _number(enum: str, name: str) -> int:
    return int(_POOL.FindEnumTypeByName(f"{PACKAGE}.{enum}").values_by_name[name].number)


AckMessageRequest: Final = _class("AckMessageRequest")
AckMessageResponse: Final = _class("AckMessageResponse")
ChangeInvisibleDurationRequest: Final = _class("ChangeInvisibleDurationRequest")
ChangeInvisibleDurationResponse: Final = _class("ChangeInvisibleDurationResponse")
EndTransactionRequest: Final = _class("EndTransactionRequest")
EndTransactionResponse: Final = _class("EndTransactionResponse")
ForwardMessageToDeadLetterQueueRequest: Final = _class("ForwardMessageToDeadLetterQueueRequest")
ForwardMessageToDeadLetterQueueResponse: Final = _class("ForwardMessageToDeadLetterQueueResponse")
HeartbeatRequest: Final = _class("HeartbeatRequest")
HeartbeatResponse: Final = _class("HeartbeatResponse")
Message: Final = _class("Message")
NotifyClientTerminationRequest: Final = _class("NotifyClientTerminationRequest")
NotifyClientTerminationResponse: Final = _class("NotifyClientTerminationResponse")
QueryAssignmentRequest: Final = _class("QueryAssignmentRequest")
QueryAssignmentResponse: Final = _class("QueryAssignmentResponse")
QueryRouteRequest: Final = _class("QueryRouteRequest")
QueryRouteResponse: Final = _class("QueryRouteResponse")
RecallMessageRequest: Final = _class("RecallMessageRequest")
RecallMessageResponse: Final = _class("RecallMessageResponse")
ReceiveMessageRequest: Final = _class("ReceiveMessageRequest")
ReceiveMessageResponse: Final = _class("ReceiveMessageResponse")
SendMessageRequest: Final = _class("SendMessageRequest")
SendMessageResponse: Final = _class("SendMessageResponse")
TelemetryCommand: Final = _class("TelemetryCommand")

COMMIT: Final = _number("TransactionResolution", "COMMIT")
ROLLBACK: Final = _number("TransactionResolution", "ROLLBACK")
NORMAL: Final = _number("MessageType", "NORMAL")
FIFO: Final = _number("MessageType", "FIFO")
DELAY: Final = _number("MessageType", "DELAY")
TRANSACTION: Final = _number("MessageType", "TRANSACTION")
LITE: Final = _number("MessageType", "LITE")
PRIORITY: Final = _number("MessageType", "PRIORITY")
IDENTITY: Final = _number("Encoding", "IDENTITY")
GZIP: Final = _number("Encoding", "GZIP")
MD5: Final = _number("DigestType", "MD5")
READ_WRITE: Final = _number("Permission", "READ_WRITE")
IPV4: Final = _number("AddressScheme", "IPv4")
IPV6: Final = _number("AddressScheme", "IPv6")
DOMAIN_NAME: Final = _number("AddressScheme", "DOMAIN_NAME")
PRODUCER: Final = _number("ClientType", "PRODUCER")
PUSH_CONSUMER: Final = _number("ClientType", "PUSH_CONSUMER")
SIMPLE_CONSUMER: Final = _number("ClientType", "SIMPLE_CONSUMER")
PULL_CONSUMER: Final = _number("ClientType", "PULL_CONSUMER")
LITE_PUSH_CONSUMER: Final = _number("ClientType", "LITE_PUSH_CONSUMER")
LITE_SIMPLE_CONSUMER: Final = _number("ClientType", "LITE_SIMPLE_CONSUMER")


def milliseconds(time: Any) -> int:
    """A Timestamp as epoch milliseconds, or a Duration as milliseconds; parts of one are rounded up."""
    return int(time.seconds) * 1_000 - -int(time.nanos) // 1_000_000


def set_milliseconds(time: Any, value_ms: int) -> None:
    """The other way round."""
    time.seconds, rest_ms = divmod(value_ms, 1_000)
    time.nanos = rest_ms * 1_000_000
