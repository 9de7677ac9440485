"""The twin of ``native/rebuild.c``."""

from __future__ import annotations

from native.twins.delivery import lane_chain
from native.twins.keys import insert
from native.twins.store import ACKED, CANCELLED, LEASED, NONE, SCHEDULED, UNTOUCHED, TwinStore

DONE, NEED_KEYS = 0, 13

Timer = tuple[int, int, int]  # (due_ms, id or topic_seq, version or epoch)


def scheduled(store: TwinStore, from_id: int, end_id: int, capacity: int) -> tuple[list[Timer], int]:
    """Returns (timers of the messages that wait, where to go on)."""
    found: list[Timer] = []
    message_id = from_id
    while message_id < end_id and len(found) < capacity:
        row = store.rows[message_id]
        if row["state"] == SCHEDULED:
            found.append((int(row["deliver_at_ms"]), message_id, int(row["version"])))
        message_id += 1
    return found, message_id


def leased(store: TwinStore, group_id: int, from_seq: int, capacity: int) -> tuple[list[Timer], int]:
    """Returns (timers of a group's leases, where to go on)."""
    rows, high_seq = store.deliveries[group_id], int(store.groups[group_id]["high_seq"])
    found: list[Timer] = []
    seq = from_seq
    while seq < high_seq and len(found) < capacity:
        if rows[seq]["state"] == LEASED:
            found.append((int(rows[seq]["time_ms"]), seq, int(rows[seq]["epoch"])))
        seq += 1
    return found, seq


def rebuild_topics(store: TwinStore) -> int:
    """0, or -1 when an arrival names a message that is not there."""
    for topic_id, arrivals in store.arrivals.items():
        topic = store.topics[topic_id]
        topic["messages"] = topic["cancelled"] = topic["cancelled_in_topic"] = 0
        for name in ("lane_first", "lane_last", "lanes"):
            topic[name] = 0
        chain = lane_chain(store, topic_id)
        for seq, message_id in enumerate(arrivals["id"][: int(topic["count"])].tolist()):
            if not 0 < message_id < store.next_id:
                return -1
            row = store.rows[message_id]
            topic["cancelled_in_topic"] += row["state"] == CANCELLED
            chain.append(int(row["priority"]), seq)
    for row in store.rows[1 : store.next_id]:
        if row["state"] != NONE and store.has_topic(int(row["topic_id"])):
            store.topics[row["topic_id"]]["messages"] += 1
            store.topics[row["topic_id"]]["cancelled"] += row["state"] == CANCELLED
    return 0


def rebuild_keys(store: TwinStore, from_id: int, end_id: int) -> tuple[int, int, int]:
    """Returns (DONE or NEED_KEYS, where to go on, the partition to grow)."""
    for message_id in range(from_id, end_id):
        row = store.rows[message_id]
        key_hash = int(row["key_hash"])
        if not key_hash or row["state"] in (NONE, CANCELLED):
            continue
        if not store.keys.of(key_hash).has_room(1):
            return NEED_KEYS, message_id, key_hash >> 22
        insert(store, message_id, key_hash)
    return DONE, max(from_id, end_id), 0


def rebuild_group(store: TwinStore, group_id: int) -> int:
    """Counts a group's rows and empties its chains."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    topic_id = int(group["topic_id"])
    for name in ("cursor", "retry_first", "retry_last", "retry_lanes"):
        group[name] = 0
    for name in ("touched", "leased", "acked", "deliveries"):
        group[name] = 0
    group["floor_seq"] = group["high_seq"] = group["start_seq"]
    arrivals = store.arrivals[topic_id][: int(store.topics[topic_id]["count"])]
    for seq, (arrival, row) in enumerate(zip(arrivals, rows[: int(group["allocated"])], strict=False)):
        row["holder"] = row["flags"] = row["retry_next"] = 0
        if row["state"] == UNTOUCHED:
            continue
        group["high_seq"] = seq + 1
        group["touched"] += 1
        group["deliveries"] += row["epoch"]
        group["acked"] += row["state"] == ACKED
        group["leased"] += row["state"] == LEASED
        group["cursor"][store.rows[arrival["id"]]["priority"]] = seq + 1
    return 0
