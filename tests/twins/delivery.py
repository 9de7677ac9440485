"""The twin of ``native/delivery.c``."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from tests.twins.ingest import frame
from tests.twins.store import (
    LAST,
    MESSAGE_HEAD_BYTES,
    RUN,
    SCHEDULED,
    Array,
    TwinStore,
)
from tickwheel_native import crc32c

SUPERSEDED, DUE, BROKEN = range(3)
DELIVER: Final = 22
DELIVER_HEAD_BYTES: Final = 8
COLUMN_BYTES: Final = 39  # of each message, besides its key, headers and body
NEED_ORDERS, NEED_MORE_TIME = LAST, LAST - 1
SCAN_LIMIT: Final = 65_536

Receipt = tuple[int, int]  # (topic_seq, epoch)


def runs(values: Sequence[int], epochs: Sequence[int] | None, times: Sequence[int] | None) -> Array:
    """Compresses consecutive values that share epoch and time."""
    found: list[list[int]] = []
    for i, value in enumerate(values):
        epoch, time_ms = epochs[i] if epochs else 0, times[i] if times else 0
        if found and [found[-1][0] + found[-1][1], *found[-1][2:]] == [value, epoch, time_ms]:
            found[-1][1] += 1
        else:
            found.append([value, 1, epoch, time_ms])
    return np.array([tuple(run) for run in found], RUN)


def expanded(of: Array) -> Iterable[tuple[int, int, int]]:
    """(value, epoch, time) of everything that runs stand for."""
    for first, count, epoch, time_ms in of.tolist():
        for value in range(first, first + count):
            yield value, epoch, time_ms


def reach_beyond(of: Array, end: int) -> bool:
    return any(first + count > end for first, count, _, _ in of.tolist())


# -- into the topic --


def due_times(store: TwinStore, ids: Sequence[int]) -> list[int]:
    """When each message is due: its deliver_at, and its part of the topic's spread."""
    return [due_ms(store, message_id) for message_id in ids]


def count_lateness(
    store: TwinStore,
    group_id: int,
    values: Sequence[int],
    epochs: Sequence[int] | None,
    now_ms: int,
    bounds: Sequence[int],
) -> tuple[int, list[int], int]:
    """(messages counted, a histogram of how late they are, the sum in ms)."""
    counts, sum_ms = [0] * (len(bounds) + 1), 0
    first_epoch = int(store.groups[group_id]["fence"]) + 1 if group_id else 1
    for index, value in enumerate(values):
        if epochs is not None and epochs[index] != first_epoch:
            continue
        message_id = value
        if group_id:
            topic_id = int(store.groups[group_id]["topic_id"])
            is_there = value < int(store.topics[topic_id]["count"])
            message_id = int(store.arrivals[topic_id][value]["id"]) if is_there else 0
        if 0 < message_id < store.next_id:
            due = max(due_ms(store, message_id), int(store.rows[message_id]["created_ms"]))
            late_ms = max(0, now_ms - due)
            counts[bisect_left(bounds, late_ms)] += 1
            sum_ms += late_ms
    return sum(counts), counts, sum_ms


def due_ms(store: TwinStore, message_id: int) -> int:
    row = store.rows[message_id]
    part = (message_id * 0x9E3779B97F4A7C15 & LAST) >> 32  # Fibonacci hashing
    return int(row["deliver_at_ms"]) + (part * int(store.topics[row["topic_id"]]["spread_ms"]) >> 32)


def lookup(store: TwinStore, ids: Sequence[int], versions: Sequence[int], now_ms: int) -> list[int]:
    """A verdict for each timer that came off the wheel."""
    return [_lookup(store, *timer, now_ms) for timer in zip(ids, versions, strict=True)]


def _lookup(store: TwinStore, message_id: int, version: int, now_ms: int) -> int:
    if not 0 < message_id < store.next_id:
        return SUPERSEDED
    row = store.rows[message_id]
    if row["state"] != SCHEDULED or row["version"] != version:
        return SUPERSEDED
    if not store.has_topic(int(row["topic_id"])) or due_ms(store, message_id) > now_ms:
        return SUPERSEDED
    return DUE if _is_whole(store, message_id) else BROKEN


def damaged(store: TwinStore, ids: Sequence[int]) -> list[int]:
    """Those whose record in the log does not match its checksum."""
    return [
        one
        for one in ids
        if int(store.rows[one]["position"]) < store.staging_position and not _is_whole(store, one)
    ]


def _is_whole(store: TwinStore, message_id: int) -> bool:
    row = store.rows[message_id]
    position, size = int(row["position"]), int(row["record_bytes"])
    if size < MESSAGE_HEAD_BYTES or position + size > store.log_readable:
        return False
    record = store.log[position : position + size].tobytes()
    crc, record_bytes = struct.unpack_from("<II", record)
    same = record_bytes == size and int.from_bytes(record[16:24], "little") == message_id
    return same and crc32c(record[4:]) == crc


def backoff_ms(
    ack_wait_ms: int, min_backoff_ms: int, max_backoff_ms: int, message_id: int, epoch: int
) -> int:
    """How long the lease of a message's delivery number ``epoch`` lasts."""
    if epoch <= 1:
        return ack_wait_ms
    high = max(max_backoff_ms, ack_wait_ms)
    middle = min(max(min_backoff_ms << min(epoch - 1, 63), ack_wait_ms), high)
    earliest = max(middle - middle // 3, ack_wait_ms)
    latest = min(middle + middle // 3, high)
    return earliest + _mixed(message_id * 1_000_003 + epoch) % (latest - earliest + 1)


def _mixed(value: int) -> int:
    """The finaliser of SplitMix64."""
    value &= LAST
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & LAST
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & LAST
    return value ^ value >> 31


def deliver_frame(store: TwinStore, group_id: int, subscription: int, seqs: Sequence[int]) -> bytes:
    """A DELIVER frame."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    arrivals = store.arrivals[int(group["topic_id"])]
    ids = [int(arrivals[seq]["id"]) for seq in seqs]
    messages = [store.rows[message_id] for message_id in ids]
    records = [store.record(row) for row in messages]
    lengths = [struct.unpack_from("<HHI", record, 40) for record in records]
    columns = [
        struct.pack("<II", subscription, len(seqs)),
        struct.pack(f"<{len(ids)}Q", *ids),
        struct.pack(f"<{len(ids)}q", *(int(row["deliver_at_ms"]) for row in messages)),
        struct.pack(f"<{len(ids)}q", *(int(row["created_ms"]) for row in messages)),
        struct.pack(f"<{len(ids)}I", *(int(rows[seq]["epoch"]) for seq in seqs)),
        struct.pack(f"<{len(ids)}I", *(body for _, _, body in lengths)),
        struct.pack(f"<{len(ids)}H", *(key for key, _, _ in lengths)),
        struct.pack(f"<{len(ids)}H", *(headers for _, headers, _ in lengths)),
        b"".join(record[10:12] for record in records),
        bytes(int(row["priority"]) for row in messages),
        *(record[MESSAGE_HEAD_BYTES:] for record in records),
    ]
    return frame(DELIVER, 0, b"".join(columns))
