"""A message as RocketMQ's clients have it, and as Tickwheel's broker keeps it.

User properties are headers, one by one. What Tickwheel has no place for is in one more header, `rocketmq`: a map of
what was given. A property that cannot be a header of its own is in that map, too. A message that another program of
Tickwheel has sent has no such map, and is shown all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tickwheel.protocol.limits import DEFAULT_MAX_BODY_BYTES, DEFAULT_PRIORITY, LEAST_NUMBER_MS, MAX_TIME_MS
from tickwheel_gateway.wire import properties, schema
from tickwheel_gateway.wire.codes import Code, Refused

OWN: Final = "rocketmq"
"""The header that has what Tickwheel has no place for."""
MAX_RECOVERY_MS: Final = 3_600_000
_TICKWHEELS: Final = "tickwheel-"
"""Headers that begin so mean something to Tickwheel."""
_ID_DIGITS: Final = 32


class Sender(NamedTuple):
    """Who sends."""

    client_id: str
    host: str


class Limits(NamedTuple):
    """What may be sent."""

    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    max_delay_ms: int | None = None
    """How far ahead a message may be due; None: as far as it likes."""


class Sent(NamedTuple):
    """A message for the broker."""

    message_id: str
    """As its client calls it."""
    key: str
    body: bytes
    headers: dict[str, Any]
    deliver_at_ms: int | None
    priority: int | None
    """None: the topic's."""
    order_key: str | None
    is_transaction: bool
    check_after_ms: int | None
    """Of a transaction; None: as the broker does it."""


class Held(NamedTuple):
    """A message from the broker."""

    id: int
    key: str | None
    body: bytes
    headers: Mapping[str, Any]
    deliver_at_ms: int
    created_ms: int
    order_key: str | None


class Given(NamedTuple):
    """How a message is given to a client."""

    topic: Any
    """The Resource that it has asked for."""
    store_host: str
    receipt_handle: str = ""
    attempt: int = 1
    invisible_ms: int | None = None
    is_check: bool = False
    """It is prepared, and a producer is asked what becomes of it."""


def key_of(message_id: str, client_id: str) -> str:
    """In Tickwheel. A client that sends again has the same; two clients that make the same ids, because their hosts
    look alike to them, do not swallow each other's messages.

    >>> key_of("01AB", "host@1@0")
    '01AB.cf49bbff'
    """
    return f"{message_id}.{mark_of(client_id)}"


@lru_cache(maxsize=4_096)
def mark_of(client_id: str) -> str:
    """What a client has behind the ids of its messages, in their keys."""
    return hashlib.sha1(client_id.encode(), usedforsecurity=False).hexdigest()[:8]


def client_of(headers: Mapping[str, Any]) -> str:
    """Who has sent a message, as it calls itself; empty: a program of Tickwheel, not one of RocketMQ."""
    return str(_own(headers).get("client", ""))


def sent(message: Any, sender: Sender, limits: Limits, now_ms: int) -> Sent:
    """A Message for the broker. Raises Refused, with the rule that comes first."""
    system = message.system_properties
    properties.check_id(system.message_id)
    _check_body(message.body, limits)
    if system.message_type == schema.LITE or system.HasField("lite_topic"):
        raise Refused(Code.NOT_IMPLEMENTED, "lite topics are not supported")
    properties.check_amount(message.user_properties, system.tag, system.keys)
    given, keys = dict(message.user_properties), [key for key in system.keys if key]
    # Empty ones are none, as RocketMQ has it: some clients send them.
    if system.tag:
        properties.check_tag(system.tag)
    properties.check_keys(keys)
    properties.check_properties(given, system.tag, keys)
    if system.message_group:
        properties.check_group(system.message_group)
    deliver_at_ms = _deliver_at_ms(system, limits, now_ms)
    is_past = deliver_at_ms is not None and deliver_at_ms <= now_ms
    is_transaction = system.message_type == schema.TRANSACTION
    return Sent(
        message_id=system.message_id,
        key=key_of(system.message_id, sender.client_id),
        body=message.body,
        headers=_headers(given, keys, deliver_at_ms if is_past else None, system, sender),
        deliver_at_ms=deliver_at_ms,
        priority=max(0, DEFAULT_PRIORITY - _priority(system)) if system.HasField("priority") else None,
        order_key=system.message_group or None,
        is_transaction=is_transaction,
        check_after_ms=_check_after_ms(system) if is_transaction else None,
    )


def _check_body(body: bytes, limits: Limits) -> None:
    if not body:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(body) > limits.max_body_bytes:
        raise Refused(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"message body cannot exceed the max {limits.max_body_bytes}, and has {len(body)} bytes",
        )


def _priority(system: Any) -> int:
    if system.priority < 0:
        raise Refused(Code.BAD_REQUEST, "priority must not be negative")
    return int(system.priority)


def _deliver_at_ms(system: Any, limits: Limits, now_ms: int) -> int | None:
    if not system.HasField("delivery_timestamp"):
        return None
    deliver_at_ms = schema.milliseconds(system.delivery_timestamp)
    if limits.max_delay_ms is not None and deliver_at_ms - now_ms > limits.max_delay_ms:
        raise Refused(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the max delay time of message is too large, max is {limits.max_delay_ms}",
        )
    if deliver_at_ms > MAX_TIME_MS:
        raise Refused(Code.ILLEGAL_DELIVERY_TIME, "the delivery time of message is beyond the year 9999")
    if 0 < deliver_at_ms < LEAST_NUMBER_MS:
        raise Refused(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the delivery time of message is {deliver_at_ms} ms, before 2001: are seconds meant?",
        )
    return max(0, deliver_at_ms)


