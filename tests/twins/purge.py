"""The twin of ``native/purge.c``."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.twins.keys import key_hash, remove
from tests.twins.log import END_TYPE, HEAD, MESSAGE, MESSAGE_TYPE, MOVED_TYPE, make_record
from tests.twins.store import (
    ACKED,
    CALLED,
    CANCELLED,
    DEAD,
    IN_RETRY,
    MESSAGE_HEAD_BYTES,
    NONE,
    PARKED,
    READY,
    SCHEDULED,
    UNTOUCHED,
    TwinStore,
    padded,
)
from tickwheel_native import crc32c

TRANSACTION_TYPE: Final = 12
TRANSACTION_HEAD_BYTES: Final = 32
STATE: Final = struct.Struct("<QHBBHHII")  # topic_seq, version, state, -, flags, -, groups, -
GROUP: Final = struct.Struct("<IIIBB2xq")  # group_id, epoch, base_epoch, state, flags, time
DONE, NEED_DISK, NEED_DELIVERIES, NONSENSE = 0, 11, 15, -1

Found = tuple[int, int, bool]  # (position, id, whether its checksum is right)


class NoRecord(Exception):
    """Something else stands where a record should."""


def _is_whole(rest: bytes) -> bool:
    if len(rest) < HEAD.size:
        return False
    crc, size, *_ = HEAD.unpack_from(rest)
    return HEAD.size <= size and padded(size) <= len(rest) and crc32c(rest[4:size]) == crc


def _step(store: TwinStore, at: int, end: int, is_known: bool) -> tuple[int, Found | None]:
    """(where the next record starts, the message that was passed over if it was one)."""
    rest = store.log[at:end].tobytes()
    if len(rest) < HEAD.size:
        return end, None
    _, size, kind, *_ = HEAD.unpack_from(rest)
    if kind == TRANSACTION_TYPE and min(size, len(rest)) >= TRANSACTION_HEAD_BYTES:
        return at + TRANSACTION_HEAD_BYTES, None
    if size < HEAD.size:
        raise NoRecord
    if kind == MOVED_TYPE and len(rest) >= HEAD.size + STATE.size:
        groups = STATE.unpack_from(rest, HEAD.size)[6]
        skip = HEAD.size + STATE.size + groups * GROUP.size
        if skip > min(size, len(rest)):
            raise NoRecord
        return at + skip, None
    if padded(size) > len(rest):
        raise NoRecord
    whole, following = _is_whole(rest), rest[padded(size) :]
    if not whole and not is_known and following and not _is_whole(following):
        raise NoRecord  # the length cannot be trusted
    if kind == END_TYPE:
        return end, None
    is_message = kind == MESSAGE_TYPE and size >= MESSAGE_HEAD_BYTES
    found = (at, int.from_bytes(rest[16:24], "little"), whole) if is_message else None
    return at + padded(size), found


def _next_message(
    store: TwinStore, at: int, limit: int, end: int, *, is_known: bool = False
) -> tuple[int, Found | None]:
    """(where to go on, the next message that starts below ``limit``). ``is_known``: a walk went here before,
    and this one may end in the middle of a record."""
    while at < limit:
        at, found = _step(store, at, end, is_known)
        if found is not None:
            return at, found
    return at, None


def _is_current(store: TwinStore, found: Found) -> bool:
    """Whether the message's row finds it there; otherwise it was moved, or is gone."""
    position, message_id, _ = found
    if not 0 < message_id < store.next_id:
        return False
    row = store.rows[message_id]
    return bool(row["state"] != NONE and row["position"] == position)


# -- what may go --


def _delivery(store: TwinStore, group_id: int, row: Any) -> Any | None:
    group, seq = store.groups[group_id], int(row["topic_seq"])
    if not group["rows_from"] <= seq < group["allocated"]:
        return None
    delivery = store.deliveries[group_id][seq]
    return delivery if delivery["state"] != UNTOUCHED or delivery["epoch"] else None


def _is_done(store: TwinStore, row: Any, now_ms: int) -> bool:
    topic_id, last_ms = int(row["topic_id"]), int(row["deliver_at_ms"])
    for group_id in store.groups_of(topic_id):
        if row["topic_seq"] < store.groups[group_id]["start_seq"]:
            continue
        delivery = _delivery(store, group_id, row)
        if delivery is None or delivery["state"] not in (ACKED, DEAD):
            return False
        last_ms = max(last_ms, int(delivery["time_ms"]))
    kept = last_ms <= now_ms - int(store.topics[topic_id]["purge_after_ms"])
    return kept and bool(store.topics[topic_id]["first_group"])


def is_dead(store: TwinStore, message_id: int, now_ms: int) -> bool:
    """Whether nobody needs a message any more, and it was kept for long enough."""
    row = store.rows[message_id]
    if not store.has_topic(int(row["topic_id"])):
        return True
    return _is_done(store, row, now_ms) if row["state"] == READY else bool(row["state"] != SCHEDULED)


