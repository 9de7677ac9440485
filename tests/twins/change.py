"""The twin of ``native/change.c``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tests.twins import orders
from tests.twins.acks import let_go
from tests.twins.keys import remove
from tests.twins.store import (
    ACKED,
    CANCELLED,
    DEAD,
    EXPIRED,
    LEASED,
    ORDERED,
    READY,
    SCHEDULED,
    UNTOUCHED,
    WAITING,
    Array,
    TwinStore,
)

IS_UNKNOWN, IS_SCHEDULED, IS_READY, IS_DELIVERED, IS_DONE, IS_CANCELLED, IS_EXPIRED = range(7)
_OF_STATE: Final = {SCHEDULED: IS_SCHEDULED, CANCELLED: IS_CANCELLED, EXPIRED: IS_EXPIRED}


def judge_all(store: TwinStore, ids: Sequence[int]) -> list[int]:
    """How each message stands."""
    return [_judge(store, message_id) for message_id in ids]


def _judge(store: TwinStore, message_id: int) -> int:
    if not 0 < message_id < store.next_id:
        return IS_UNKNOWN
    row = store.rows[message_id]
    if not store.has_topic(int(row["topic_id"])):
        return IS_UNKNOWN
    if row["state"] != READY:
        return _OF_STATE.get(int(row["state"]), IS_UNKNOWN)
    topic_id, seq = int(row["topic_id"]), int(row["topic_seq"])
    groups = [(store.groups[group_id], store.deliveries[group_id]) for group_id in store.groups_of(topic_id)]
    rows = [rows[seq] for group, rows in groups if group["rows_from"] <= seq < group["allocated"]]
    if not any(delivery["state"] != UNTOUCHED or delivery["epoch"] for delivery in rows):
        return IS_READY
    states = [int(delivery["state"]) for _, delivery in _deliveries(store, row)]
    return IS_DONE if all(state in (ACKED, DEAD) for state in states) else IS_DELIVERED


class _Untouched(dict[str, int]):
    """The row that a group has not made yet."""


def _deliveries(store: TwinStore, row: Any) -> list[tuple[int, Any]]:
    """(group, its row of the message) for the groups that deliver it."""
    seq, found = int(row["topic_seq"]), []
    for group_id in store.groups_of(int(row["topic_id"])):
        group = store.groups[group_id]
        if seq >= group["start_seq"]:
            is_there = seq < group["allocated"]
            found.append(
                (group_id, store.deliveries[group_id][seq] if is_there else _Untouched(state=UNTOUCHED))
            )
    return found


def _withdraw(store: TwinStore, row: Any) -> None:
    topic = store.topics[row["topic_id"]]
    topic["ready"] -= 1 if topic["ready"] else 0
    for group_id, delivery in _deliveries(store, row):
        group = store.groups[group_id]
        if delivery["state"] in (ACKED, DEAD):
            continue
        group["pending"] -= 1 if group["pending"] else 0
        if delivery["state"] == LEASED:
            let_go(store, group, delivery)
            delivery["state"] = WAITING


def _leave_orders(store: TwinStore, row: Any) -> None:
    for group_id in store.groups_of(int(row["topic_id"])):
        if row["topic_seq"] < store.groups[group_id]["allocated"]:
            orders.leave(store, group_id, int(row["topic_seq"]))


def apply_end(store: TwinStore, ids: Sequence[int], state: int) -> int:
    """0, or -1 when a message does not exist: then nothing is changed."""
    if not all(0 < message_id < store.next_id for message_id in ids):
        return -1
    for message_id in ids:
        row = store.rows[message_id]
        topic, before = store.topics[row["topic_id"]], int(row["state"])
        if before not in (SCHEDULED, READY):
            continue
        if before == READY:
            _withdraw(store, row)
        else:
            topic["scheduled"] -= 1 if topic["scheduled"] else 0
        row["state"] = state
        topic["cancelled"] += state == CANCELLED
        if row["key_hash"]:
            remove(store, message_id)
        if before == READY and row["flags"] & ORDERED:
            _leave_orders(store, row)
    return 0


def apply_reschedule(store: TwinStore, of: Array, priority: int) -> int:
    """0, or -1 when a message does not exist: then nothing is changed. ``priority`` 256: as it is."""
    if not all(0 < message_id < store.next_id for message_id in of["first"].tolist()):
        return -1
    for message_id, _, version, time_ms in of.tolist():
        row = store.rows[message_id]
        before = int(row["state"])
        if before not in (SCHEDULED, READY):
            continue
        if before == READY:
            _withdraw(store, row)
            store.topics[row["topic_id"]]["scheduled"] += 1
        row["state"], row["deliver_at_ms"], row["version"] = SCHEDULED, time_ms, version & 0xFFFF
        if priority <= 255 and not row["flags"] & ORDERED:
            row["priority"] = priority
        if before == READY and row["flags"] & ORDERED:
            _leave_orders(store, row)
    return 0
