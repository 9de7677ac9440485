"""The twin of ``native/orders.c``."""

from __future__ import annotations

import numpy as np

from native.twins.chains import retry_chain
from native.twins.keys import key_hash
from native.twins.store import IN_RETRY, MESSAGE_HEAD_BYTES, PARKED, Array, TwinStore


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
    """Whether the message may go; otherwise it waits behind an earlier one of its key."""
    orders, rows = store.orders.setdefault(group_id, {}), store.deliveries[group_id]
    rows[seq]["order_hash"] = hash_
    if hash_ not in orders:
        orders[hash_] = [seq + 1, 0, 0]
        store.groups[group_id]["orders_count"] += 1
    order = orders[hash_]
    if order[0] == seq + 1:
        return True
    if rows[seq]["flags"] & (PARKED | IN_RETRY):
        return False
    rows[seq]["flags"] |= PARKED
    rows[seq]["retry_next"] = 0
    if order[2]:
        rows[order[2] - 1]["retry_next"] = seq + 1
    else:
        order[1] = seq + 1
    order[2] = seq + 1
    return False


def leave(store: TwinStore, group_id: int, seq: int) -> None:
    """The group is done with a message: the next one of its key may go."""
    rows, orders = store.deliveries[group_id], store.orders.get(group_id, {})
    hash_ = int(rows[seq]["order_hash"])
    order = orders.get(hash_)
    if not hash_ or order is None or order[0] != seq + 1:
        return
    while order[1]:
        following = order[1]
        row = rows[following - 1]
        order[1] = int(row["retry_next"])
        if not order[1]:
            order[2] = 0
        row["flags"] &= ~np.uint8(PARKED)
        if store.is_open(group_id, following - 1):
            order[0] = following
            push_retry(store, group_id, following - 1)
            return
    del orders[hash_]
    store.groups[group_id]["orders_count"] -= 1


def push_retry(store: TwinStore, group_id: int, seq: int) -> None:
    """Appends a message to those that wait for redelivery."""
    store.deliveries[group_id][seq]["flags"] |= IN_RETRY
    retry_chain(store, group_id).append(int(store.message_of(group_id, seq)["priority"]), seq)