# -- moving --


def _groups(store: TwinStore, row: Any) -> bytes:
    entries = []
    for group_id in store.groups_of(int(row["topic_id"])) if row["state"] == READY else ():
        delivery = _delivery(store, group_id, row)
        if delivery is not None:
            epoch, base_epoch, state, flags, time_ms = (
                int(delivery[name]) for name in ("epoch", "base_epoch", "state", "flags", "time_ms")
            )
            entries.append(GROUP.pack(group_id, epoch, base_epoch, state, flags & CALLED, time_ms))
    return b"".join(entries)


def _moved(store: TwinStore, row: Any) -> bytes:
    """A MOVED record."""
    groups = _groups(store, row)
    numbers = {name: int(row[name]) for name in ("topic_seq", "version", "state", "flags", "topic_id")}
    state = STATE.pack(
        numbers["topic_seq"], numbers["version"], numbers["state"], 0, numbers["flags"], 0, len(groups) // GROUP.size, 0
    )  # fmt: skip
    start = int(row["position"])
    inner = bytearray(store.log[start : start + int(row["record_bytes"])].tobytes())
    inner[9] = int(row["priority"])
    inner[24:32] = int(row["deliver_at_ms"]).to_bytes(8, "little", signed=True)
    inner[:4] = crc32c(bytes(inner[4:])).to_bytes(4, "little")
    return make_record(MOVED_TYPE, 0, numbers["topic_id"], state + groups + bytes(inner))


@dataclass
class Plan:
    """What ``purge_plan`` found."""

    stop: int = DONE
    at: int = 0
    dead: list[int] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    moved: int = 0
    moved_bytes: int = 0
    need: int = 0


def purge_plan(store: TwinStore, at: int, limit: int, end: int, now_ms: int, capacity: int) -> Plan:
    """Lists what is dead or damaged between ``at`` and ``limit``, and stages MOVED records for the rest."""
    plan = Plan(at=at)
    while plan.at < limit and max(len(plan.dead), len(plan.damaged), plan.moved) < capacity:
        try:
            following, found = _next_message(store, plan.at, limit, end)
        except NoRecord:
            plan.stop = NONSENSE
            break
        if found is not None and _is_current(store, found):
            _, message_id, whole = found
            if is_dead(store, message_id, now_ms):
                plan.dead.append(message_id)
            elif not whole:
                plan.damaged.append(message_id)
            elif not _move(store, message_id, plan):
                break
        plan.at = following
    return plan


def _move(store: TwinStore, message_id: int, plan: Plan) -> bool:
    record = _moved(store, store.rows[message_id])
    size = padded(len(record))
    fits = store.staging_bytes + size <= len(store.staging)
    if not fits or store.appended_position() + size > store.message_limit:
        plan.stop, plan.need = NEED_DISK, size
        return False
    store.stage(record)
    plan.moved += 1
    plan.moved_bytes += size
    return True


def apply_moved(store: TwinStore, position: int) -> tuple[int, int]:
    """Returns (DONE, NEED_DELIVERIES or NONSENSE, the group that has too few rows)."""
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
    if stop != DONE:
        return stop, group_id
    _set_row(store, inner, position + before, seq, version, state, flags)
    if state == READY:
        for group_id, epoch, base_epoch, of_group, of_flags, time_ms in entries:
            delivery, group = store.deliveries[group_id][seq], store.groups[group_id]
            delivery["state"], delivery["time_ms"] = of_group, time_ms
            delivery["epoch"], delivery["base_epoch"] = epoch, base_epoch
            delivery["flags"] = int(delivery["flags"]) & ~CALLED & 0xFF | of_flags & CALLED
            group["high_seq"] = max(int(group["high_seq"]), seq + 1)
    return DONE, 0


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
    return DONE, 0


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


# -- forgetting --


def _has_arrival(store: TwinStore, row: Any, message_id: int) -> bool:
    topic_id, seq = int(row["topic_id"]), int(row["topic_seq"])
    in_table = seq < store.topics[topic_id]["allocated"]
    return bool(in_table and store.arrivals[topic_id][seq]["id"] == message_id)


