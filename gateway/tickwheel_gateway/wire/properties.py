"""What RocketMQ allows in the properties of a message, rule by rule as its proxy checks them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tickwheel_gateway.wire.codes import Code, Refused

MAX_PROPERTIES: Final = 128
MAX_PROPERTIES_BYTES: Final = 16 * 1_024
"""Names and values, tag and keys together."""
_LOOKED_INTO: Final = 16
"""Times the limit; the size of what is larger is said, and what else is wrong with it is not."""
MAX_GROUP_BYTES: Final = 63
MAX_ID_BYTES: Final = 246
"""With what a key of Tickwheel has behind it."""
SHARDING_KEY: Final = "__SHARDINGKEY"
TRANSACTION_ID: Final = "__transactionId__"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
"""Of those that are reserved, or are not: what clients find on messages that were delivered."""

RESERVED: Final = frozenset(
    [
        "TRACE_ON",
        "MSG_REGION",
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "UNIQ_KEY",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INSTANCE_ID",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "CLUSTER",
        "MSG_TYPE",
        "INNER_MULTI_QUEUE_OFFSET",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "__CRC32#",
    ]
)

_CONTROL: Final = frozenset(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
"""What Java calls an ISO control character."""


def check_id(message_id: str) -> None:
    """Raises Refused."""
    if not message_id.strip():
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "message id cannot be null or blank")
    if len(message_id.encode()) > MAX_ID_BYTES:
        raise Refused(Code.ILLEGAL_MESSAGE_ID, f"message id has more than {MAX_ID_BYTES} bytes")


def check_amount(properties: Mapping[str, str], tag: str, keys: Collection[str]) -> None:
    """Raises Refused for so much that looking into it would keep others waiting. ``check_properties`` has the limit."""
    _check_count(properties)
    if len(keys) > MAX_PROPERTIES_BYTES:
        raise Refused(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"there are {len(keys)} keys")
    size = sum(map(len, (tag, *keys, *properties.keys(), *properties.values())))
    if size > _LOOKED_INTO * MAX_PROPERTIES_BYTES:
        raise _too_large(size)


def check_tag(tag: str) -> None:
    """Raises Refused."""
    if not tag.strip():
        raise Refused(Code.ILLEGAL_MESSAGE_TAG, "tag cannot be blank")
    if "|" in tag:
        raise Refused(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    if has_control(tag):
        raise Refused(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character")


def check_keys(keys: Iterable[str]) -> None:
    """Raises Refused."""
    for key in keys:
        if not key.strip():
            raise Refused(Code.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace")
        if has_control(key):
            raise Refused(Code.ILLEGAL_MESSAGE_KEY, "key cannot contain control character")


def check_group(group: str) -> None:
    """Raises Refused."""
    if not group.strip():
        raise Refused(Code.ILLEGAL_MESSAGE_GROUP, "message group cannot be blank")
    if len(group.encode()) > MAX_GROUP_BYTES:
        raise Refused(Code.ILLEGAL_MESSAGE_GROUP, f"message group exceeds the max size {MAX_GROUP_BYTES}")
    if has_control(group):
        raise Refused(Code.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character")


def check_properties(properties: Mapping[str, str], tag: str, keys: Iterable[str]) -> None:
    """Raises Refused. ``tag`` and ``keys`` count for the size."""
    _check_count(properties)
    size = len(tag.encode()) + len(" ".join(keys).encode())
    for name, value in properties.items():
        if name in RESERVED:
            raise Refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if has_control(name) or has_control(value):
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                "the name and value of a property cannot contain control character",
            )
        size += len(name.encode()) + len(value.encode())
    if size > MAX_PROPERTIES_BYTES:
        raise _too_large(size)


def _check_count(properties: Mapping[str, str]) -> None:
    if len(properties) > MAX_PROPERTIES:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"too many user properties, max is {MAX_PROPERTIES} and there are {len(properties)}",
        )


def _too_large(size: int) -> Refused:
    return Refused(
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
        f"the total size of user property is too large, max is {MAX_PROPERTIES_BYTES} and it is {size}",
    )


def has_control(text: str) -> bool:
    """Whether there is a control character in it."""
    return not _CONTROL.isdisjoint(text)
