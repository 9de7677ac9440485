"""The twin of ``native/rebuild.c``."""

from __future__ import annotations

from tests.twins import orders
from tests.twins.delivery import due_ms, lane_chain
from tests.twins.keys import insert
from tests.twins.store import (
    ACKED,
    CALLED,
    CANCELLED,
    DEAD,
    LEASED,
    NONE,
    ORDERED,
    ORDERED_PRIORITY,
    READY,
    SCHEDULED,
    UNTOUCHED,
    WAITING,
    TwinStore,
)

DONE, NEED_KEYS = 0, 13

Timer = tuple[int, int, int]  # (due_ms, id or topic_seq, version or epoch)


def scheduled(store: TwinStore, from_id: int, end_id: int, capacity: int) -> tuple[list[Timer], int]:
    """Returns (timers of the messages that wait, where to go on)."""
    found: list[Timer] = []
    message_id = from_id
    while message_id < end_id and len(found) < capacity:
        row = store.rows[message_id]
        if row["state"] == SCHEDULED and store.has_topic(int(row["topic_id"])):
            found.append((due_ms(store, message_id), message_id, int(row["version"])))
        message_id += 1
    return found, message_id


def leased(store: TwinStore, group_id: int, from_seq: int, capacity: int) -> tuple[list[Timer], int]:
    """Returns (timers of a group's leases and waits, where to go on)."""
    rows, high_seq = store.deliveries[group_id], int(store.groups[group_id]["high_seq"])
    found: list[Timer] = []
    seq = from_seq
    while seq < high_seq and len(found) < capacity:
        if rows[seq]["state"] in (LEASED, WAITING) and store.is_in_topic(group_id, seq):
            found.append((int(rows[seq]["time_ms"]), seq, int(rows[seq]["epoch"])))
        seq += 1
    return found, seq


def rebuild_topics(store: TwinStore) -> int:
    """0, or -1 when an arrival names a message that is not there."""
    for topic_id, arrivals in store.arrivals.items():
        topic = store.topics[topic_id]
        topic["messages"], topic["cancelled"] = topic["purged_messages"], topic["purged_cancelled"]
        topic["scheduled"] = topic["ready"] = 0
        for name in ("lane_first", "lane_last", "lanes"):
            topic[name] = 0
        chain = lane_chain(store, topic_id)
        for seq in range(int(topic["first_seq"]), int(topic["count"])):
            message_id = int(arrivals[seq]["id"])
            if message_id >= store.next_id:
                return -1
            if message_id and store.rows[message_id]["state"] != NONE:
                chain.append(int(store.rows[message_id]["priority"]), seq)
    for row in store.rows[store.first_id : store.next_id]:
        if row["state"] != NONE and store.has_topic(int(row["topic_id"])):
            topic = store.topics[row["topic_id"]]
            topic["messages"] += 1
            topic["scheduled"] += row["state"] == SCHEDULED
            topic["ready"] += row["state"] == READY
            topic["cancelled"] += row["state"] == CANCELLED
    return 0


def rebuild_keys(store: TwinStore, from_id: int, end_id: int) -> tuple[int, int, int]:
    """Returns (DONE or NEED_KEYS, where to go on, the partition to grow)."""
    for message_id in range(from_id, end_id):
        row = store.rows[message_id]
        key_hash = int(row["key_hash"])
        if (
            not key_hash
            or row["state"] not in (SCHEDULED, READY)
            or not store.has_topic(int(row["topic_id"]))
        ):
            continue
        if not store.keys.of(key_hash).has_room(1):
            return NEED_KEYS, message_id, key_hash >> 22
        insert(store, message_id, key_hash)
    return DONE, max(from_id, end_id), 0


def skip_to_start(store: TwinStore, group_id: int) -> None:
    """Moves the cursors over what lies before the group's start."""
    group = store.groups[group_id]
    topic_id = int(group["topic_id"])
    for priority, first in enumerate(store.topics[topic_id]["lane_first"].tolist()):
        at = first
        while at and at <= group["start_seq"]:
            group["cursor"][priority] = at
            at = int(store.arrivals[topic_id][at - 1]["next"])


def rebuild_group(store: TwinStore, group_id: int) -> int:
    """Counts a group's rows, empties its chains, and sets its cursors."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    count = int(store.topics[group["topic_id"]]["count"])
    for name in ("cursor", "retry_first", "retry_last", "retry_lanes", "touched", "leased", "pending"):
        group[name] = 0
    for name in ("acked", "dead", "deliveries"):
        group[name] = group[f"purged_{name}"]
    first_seq = int(store.topics[group["topic_id"]]["first_seq"])
    group["floor_seq"] = group["high_seq"] = max(int(group["start_seq"]), first_seq)
    skip_to_start(store, group_id)
    end, is_held = min(int(group["allocated"]), count), False
    for seq in range(max(first_seq, int(group["rows_from"])), end):
        is_held = _count_delivery(store, group_id, seq, is_held)
    for seq in range(int(group["floor_seq"]), count):
        group["pending"] += store.is_open(group_id, seq) if seq < end else store.is_in_topic(group_id, seq)
    assert len(rows) >= end
    return 0


def rebuild_orders(store: TwinStore, group_id: int, from_seq: int) -> tuple[bool, int]:
    """Returns (whether the table of busy keys must be grown first, where to go on)."""
    rows = store.deliveries[group_id]
    from_seq = max(from_seq, int(store.groups[group_id]["floor_seq"]))
    for seq in range(from_seq, int(store.groups[group_id]["high_seq"])):
        if rows[seq]["state"] != LEASED or not store.is_in_topic(group_id, seq):
            continue
        message = store.message_of(group_id, seq)
        if not message["flags"] & ORDERED:
            continue
        if not orders.have_room(store, group_id):
            return True, seq
        orders.enter(store, group_id, orders.order_hash(store, message), seq)
    return False, max(from_seq, int(store.groups[group_id]["high_seq"]))


def _count_delivery(store: TwinStore, group_id: int, seq: int, is_held: bool) -> bool:
    """Counts one row; returns whether the cursor of the lane of ordered messages stands still from here on."""
    group, row, message = (
        store.groups[group_id],
        store.deliveries[group_id][seq],
        store.message_of(group_id, seq),
    )
    row["holder"] = row["retry_next"] = row["order_hash"] = 0
    row["flags"] = int(row["flags"]) & CALLED
    if row["state"] == LEASED and not store.is_in_topic(group_id, seq):
        row["state"] = WAITING
    is_before = seq < group["start_seq"]
    is_held |= bool(message["flags"] & ORDERED) and not is_before and store.is_open(group_id, seq)
    if row["state"] == UNTOUCHED and not row["epoch"]:
        return is_held
    group["high_seq"] = seq + 1
    group["deliveries"] += store.times_delivered(group, row)
    group["highest_epoch"] = max(int(group["highest_epoch"]), int(row["epoch"]))
    if row["state"] == UNTOUCHED:
        return is_held
    group["touched"] += 1
    group["acked"] += row["state"] == ACKED
    group["dead"] += row["state"] == DEAD
    group["leased"] += row["state"] == LEASED
    if not row["epoch"] or is_before or not store.is_in_topic(group_id, seq):
        return is_held
    if not (is_held and message["priority"] == ORDERED_PRIORITY):
        group["cursor"][message["priority"]] = seq + 1
    return is_held