def purge_count(store: TwinStore, ids: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
    """([messages, cancelled] of each topic, [acked, dead, deliveries] of each group)."""
    topics, groups = [[0, 0] for _ in store.topics], [[0, 0, 0] for _ in store.groups]
    for message_id in ids:
        row = store.rows[message_id]
        topic_id = int(row["topic_id"])
        if not store.has_topic(topic_id):
            continue
        topics[topic_id][0] += 1
        topics[topic_id][1] += row["state"] == CANCELLED
        if not _has_arrival(store, row, message_id):
            continue
        for group_id in store.groups_of(topic_id):
            delivery = _delivery(store, group_id, row)
            if delivery is not None:
                groups[group_id][0] += delivery["state"] == ACKED
                groups[group_id][1] += delivery["state"] == DEAD
                groups[group_id][2] += store.times_delivered(store.groups[group_id], delivery)
    return topics, groups


def apply_purged(store: TwinStore, start: int, end: int) -> int:
    """Forgets every message whose record still lies between two positions; -1 when there are no records."""
    while start < end:
        try:
            start, found = _next_message(store, start, end, end, is_known=True)
        except NoRecord:
            return NONSENSE
        if found is not None and _is_current(store, found):
            _forget(store, found[1])
    return DONE


def _forget(store: TwinStore, message_id: int) -> None:
    row = store.rows[message_id]
    if row["key_hash"] and row["state"] in (SCHEDULED, READY):
        remove(store, message_id)
    topic_id = int(row["topic_id"])
    if store.has_topic(topic_id):
        topic = store.topics[topic_id]
        topic["ready"] -= 1 if row["state"] == READY and topic["ready"] else 0
        if _has_arrival(store, row, message_id):
            store.arrivals[topic_id][int(row["topic_seq"])]["id"] = 0
            for group_id in store.groups_of(topic_id):
                _forget_delivery(store, group_id, int(row["topic_seq"]))
    for name in row.dtype.names:
        row[name] = 0


def _forget_delivery(store: TwinStore, group_id: int, seq: int) -> None:
    """Its place in a chain stays, until the chain comes by."""
    group = store.groups[group_id]
    if not group["rows_from"] <= seq < group["allocated"]:
        return
    row = store.deliveries[group_id][seq]
    group["touched"] -= 1 if row["state"] != UNTOUCHED and group["touched"] else 0
    in_chain = int(row["flags"]) & (IN_RETRY | PARKED)
    behind = int(row["retry_next"]) if in_chain else 0
    if row["state"] == UNTOUCHED and not row["flags"] and not row["epoch"]:
        return
    for name in row.dtype.names:
        row[name] = 0
    row["flags"], row["retry_next"] = in_chain, behind


# -- what there is --


def purge_survey(
    store: TwinStore, from_id: int, end_id: int, now_ms: int, first: int, segment_bytes: int, segments: int
) -> list[list[int]]:
    """[live messages, the bytes they take when they are moved, dead messages] of each segment."""
    found = [[0, 0, 0] for _ in range(segments)]
    for message_id in range(from_id, end_id):
        row = store.rows[message_id]
        segment = (int(row["position"]) - first) // segment_bytes
        if row["state"] == NONE or not 0 <= segment < segments:
            continue
        if is_dead(store, message_id, now_ms):
            found[segment][2] += 1
        else:
            groups = len(_groups(store, row))
            found[segment][0] += 1
            found[segment][1] += padded(HEAD.size + STATE.size + groups + int(row["record_bytes"]))
    return found


def _is_empty(store: TwinStore, topic_id: int, seq: int) -> bool:
    message_id = int(store.arrivals[topic_id][seq]["id"])
    if not 0 < message_id < store.next_id:
        return True
    row = store.rows[message_id]
    elsewhere = row["topic_id"] != topic_id or row["topic_seq"] != seq
    return bool(row["state"] in (NONE, SCHEDULED) or elsewhere)


def raise_first_seq(store: TwinStore, topic_id: int, limit: int) -> int:
    """Moves ``first_seq`` up over what is gone; 1 when the limit was reached."""
    topic = store.topics[topic_id]
    while topic["first_seq"] < topic["count"]:
        if not limit:
            return 1
        limit -= 1
        seq = int(topic["first_seq"])
        if not _is_empty(store, topic_id, seq):
            return 0
        for priority in [p for p in range(256) if topic["lane_first"][p] == seq + 1]:
            _drop_lane_head(store, topic_id, priority, seq)
        topic["first_seq"] = seq + 1
    return 0


def _drop_lane_head(store: TwinStore, topic_id: int, priority: int, seq: int) -> None:
    topic = store.topics[topic_id]
    topic["lane_first"][priority] = store.arrivals[topic_id][seq]["next"]
    if not topic["lane_first"][priority]:
        topic["lane_last"][priority] = 0
        word = int(topic["lanes"][priority // 64])
        topic["lanes"][priority // 64] = word & ~(1 << priority % 64)
    for group_id in store.groups_of(topic_id):
        cursor = store.groups[group_id]["cursor"]
        if cursor[priority] == seq + 1:
            cursor[priority] = 0


def raise_first_id(store: TwinStore, limit: int) -> int:
    """Moves ``first_id`` up over what is gone; 1 when the limit was reached."""
    while store.first_id < store.next_id and store.rows[store.first_id]["state"] == NONE:
        if not limit:
            return 1
        limit -= 1
        store.first_id += 1
    return 0
