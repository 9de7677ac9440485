"""The twin of ``native/bulk.c``: records made elsewhere, checked, and taken in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.twins.keys import MASK, key_hash
from tests.twins.log import HEAD, MESSAGE, MESSAGE_TYPE, make_record
from tests.twins.store import MESSAGE_HEAD_BYTES, NONE, ORDERED, SCHEDULED, TwinStore, padded
from tickwheel_native import crc32c

FOREIGN: Final = 1 << 62
FILL_TYPE: Final = 25
SOUND, BAD_RECORD, BAD_ID, BAD_MESSAGE = range(4)
ORDERED_PRIORITY: Final = 50
MAX_KEY_BYTES, MAX_HEADERS_BYTES, MAX_TIME_MS = 255, 32_768, 253_402_300_799_999


@dataclass(frozen=True)
class Message:
    """One of a job, by its parts."""

    topic_id: int
    deliver_at_ms: int
    priority: int
    key: bytes = b""
    headers: bytes = b""
    order: bytes = b""
    body: bytes = b""


def build(messages: Sequence[Message], first_id: int, created_ms: int, capacity: int) -> tuple[int, bytes]:
    """(how many fit, their records)."""
    records = b""
    for number, message in enumerate(messages):
        head = MESSAGE.pack(
            first_id + number, message.deliver_at_ms, created_ms,
            len(message.key), len(message.headers), len(message.body),
        )  # fmt: skip
        payload = head + message.key + message.headers + message.order + message.body
        record = make_record(MESSAGE_TYPE, message.priority, message.topic_id, payload, len(message.order))
        if padded(len(record)) > capacity - len(records):
            return number, records
        records += record.ljust(padded(len(record)), b"\0")
    return len(messages), records


def check(
    store: TwinStore, foreign: bytes, at: int, end: int, next_id: int, end_id: int, limit: int
) -> tuple[int, int, int, int]:
    """(why it stopped, where, the next id, how many were rejected before); fills in rows on the way."""
    filled = 0
    for _ in range(limit):
        if at >= end:
            break
        rest = foreign[at - FOREIGN : end - FOREIGN]
        if len(rest) < MESSAGE_HEAD_BYTES:
            return BAD_RECORD, at, next_id, filled
        crc, size, kind, priority, order_bytes, topic_id = HEAD.unpack_from(rest)
        message_id, due_ms, created_ms, key_bytes, headers_bytes, body_bytes = MESSAGE.unpack_from(
            rest, HEAD.size
        )
        if size < MESSAGE_HEAD_BYTES or padded(size) > len(rest) or crc32c(rest[4:size]) != crc:
            return BAD_RECORD, at, next_id, filled
        if message_id == next_id and kind == FILL_TYPE:
            store.rows[message_id] = np.zeros(1, store.rows.dtype)[0]
            at, next_id, filled = at + padded(size), next_id + 1, filled + 1
            continue
        if (
            kind != MESSAGE_TYPE
            or MESSAGE_HEAD_BYTES + key_bytes + headers_bytes + order_bytes + body_bytes != size
        ):
            return BAD_RECORD, at, next_id, filled
        if message_id != next_id or message_id >= end_id:
            return BAD_ID, at, next_id, filled
        key = rest[MESSAGE_HEAD_BYTES : MESSAGE_HEAD_BYTES + key_bytes]
        start = MESSAGE_HEAD_BYTES + key_bytes + headers_bytes
        order = rest[start : start + order_bytes]
        sizes = key_bytes, headers_bytes, body_bytes
        if not _is_sound(
            store=store,
            topic_id=topic_id,
            message_id=message_id,
            due_ms=due_ms,
            priority=priority,
            sizes=sizes,
            key=key,
            order=order,
        ):
            return BAD_MESSAGE, at, next_id, filled
        hash_ = key_hash(store.key_topic(topic_id), key) if key else 0
        flags = ORDERED if order else 0
        store.rows[message_id] = (at, due_ms, created_ms, 0, topic_id, flags, hash_, size, 0, NONE, priority)
        at, next_id = at + padded(size), next_id + 1
    return SOUND, at, next_id, filled


def _is_sound(
    store: TwinStore, topic_id: int, message_id: int, due_ms: int, priority: int, sizes: tuple[int, int, int],
    key: bytes, order: bytes,
) -> bool:  # fmt: skip
    """Whether it could have been sent."""
    if not store.has_topic(topic_id) or store.topics[topic_id]["shards"]:
        return False
    topic = store.topics[topic_id]
    key_bytes, headers_bytes, body_bytes = sizes
    if body_bytes > (int(topic["max_body_bytes"]) or store.max_body_bytes):
        return False
    if key_bytes > MAX_KEY_BYTES or headers_bytes > MAX_HEADERS_BYTES or len(order) > MAX_KEY_BYTES:
        return False
    if (order and priority != ORDERED_PRIORITY) or not 0 <= due_ms <= MAX_TIME_MS:
        return False
    if not topic["parent"]:
        return True
    routing = order or key
    hash_ = key_hash(0, routing) if routing else message_id * 0x9E3779B1 & MASK
    return bool(store.topics[topic["parent"]]["shard_of_byte"][hash_ >> 24] == topic_id)


def adopt(store: TwinStore, first_id: int, n: int, base: int) -> int:
    """Makes rows visible; returns how many."""
    adopted = 0
    for message_id in range(first_id, first_id + n):
        row = store.rows[message_id]
        if row["state"] != NONE or not row["record_bytes"]:
            continue
        row["position"] = int(row["position"]) - FOREIGN + base
        row["state"] = SCHEDULED
        topic = store.topics[row["topic_id"]]
        topic["messages"] += 1
        topic["scheduled"] += 1
        adopted += 1
    return adopted
