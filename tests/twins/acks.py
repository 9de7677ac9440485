"""The twin of ``native/acks.c``."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tests.twins import orders
from tests.twins.delivery import Receipt, expanded, reach_beyond
from tests.twins.rebuild import rebuild_group
from tests.twins.store import (
    ACKED,
    ACKING,
    CALLED,
    DEAD,
    IN_RETRY,
    LEASED,
    NONE,
    PARKED,
    POSTPONED,
    READY,
    RESET_ATTEMPTS,
    SCHEDULED,
    UNTOUCHED,
    WAITING,
    WERE_DONE,
    Array,
    TwinStore,
)

IN_A_CHAIN: Final = IN_RETRY | PARKED
ALREADY_ACKED, STALE_RECEIPT, NOT_FOUND, NEVER_DELIVERED, WAS_CANCELLED = range(1, 6)


def ack_check(store: TwinStore, group_id: int, payload: bytes, n: int) -> tuple[list[Receipt], list[int]]:
    """Returns (accepted receipts, a code for each receipt); accepted ones are marked."""
    ids = struct.unpack_from(f"<{n}Q", payload)
    epochs = struct.unpack_from(f"<{n}I", payload, 8 * n)
    accepted, codes = [], []
    for message_id, epoch in zip(ids, epochs, strict=True):
        code = _judge_receipt(store, group_id, message_id, epoch)
        codes.append(code)
        if not code:
            seq = int(store.rows[message_id]["topic_seq"])
            store.deliveries[group_id][seq]["flags"] |= ACKING
            accepted.append((seq, epoch))
    return accepted, codes


def _judge_receipt(store: TwinStore, group_id: int, message_id: int, epoch: int) -> int:
    group, rows = store.groups[group_id], store.deliveries[group_id]
    if not 0 < message_id < store.next_id:
        return NOT_FOUND
    message = store.rows[message_id]
    if message["topic_id"] != group["topic_id"] or message["state"] == NONE:
        return NOT_FOUND
    if 0 < epoch <= group["fence"]:
        return STALE_RECEIPT
    has_row = group["rows_from"] <= message["topic_seq"] < group["allocated"]
    if message["state"] == SCHEDULED or not has_row:
        return NEVER_DELIVERED
    row = rows[int(message["topic_seq"])]
    if row["state"] == UNTOUCHED:
        return STALE_RECEIPT if 0 < epoch <= row["epoch"] else NEVER_DELIVERED
    if row["state"] == ACKED or row["flags"] & ACKING:
        return ALREADY_ACKED
    if message["state"] != READY:
        return WAS_CANCELLED
    return 0 if row["state"] == LEASED and row["epoch"] == epoch else STALE_RECEIPT


def unmark_acks(store: TwinStore, group_id: int, seqs: Sequence[int]) -> None:
    for seq in seqs:
        store.deliveries[group_id][seq]["flags"] &= ~np.uint8(ACKING)


def let_go(store: TwinStore, group: Any, row: Any) -> None:
    """The subscription no longer holds the message: its credit comes back."""
    if row["state"] != LEASED or row["flags"] & IN_A_CHAIN:
        return
    holder = int(row["holder"])
    if holder and store.outstanding[holder]:
        store.outstanding[holder] -= 1
    row["holder"] = 0
    group["leased"] -= 1 if group["leased"] else 0


def _lower(group: Any, name: str) -> None:
    group[name] -= 1 if group[name] else 0


def _finish(store: TwinStore, group_id: int, of: Array, state: int) -> int:
    group, rows = store.groups[group_id], store.deliveries[group_id]
    if reach_beyond(of, int(group["allocated"])):
        return -1
    for seq, _, time_ms in expanded(of):
        row = rows[seq]
        group["high_seq"] = max(int(group["high_seq"]), seq + 1)
        if store.is_gone(group_id, seq):
            continue
        row["flags"] &= ~np.uint8(ACKING | CALLED)
        if row["state"] == state:
            continue
        group["touched"] += row["state"] == UNTOUCHED
        let_go(store, group, row)
        _lower(group, {ACKED: "acked", DEAD: "dead"}.get(int(row["state"]), "pending"))
        row["state"], row["time_ms"] = state, time_ms
        group["acked" if state == ACKED else "dead"] += 1
        orders.leave(store, group_id, seq)
    return 0


def apply_ack(store: TwinStore, group_id: int, of: Array) -> int:
    """0, or -1 when a run names a row that is not there: then nothing is changed."""
    return _finish(store, group_id, of, ACKED)


def apply_dead(store: TwinStore, group_id: int, of: Array) -> int:
    """As ``apply_ack``, for messages that are given up."""
    return _finish(store, group_id, of, DEAD)


def apply_nack(store: TwinStore, group_id: int, of: Array) -> int:
    """0, or -1 when a run names a row that is not there: then nothing is changed."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    if reach_beyond(of, int(group["allocated"])):
        return -1
    for seq, epoch, time_ms in expanded(of):
        row = rows[seq]
        if row["epoch"] != epoch or row["state"] not in (LEASED, WAITING):
            continue
        row["flags"] &= ~np.uint8(ACKING)
        let_go(store, group, row)
        _wait_until(row, time_ms)
    return 0


