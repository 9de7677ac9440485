"""The twin of ``native/log.c``."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tests.twins.keys import key_hash
from tests.twins.store import CALLED, MESSAGE_HEAD_BYTES, ORDERED, READY, SCHEDULED, TwinStore, padded
from tickwheel_native import Buffer, crc32c

HEAD: Final = struct.Struct("<IIBBHI")  # crc, record_bytes, type, flags, order_bytes, aux
MESSAGE: Final = struct.Struct("<QqqHHI")  # id, deliver_at, created, and the lengths of key, headers, body
END_OF_RANGE, ZEROS, BAD_LENGTH, BAD_CHECKSUM, END_RECORD = range(5)
MESSAGE_TYPE, MOVED_TYPE, END_TYPE = 1, 13, 255
MAX_ID: Final = (1 << 40) - 1
REPLAYED, OTHER_RECORD, NEED_ROWS, NEED_DELIVERIES, NONSENSE = 0, 1, 12, 15, -1
# In a MOVED record: the state of the message, then of each group that was given it.
STATE: Final = struct.Struct("<QHBBHHII")  # topic_seq, version, state, -, flags, -, groups, -
GROUP: Final = struct.Struct("<IIIBB2xq")  # group_id, epoch, base_epoch, state, flags, time


def make_record(record_type: int, flags: int, aux: int, payload: bytes, order_bytes: int = 0) -> bytes:
    """A record's head and payload, without the padding."""
    tail = HEAD.pack(0, HEAD.size + len(payload), record_type, flags, order_bytes, aux)[4:] + payload
    return struct.pack("<I", crc32c(tail)) + tail


def judge(rest: bytes) -> int:
    """What is wrong with the record at the head of ``rest``; END_OF_RANGE when nothing is."""
    crc, size = struct.unpack_from("<II", rest)
    if crc == size == 0:
        return ZEROS
    # A record goes with its padding: without it, the next one could not start where it must.
    if size < HEAD.size or padded(size) > len(rest):
        return BAD_LENGTH
    return END_OF_RANGE if crc32c(rest[4:size]) == crc else BAD_CHECKSUM


def log_verify(log: Buffer, position: int, end: int, counts: list[int]) -> tuple[int, int]:
    """Returns (where the first record that is not whole starts, why). ``counts`` grows by type."""
    while end - position >= HEAD.size:
        rest = bytes(log[position:end])
        reason = judge(rest)
        if reason != END_OF_RANGE:
            return position, reason
        _, size, record_type, *_ = HEAD.unpack_from(rest)
        counts[record_type] += 1
        if record_type == END_TYPE:
            return position, END_RECORD
        position += padded(size)
    return position, END_OF_RANGE


def log_append(store: TwinStore, record_type: int, aux: int, payload: bytes) -> int:
    """Returns the record's position, or -1 when staging or the segment has no room."""
    total = padded(HEAD.size + len(payload))
    fits = store.staging_bytes + total <= len(store.staging)
    if not fits or store.appended_position() + total > store.segment_end:
        return -1
    return store.stage(make_record(record_type, 0, aux, payload))


def apply_message(store: TwinStore, record: bytes, position: int, entry_hash: int) -> None:
    """Enters a message into the MessageTable and counts it."""
    _, size, _, priority, order_bytes, topic_id = HEAD.unpack_from(record)
    message_id, deliver_at_ms, created_ms, *_ = MESSAGE.unpack_from(record, HEAD.size)
    row = store.rows[message_id]
    for name in row.dtype.names:
        row[name] = 0
    row["position"], row["record_bytes"] = position, size
    row["deliver_at_ms"], row["created_ms"] = deliver_at_ms, created_ms
    row["topic_id"], row["key_hash"], row["priority"] = topic_id, entry_hash, priority
    row["state"], row["flags"] = SCHEDULED, ORDERED if order_bytes else 0
    # What was taken in as a whole has numbers that were set aside before, and may lie below others.
    store.next_id, store.first_id = max(store.next_id, message_id + 1), min(store.first_id, message_id)
    store.topics[topic_id]["messages"] += 1
    store.topics[topic_id]["scheduled"] += 1


