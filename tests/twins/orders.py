"""The twin of ``native/orders.c``."""

from __future__ import annotations

import numpy as np

from tests.twins.chains import retry_chain
from tests.twins.keys import key_hash
from tests.twins.store import IN_RETRY, MESSAGE_HEAD_BYTES, PARKED, POSTPONED, UNTOUCHED, Array, TwinStore

# The columns of a busy key: topic_seq + 1, or 0.
CURRENT, FIRST, LAST_AGAIN, LAST_OF_ALL = range(4)


def clear(store: TwinStore, group_id: int) -> None:
    """No key is busy."""
    store.orders.pop(group_id, None)
    store.groups[group_id]["orders_count"] = 0


def have_room(store: TwinStore, group_id: int) -> bool:
    group = store.groups[group_id]
    return bool((int(group["orders_count"]) + 1) * 4 <= int(group["orders_capacity"]) * 3)


def order_hash(store: TwinStore, row: Array) -> int:
    """The hash of a message's ordering key."""
    record = store.record(row)
    start = (
        MESSAGE_HEAD_BYTES + int.from_bytes(record[40:42], "little") + int.from_bytes(record[42:44], "little")
    )
    size = int.from_bytes(record[10:12], "little")
    return 1 if start + size > len(record) else key_hash(0, record[start : start + size])


def enter(store: TwinStore, group_id: int, hash_: int, seq: int) -> bool:
    """Whether the message may go: then its key is busy with it."""
    orders = store.orders.setdefault(group_id, {})
    store.deliveries[group_id][seq]["order_hash"] = hash_
    if hash_ not in orders:
        orders[hash_] = [seq + 1, 0, 0, 0]
        store.groups[group_id]["orders_count"] += 1
    return orders[hash_][CURRENT] == seq + 1


def park(store: TwinStore, group_id: int, seq: int) -> None:
    """Puts a message that was entered where it waits for its key: those delivered before come first."""
    rows = store.deliveries[group_id]
    order = store.orders[group_id][int(rows[seq]["order_hash"])]
    is_new = rows[seq]["state"] == UNTOUCHED
    before = order[LAST_OF_ALL if is_new else LAST_AGAIN]
    rows[seq]["flags"] |= PARKED
    rows[seq]["retry_next"] = rows[before - 1]["retry_next"] if before else order[FIRST]
    if before:
        rows[before - 1]["retry_next"] = seq + 1
    else:
        order[FIRST] = seq + 1
    if before == order[LAST_OF_ALL]:
        order[LAST_OF_ALL] = seq + 1
    if not is_new:
        order[LAST_AGAIN] = seq + 1


def leave(store: TwinStore, group_id: int, seq: int) -> None:
    """The group is done with a message: the next one of its key may go."""
    rows, orders = store.deliveries[group_id], store.orders.get(group_id, {})
    hash_ = int(rows[seq]["order_hash"])
    order = orders.get(hash_)
    if not hash_ or order is None or order[CURRENT] != seq + 1:
        return
    while order[FIRST]:
        following = order[FIRST]
        row = rows[following - 1]
        order[FIRST] = int(row["retry_next"])
        if not order[FIRST]:
            order[LAST_OF_ALL] = 0
        if order[LAST_AGAIN] == following:
            order[LAST_AGAIN] = 0
        is_postponed = bool(row["flags"] & POSTPONED)
        row["flags"] &= ~np.uint8(PARKED | POSTPONED)
        if not is_postponed and store.is_open(group_id, following - 1):
            order[CURRENT] = following
            push_retry(store, group_id, following - 1)
            return
    del orders[hash_]
    store.groups[group_id]["orders_count"] -= 1


def push_retry(store: TwinStore, group_id: int, seq: int) -> None:
    """Appends a message to those that wait for redelivery."""
    store.deliveries[group_id][seq]["flags"] |= IN_RETRY
    retry_chain(store, group_id).append(int(store.message_of(group_id, seq)["priority"]), seq)
