"""The twin of ``native/ingest.c``: docs/protocol.md read literally."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tests.twins.keys import find, insert, key_hash, remove
from tests.twins.log import HEAD, MESSAGE, MESSAGE_TYPE, apply_message, make_record
from tests.twins.store import (
    FRAME_HEAD_BYTES,
    MAX_BATCH,
    MESSAGE_HEAD_BYTES,
    ORDERED_PRIORITY,
    TOPIC_PRIORITY,
    TwinStore,
)
from tickwheel_native import crc32c

SEND, SEND_OK = 12, 13
MAX_TIME_MS: Final = 253_402_300_799_999
MAX_KEY_BYTES: Final = 255
MAX_HEADERS_BYTES: Final = 32_768
DUPLICATE, BODY_TOO_LARGE, BAD_TIME, KEY_TOO_LONG, HEADERS_TOO_LARGE, ORDER_KEY_TOO_LONG = range(1, 7)
DUPLICATE_DIFFERS: Final = 7
_SEND_HEAD: Final = struct.Struct("<IIIIq")


class Stop(IntEnum):
    """Why ``ingest`` stopped."""

    NEED_MORE = 0
    OTHER_FRAME = 1
    BAD_CRC = 2
    FRAME_TOO_LARGE = 3
    BAD_FRAME = 4
    UNKNOWN_TOPIC = 5
    FORBIDDEN = 7
    NEED_FLUSH = 10
    NEED_DISK = 11
    NEED_ROWS = 12
    NEED_KEYS = 13
    NEED_REPLIES = 14


@dataclass
class Ingested:
    """``frame`` (type, correlation, payload offset, payload bytes) is that of the last frame looked at."""

    stop: Stop = Stop.NEED_MORE
    consumed_bytes: int = 0
    replies: bytes = b""
    frames: int = 0
    messages: int = 0
    need: int = 0
    frame: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True)
class Message:
    time: int
    priority: int
    key: bytes
    headers: bytes
    order: bytes
    body: bytes

    @property
    def record_bytes(self) -> int:
        return MESSAGE_HEAD_BYTES + len(self.content)

    @property
    def content(self) -> bytes:
        return self.key + self.headers + self.order + self.body


@dataclass(frozen=True)
class Send:
    topic_id: int
    are_delays: bool
    messages: list[Message]
    tells_differences: bool = False


def frame(frame_type: int, correlation: int, payload: bytes) -> bytes:
    """A whole frame."""
    tail = struct.pack("<II", frame_type, correlation) + payload
    return struct.pack("<II", len(payload), crc32c(tail)) + tail


class _Columns:
    """Takes columns off a payload, one after the other."""

    def __init__(self, payload: bytes, at: int) -> None:
        self.payload, self.at = payload, at

    def numbers(self, present: bool, code: str, count: int, default: int) -> list[int]:
        if not present:
            return [default] * count
        column = struct.Struct(f"<{count}{code}")
        values = column.unpack_from(self.payload, self.at)  # struct.error when the payload is too short
        self.at += column.size
        return list(values)

    def slices(self, lengths: list[int]) -> list[bytes]:
        found = []
        for length in lengths:
            found.append(self.payload[self.at : self.at + length])
            self.at += length
        return found


def parse_send(payload: bytes) -> Send | None:
    """None when the columns do not add up to exactly the payload."""
    try:
        topic_id, count, columns, priority, time = _SEND_HEAD.unpack_from(payload)
        if not 1 <= count <= MAX_BATCH or columns >= 128 or priority > TOPIC_PRIORITY:
            return None
        at = _Columns(payload, _SEND_HEAD.size)
        times = at.numbers(bool(columns & 1), "q", count, time)
        body_bytes = at.numbers(True, "I", count, 0)
        key_bytes = at.numbers(bool(columns & 4), "H", count, 0)
        headers_bytes = at.numbers(bool(columns & 8), "H", count, 0)
        order_bytes = at.numbers(bool(columns & 32), "H", count, 0)
        priorities = at.numbers(bool(columns & 2), "B", count, priority)
    except struct.error:
        return None
    if at.at + sum(body_bytes) + sum(key_bytes) + sum(headers_bytes) + sum(order_bytes) != len(payload):
        return None
    blobs = [at.slices(lengths) for lengths in (key_bytes, headers_bytes, order_bytes, body_bytes)]
    messages = [Message(*fields) for fields in zip(times, priorities, *blobs, strict=True)]
    return Send(topic_id, bool(columns & 16), messages, bool(columns & 64))


def _due_ms(send: Send, time: int, now_ms: int) -> int:
    if time == 0:
        return now_ms
    return now_ms + time if send.are_delays else time


def _refusal(store: TwinStore, topic_id: int, message: Message, due_ms: int) -> int:
    """The exception code of a message that cannot be stored, whatever the others are; 0 for a good one."""
    own_limit = int(store.topics[topic_id]["max_body_bytes"]) or store.max_body_bytes
    if len(message.body) > min(store.max_body_bytes, own_limit):
        return BODY_TOO_LARGE
    if message.time < 0 or not 0 <= due_ms <= MAX_TIME_MS:
        return BAD_TIME
    if len(message.key) > MAX_KEY_BYTES:
        return KEY_TOO_LONG
    if len(message.headers) > MAX_HEADERS_BYTES:
        return HEADERS_TOO_LARGE
    return ORDER_KEY_TOO_LONG if len(message.order) > MAX_KEY_BYTES else 0


def _route(store: TwinStore, topic_id: int, message: Message) -> int:
    """The topic, or the shard of it, that a message belongs to."""
    topic = store.topics[topic_id]
    if not topic["shards"]:
        return topic_id
    key = message.order or message.key
    routing_hash = key_hash(0, key) if key else (store.next_id * 0x9E3779B1) & 0xFFFFFFFF
    return int(topic["shard_of_byte"][routing_hash >> 24])


def _priority(store: TwinStore, topic_id: int, message: Message) -> int:
    if message.order:
        return ORDERED_PRIORITY
    return (
        int(store.topics[topic_id]["default_priority"])
        if message.priority == TOPIC_PRIORITY
        else message.priority
    )


def _missing(store: TwinStore, send: Send, reply_room: int) -> tuple[Stop, int] | None:
    """What has to be provided before any message of a frame is stored. It is asked as if all messages were good and
    none a duplicate, and as if each had the longest padding."""
    count = len(send.messages)
    log_bytes = sum(message.record_bytes + 7 for message in send.messages)
    if reply_room < FRAME_HEAD_BYTES + 16 + 16 * count:
        return Stop.NEED_REPLIES, 0
    if store.staging_bytes + log_bytes > len(store.staging):
        return Stop.NEED_FLUSH, 0
    if store.appended_position() + log_bytes > store.message_limit:
        return Stop.NEED_DISK, log_bytes
    if store.next_id + count > len(store.rows):
        return Stop.NEED_ROWS, store.next_id + count
    partitions = [key_hash(send.topic_id, message.key) >> 22 for message in send.messages if message.key]
    for partition, more in Counter(partitions).items():
        if not store.keys.partitions[partition].has_room(more):
            return Stop.NEED_KEYS, partition
    return None


def _store_message(store: TwinStore, send: Send, message: Message, due_ms: int, now_ms: int) -> None:
    lengths = len(message.key), len(message.headers), len(message.body)
    head = MESSAGE.pack(store.next_id, due_ms, now_ms, *lengths)
    priority, topic_id = _priority(store, send.topic_id, message), _route(store, send.topic_id, message)
    record = make_record(MESSAGE_TYPE, priority, topic_id, head + message.content, len(message.order))
    assert len(record) == message.record_bytes == HEAD.size + len(head) + len(message.content)
    position = store.stage(record)
    entry_hash = key_hash(send.topic_id, message.key) if message.key else 0
    message_id = store.next_id
    apply_message(store, record, position, entry_hash)
    if entry_hash:
        insert(store, message_id, entry_hash)


def _judge(store: TwinStore, send: Send, message: Message, due_ms: int) -> tuple[int, int]:
    """(why a message cannot be stored or 0, the message that has its key or 0)."""
    code = _refusal(store, send.topic_id, message, due_ms)
    earlier = find(store, send.topic_id, message.key) if message.key and not code else 0
    if earlier and send.tells_differences and _differs(store, send, message, due_ms, earlier):
        return DUPLICATE_DIFFERS, earlier
    return (DUPLICATE if earlier else code), earlier


def _differs(store: TwinStore, send: Send, message: Message, due_ms: int, earlier: int) -> bool:
    row = store.rows[earlier]
    record = store.record(row)
    if message.time and not send.are_delays and due_ms != row["deliver_at_ms"]:
        return True
    lengths = len(message.key), len(message.headers), len(message.order), len(message.body)
    order_bytes, (key_bytes, headers_bytes, body_bytes) = (
        int.from_bytes(record[10:12], "little"),
        struct.unpack_from("<HHI", record, 40),
    )
    same_lengths = lengths == (key_bytes, headers_bytes, order_bytes, body_bytes)
    return not same_lengths or record[MESSAGE_HEAD_BYTES:] != message.content


def send_check(store: TwinStore, payload: bytes, now_ms: int) -> tuple[int, list[int], list[int], int]:
    """Returns (messages, or -1 for a bad payload and -2 for an unknown topic; codes; earlier ids; log bytes)."""
    send = parse_send(payload)
    if send is None:
        return -1, [], [], 0
    if not store.is_open_topic(send.topic_id):
        return -2, [], [], 0
    judged = [_judge(store, send, message, _due_ms(send, message.time, now_ms)) for message in send.messages]
    log_bytes = sum(message.record_bytes + 7 for message in send.messages)
    return len(judged), [code for code, _ in judged], [earlier for _, earlier in judged], log_bytes


def unsend(store: TwinStore, first_id: int, staging_bytes: int) -> None:
    """Takes messages back that are still staged."""
    for message_id in range(first_id, store.next_id):
        row = store.rows[message_id]
        if row["key_hash"]:
            remove(store, message_id)
        store.topics[row["topic_id"]]["messages"] -= 1
        store.topics[row["topic_id"]]["scheduled"] -= 1
        for name in row.dtype.names:
            row[name] = 0
    store.next_id, store.staging_bytes = first_id, staging_bytes


def _store_frame(store: TwinStore, send: Send, now_ms: int) -> bytes:
    """Stores a frame's messages, each judged by itself; returns the SEND_OK payload."""
    first_id, exceptions = store.next_id, []
    for index, message in enumerate(send.messages):
        due_ms = _due_ms(send, message.time, now_ms)
        code, earlier = _judge(store, send, message, due_ms)
        if code:
            exceptions.append(struct.pack("<IIQ", index, code, earlier))
        else:
            _store_message(store, send, message, due_ms, now_ms)
    head = struct.pack("<QII", first_id, store.next_id - first_id, len(exceptions))
    return head + b"".join(exceptions)


