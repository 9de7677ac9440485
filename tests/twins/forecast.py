"""The twin of ``native/forecast.c``."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tests.twins.delivery import due_ms
from tests.twins.store import IN_RETRY, LEASED, PARKED, POSTPONED, SCHEDULED, WAITING, TwinStore

Timer = tuple[int, int, int, int]  # (due_ms, ref, epoch, owner)
Counts = tuple[list[int], list[int], list[int]]


def forecast(
    store: TwinStore, timers: Sequence[Timer], tick: int, until_ms: Sequence[int], first: int, count: int
) -> Counts:
    """(messages, leases, timers of what is gone) due up to each moment and, at last, later."""
    messages, leases, gone = ([0] * (len(until_ms) + 1) for _ in range(3))
    seen: set[int] = set()
    for due, ref, epoch, owner in timers:
        if due < 0:
            continue
        if owner:
            found, kind = _lease_due(store, ref, epoch, owner), leases
        else:
            found, kind = _message_due(store, ref, epoch) if first <= ref < first + count else None, messages
        if found is None or not (due == found or due > found <= tick) or (not owner and ref in seen):
            found, kind = due, gone
        elif not owner:
            seen.add(ref)
        kind[bisect_left(until_ms, found)] += 1
    return messages, leases, gone


def _message_due(store: TwinStore, ref: int, epoch: int) -> int | None:
    if not store.first_id <= ref < min(store.next_id, len(store.rows)):
        return None
    row = store.rows[ref]
    waits = row["state"] == SCHEDULED and row["version"] == epoch and store.has_topic(int(row["topic_id"]))
    return due_ms(store, ref) if waits else None


def _lease_due(store: TwinStore, ref: int, epoch: int, owner: int) -> int | None:
    if owner >= len(store.groups) or not store.groups[owner]["exists"]:
        return None
    group = store.groups[owner]
    if not group["floor_seq"] <= ref < min(int(group["high_seq"]), int(group["allocated"])):
        return None
    row = store.deliveries[owner][ref]
    if row["state"] not in (LEASED, WAITING) or row["epoch"] != epoch:
        return None
    if row["flags"] & (IN_RETRY | PARKED) and not row["flags"] & POSTPONED:
        return None
    is_here = not store.is_gone(owner, ref) and store.is_in_topic(owner, ref)
    return int(row["time_ms"]) if is_here else None