def _wait_until(row: Any, time_ms: int) -> None:
    row["state"], row["time_ms"] = WAITING, time_ms
    row["flags"] &= ~np.uint8(CALLED)
    if row["flags"] & IN_A_CHAIN:
        row["flags"] |= POSTPONED


def apply_redeliver(store: TwinStore, group_id: int, of: Array, how: int) -> int:
    """0, or -1 when a run names a row that is not there: then nothing is changed."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    if reach_beyond(of, int(group["allocated"])):
        return -1
    for seq, epoch, time_ms in expanded(of):
        row = rows[seq]
        if row["state"] == UNTOUCHED:
            continue
        let_go(store, group, row)
        if row["state"] in (ACKED, DEAD):
            _lower(group, "acked" if row["state"] == ACKED else "dead")
            group["pending"] += 1
        _wait_until(row, time_ms)
        if how & WERE_DONE:
            row["flags"] |= CALLED
        if how & RESET_ATTEMPTS:
            row["base_epoch"] = epoch
    for first in of["first"].tolist():
        group["floor_seq"] = min(int(group["floor_seq"]), first)
    return 0


def apply_seek(store: TwinStore, group_id: int, start_seq: int) -> None:
    """The group begins anew at a number of its topic."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    first = max(int(group["rows_from"]), int(store.topics[int(group["topic_id"])]["first_seq"]))
    for seq in range(first, min(int(group["high_seq"]), int(group["allocated"]))):
        row = rows[seq]
        if row["state"] == UNTOUCHED and not row["flags"]:
            continue
        let_go(store, group, row)
        row["flags"] = 0
        if seq < start_seq and row["state"] in (ACKED, DEAD):
            continue
        row["state"], row["base_epoch"], row["time_ms"] = UNTOUCHED, row["epoch"], 0
    orders.clear(store, group_id)
    group["start_seq"], group["rows_from"] = start_seq, min(int(group["rows_from"]), start_seq)
    rebuild_group(store, group_id)


def _is_in_a_chain(row: Any) -> bool:
    if not row["flags"] & IN_A_CHAIN:
        return False
    row["flags"] &= ~np.uint8(POSTPONED)
    return True


def expire(
    store: TwinStore, group_id: int, receipts: Sequence[Receipt], now_ms: int
) -> tuple[int, list[int]]:
    """Ends leases and waits whose time has come. Returns (how many are to be delivered again, those that had all their
    attempts)."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    moved, exhausted = 0, []
    for seq, epoch in receipts:
        if seq >= group["allocated"]:
            continue
        row = rows[seq]
        is_held = row["state"] in (LEASED, WAITING) and row["epoch"] == epoch
        if not is_held or row["time_ms"] > now_ms or _is_in_a_chain(row):
            continue
        if not store.is_in_topic(group_id, seq):
            continue
        if group["max_attempts"] and int(row["epoch"]) - int(row["base_epoch"]) >= group["max_attempts"]:
            exhausted.append(seq)
            continue
        let_go(store, group, row)
        orders.push_retry(store, group_id, seq)
        moved += 1
    return moved, exhausted


def requeue(store: TwinStore, group_id: int, seqs: Sequence[int]) -> None:
    """Moves messages to the retry chain without a question."""
    for seq in seqs:
        row = store.deliveries[group_id][seq]
        if not _is_in_a_chain(row):
            let_go(store, store.groups[group_id], row)
            orders.push_retry(store, group_id, seq)


def held_by(
    store: TwinStore, group_id: int, holder: int, from_seq: int, capacity: int
) -> tuple[list[Receipt], int]:
    """Returns (what a holder has on lease, where to go on)."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    high_seq = int(group["high_seq"])
    while group["floor_seq"] < high_seq and not store.is_open(group_id, int(group["floor_seq"])):
        group["floor_seq"] += 1
    found: list[Receipt] = []
    seq = max(from_seq, int(group["floor_seq"]))
    while seq < high_seq and len(found) < capacity:
        row = rows[seq]
        if row["state"] == LEASED and row["holder"] == holder:
            found.append((seq, int(row["epoch"])))
        seq += 1
    return found, seq


def apply_release(store: TwinStore, group_id: int, of: Array) -> int:
    """0, or -1 when a run names a row that is not there: then nothing is changed."""
    return _end_leases(store, group_id, of, None)


def apply_return(store: TwinStore, group_id: int, of: Array, time_ms: int) -> int:
    """As ``apply_release``, at one time; the runs' times are the rows' ``base_epoch``."""
    return _end_leases(store, group_id, of, time_ms)


def _end_leases(store: TwinStore, group_id: int, of: Array, at_ms: int | None) -> int:
    group, rows = store.groups[group_id], store.deliveries[group_id]
    if reach_beyond(of, int(group["allocated"])):
        return -1
    for seq, epoch, value in expanded(of):
        row = rows[seq]
        if row["state"] != LEASED or row["epoch"] != epoch:
            continue
        row["time_ms"] = value if at_ms is None else at_ms
        if at_ms is not None:
            row["base_epoch"] = value & 0xFFFFFFFF
        row["flags"] &= ~np.uint8(ACKING)
    return 0