def ingest(store: TwinStore, data: bytes, now_ms: int, replies_capacity: int) -> Ingested:
    """Handles every whole SEND frame at the head of ``data``."""
    result = Ingested()
    while result.stop is Stop.NEED_MORE:
        rest = data[result.consumed_bytes :]
        if len(rest) < FRAME_HEAD_BYTES:
            break
        payload_bytes, crc, frame_type, correlation = struct.unpack_from("<IIII", rest)
        whole = FRAME_HEAD_BYTES + payload_bytes
        if payload_bytes > store.max_frame_bytes:
            result.stop = Stop.FRAME_TOO_LARGE
            break
        if len(rest) < whole:
            break
        if crc32c(rest[8:whole]) != crc:
            result.stop = Stop.BAD_CRC
            break
        offset = result.consumed_bytes + FRAME_HEAD_BYTES
        result.frame = (frame_type & 0xFF, correlation, offset, payload_bytes)
        if _handle(store, rest[FRAME_HEAD_BYTES:whole], now_ms, replies_capacity, result):
            result.consumed_bytes += whole
    return result


def _handle(store: TwinStore, payload: bytes, now_ms: int, replies_capacity: int, result: Ingested) -> bool:
    """One checked frame; False when it has to come again."""
    frame_type, correlation, *_ = result.frame
    if frame_type != SEND:
        result.stop = Stop.OTHER_FRAME
        return True
    send = parse_send(payload)
    if send is None:
        result.stop = Stop.BAD_FRAME
        return True
    if store.may_send is not None and send.topic_id not in store.may_send:
        result.stop = Stop.FORBIDDEN
        return False
    if not store.is_open_topic(send.topic_id):
        result.stop = Stop.UNKNOWN_TOPIC
        return True
    missing = _missing(store, send, replies_capacity - len(result.replies))
    if missing is not None:
        result.stop, result.need = missing
        return False
    result.replies += frame(SEND_OK, correlation, _store_frame(store, send, now_ms))
    result.frames += 1
    result.messages += len(send.messages)
    return True