def _check_after_ms(system: Any) -> int | None:
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return None
    check_after_ms = schema.milliseconds(system.orphaned_transaction_recovery_duration)
    if not 0 <= check_after_ms <= MAX_RECOVERY_MS:
        raise Refused(
            Code.BAD_REQUEST,
            f"orphaned_transaction_recovery_duration is from 0 to {MAX_RECOVERY_MS // 1_000} s",
        )
    return check_after_ms


def _headers(
    given: dict[str, str], keys: list[str], past_ms: int | None, system: Any, sender: Sender
) -> dict[str, Any]:
    """``past_ms``: when it was to come. The broker does not keep a time that was over already."""
    shadowed = {name: given.pop(name) for name in list(given) if name == OWN or name.startswith(_TICKWHEELS)}
    own = {"id": system.message_id, "client": sender.client_id, "born_host": system.born_host or sender.host}
    optional = {
        "tag": system.tag,
        "keys": keys,
        "type": int(system.message_type),
        "born_ms": min(max(0, schema.milliseconds(system.born_timestamp)), MAX_TIME_MS),
        "encoding": int(system.body_encoding),
        "trace": system.trace_context,
        "shadowed": shadowed,
    }
    own |= {name: value for name, value in optional.items() if value}
    if system.HasField("priority"):
        own["priority"] = int(system.priority)
    if past_ms is not None:
        own["past_ms"] = past_ms
    return {**given, OWN: own}


def dead_headers(held: Held, topic: str) -> dict[str, Any]:
    """Those of a message that is sent to the dead letters of a group. It keeps its id, and says where it comes from.

    ``topic``: its own, as RocketMQ has the name.
    """
    own = _own(held.headers)
    message = message_id(held)
    if not own:
        own = {"id": message, "born_ms": held.created_ms}
        if OWN in held.headers:
            own["shadowed"] = {OWN: _text(held.headers[OWN])}
    return {**held.headers, OWN: {**own, "dead": {"topic": topic, "message_id": message}}}


# -- back ----------------------------------------------------------------------------------------------------------


def received(held: Held, given: Given) -> Any:
    """A Message for a client."""
    own = _own(held.headers)
    message = schema.Message(topic=given.topic, body=held.body)
    is_transaction = own.get("type") == schema.TRANSACTION
    for name, value in held.headers.items():
        if name != OWN or not own:
            message.user_properties[name] = value if isinstance(value, str) else _text(value)
    for name, value in own.get("shadowed", {}).items():
        message.user_properties[name] = value
    if held.order_key is not None:
        message.user_properties[properties.SHARDING_KEY] = held.order_key
    if is_transaction and held.key is not None:
        message.user_properties[properties.TRANSACTION_ID] = held.key
    if given.is_check:
        message.user_properties[properties.CHECK_TIMES] = str(given.attempt)
    _fill(message.system_properties, own, held, given)
    return message


def _fill(system: Any, own: Mapping[str, Any], held: Held, given: Given) -> None:
    system.message_id = message_id(held)
    if own.get("tag"):
        system.tag = own["tag"]
    system.keys.extend(own.get("keys", ()))
    system.body_digest.type = schema.MD5
    system.body_digest.checksum = hashlib.md5(held.body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = own.get("encoding") or schema.IDENTITY
    is_scheduled = held.deliver_at_ms > held.created_ms
    due_ms = held.deliver_at_ms if is_scheduled else own.get("past_ms")
    if due_ms is not None:
        schema.set_milliseconds(system.delivery_timestamp, due_ms)
    if held.order_key is not None:
        system.message_group = held.order_key
    if own.get("priority") is not None:
        system.priority = own["priority"]
    system.message_type = _type_of(system, own)
    schema.set_milliseconds(system.born_timestamp, own.get("born_ms") or held.created_ms)
    system.born_host = own.get("born_host", "")
    schema.set_milliseconds(system.store_timestamp, held.created_ms)
    system.store_host = given.store_host
    system.queue_id = 0
    system.queue_offset = held.id
    if own.get("trace"):
        system.trace_context = own["trace"]
    if given.receipt_handle:
        system.receipt_handle = given.receipt_handle
    if given.invisible_ms is not None:
        schema.set_milliseconds(system.invisible_duration, given.invisible_ms)
    system.delivery_attempt = given.attempt
    dead = own.get("dead")
    if dead:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = (
            dead["topic"],
            dead["message_id"],
        )


def _type_of(system: Any, own: Mapping[str, Any]) -> int:
    """As RocketMQ has it: by the fields that a message has."""
    if own.get("type") == schema.TRANSACTION:
        return schema.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return schema.DELAY
    if system.HasField("message_group"):
        return schema.FIFO
    return schema.PRIORITY if system.HasField("priority") else schema.NORMAL


def message_id(held: Held) -> str:
    """As its client calls it; of a message of another program: one that no client makes."""
    return str(_own(held.headers).get("id") or f"00{held.id:0{_ID_DIGITS}x}")


def _own(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    found = headers.get(OWN)
    return found if isinstance(found, Mapping) and isinstance(found.get("id"), str) else {}


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)