def replay(store: TwinStore, position: int, end: int) -> tuple[int, int, int]:
    """Returns (what stopped it, the position reached, need)."""
    while end - position >= HEAD.size:
        rest = store.log[position:end].tobytes()
        _, size, record_type, _, order_bytes, topic_id = HEAD.unpack_from(rest)
        if record_type == MOVED_TYPE:
            stop, need = apply_moved(store, position)
            if stop:
                return stop, position, need
            position += padded(size)
            continue
        if record_type != MESSAGE_TYPE:
            return OTHER_RECORD, position, 0
        if size < MESSAGE_HEAD_BYTES or size > len(rest):
            return NONSENSE, position, 0
        message_id, _, _, *lengths = MESSAGE.unpack_from(rest, HEAD.size)
        adds_up = MESSAGE_HEAD_BYTES + sum(lengths) + order_bytes == size
        if not 0 < message_id <= MAX_ID or not adds_up or not store.has_topic(topic_id):
            return NONSENSE, position, 0
        if message_id >= len(store.rows):
            return NEED_ROWS, position, message_id + 1
        key = rest[MESSAGE_HEAD_BYTES : MESSAGE_HEAD_BYTES + lengths[0]]
        apply_message(store, rest[:size], position, key_hash(store.key_topic(topic_id), key) if key else 0)
        position += padded(size)
    return REPLAYED, position, 0


def apply_moved(store: TwinStore, position: int) -> tuple[int, int]:
    """Reads a MOVED record. Returns (REPLAYED, NEED_DELIVERIES or NONSENSE, the group that has too few rows)."""
    size = int.from_bytes(store.log[position + 4 : position + 8].tobytes(), "little")
    record = store.log[position : position + size].tobytes()
    before = HEAD.size + STATE.size
    if size < before + MESSAGE_HEAD_BYTES:
        return NONSENSE, 0
    seq, version, state, _, flags, _, groups, _ = STATE.unpack_from(record, HEAD.size)
    before += groups * GROUP.size
    if size < before + MESSAGE_HEAD_BYTES:
        return NONSENSE, 0
    entries = [GROUP.unpack_from(record, HEAD.size + STATE.size + i * GROUP.size) for i in range(groups)]
    inner = record[before:]
    if not _makes_sense(store, inner, seq, state):
        return NONSENSE, 0
    stop, group_id = _check_groups(store, entries, HEAD.unpack_from(inner)[5], seq)
    if stop != REPLAYED:
        return stop, group_id
    _set_row(
        store=store,
        inner=inner,
        position=position + before,
        seq=seq,
        version=version,
        state=state,
        flags=flags,
    )
    if state == READY:
        for group_id, epoch, base_epoch, of_group, of_flags, time_ms in entries:
            delivery, group = store.deliveries[group_id][seq], store.groups[group_id]
            delivery["state"], delivery["time_ms"] = of_group, time_ms
            delivery["epoch"], delivery["base_epoch"] = epoch, base_epoch
            delivery["flags"] = int(delivery["flags"]) & ~CALLED & 0xFF | of_flags & CALLED
            group["high_seq"] = max(int(group["high_seq"]), seq + 1)
    return REPLAYED, 0


def _makes_sense(store: TwinStore, inner: bytes, seq: int, state: int) -> bool:
    _, size, kind, _, order_bytes, topic_id = HEAD.unpack_from(inner)
    message_id, _, _, *lengths = MESSAGE.unpack_from(inner, HEAD.size)
    adds_up = MESSAGE_HEAD_BYTES + sum(lengths) + order_bytes == size <= len(inner)
    if kind != MESSAGE_TYPE or not adds_up or not 0 < message_id < min(store.next_id, len(store.rows)):
        return False
    return store.has_topic(topic_id) and (state != READY or seq < store.topics[topic_id]["allocated"])


def _check_groups(
    store: TwinStore, entries: Sequence[tuple[int, ...]], topic_id: int, seq: int
) -> tuple[int, int]:
    for group_id, *_ in entries:
        if not 0 < group_id < len(store.groups):
            return NONSENSE, 0
        group = store.groups[group_id]
        if not group["exists"] or group["topic_id"] != topic_id:
            return NONSENSE, 0
        if seq >= group["allocated"]:
            return NEED_DELIVERIES, group_id
    return REPLAYED, 0


def _set_row(
    store: TwinStore, inner: bytes, position: int, seq: int, version: int, state: int, flags: int
) -> None:
    _, size, _, priority, _, topic_id = HEAD.unpack_from(inner)
    message_id, deliver_at_ms, created_ms, key_bytes, *_ = MESSAGE.unpack_from(inner, HEAD.size)
    key = inner[MESSAGE_HEAD_BYTES : MESSAGE_HEAD_BYTES + key_bytes]
    row = store.rows[message_id]
    row["position"], row["record_bytes"], row["topic_seq"] = position, size, seq
    row["deliver_at_ms"], row["created_ms"] = deliver_at_ms, created_ms
    row["topic_id"], row["flags"], row["version"] = topic_id, flags, version
    row["key_hash"] = key_hash(store.key_topic(topic_id), key) if key else 0
    row["state"], row["priority"] = state, priority
    if state == READY:
        store.arrivals[topic_id][seq]["id"] = message_id
