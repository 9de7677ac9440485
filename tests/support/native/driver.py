"""Drives a Store through the five services in one go, as the broker's tasks do over time."""

from __future__ import annotations

from timerlog.settings import StoreSettings
from timerlog.store import Store

MIB = 1024 * 1024
NOW_MS = 1_900_000_000_000
SMALL = StoreSettings(
    segment_bytes=6 * MIB,
    max_frame_bytes=80 * 1024,
    max_body_bytes=16 * 1024,
    ack_wait_ms=1_000,
    min_backoff_ms=1_000,
    max_backoff_ms=8_000,
)


def pump(store: Store, now_ms: int) -> int:
    """Syncs, then moves everything that is due into its topic; returns how many references moved."""
    store.sync()
    moved = 0
    while (batch := store.enqueue_get.take(1_000)) is not None:
        due = store.enqueue_put.link(batch, now_ms)
        if due is not None:
            moved += len(due)
            store.dequeue_put_message.move(store.dequeue_get_message.look_up(due, now_ms), now_ms)
    while True:
        due = store.dequeue_get.turn(now_ms, 1_000)
        if due is not None:
            moved += len(due)
            store.dequeue_put_message.move(store.dequeue_get_message.look_up(due, now_ms), now_ms)
        wakeup_ms = store.dequeue_get.next_wakeup_ms()
        if wakeup_ms is None or wakeup_ms > now_ms:
            return moved
