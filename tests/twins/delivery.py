"""The twin of ``native/delivery.c``."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from tests.twins import orders
from tests.twins.chains import Chain, retry_chain
from tests.twins.ingest import frame
from tests.twins.store import (
    CALLED,
    IN_RETRY,
    LAST,
    LEASED,
    MESSAGE_HEAD_BYTES,
    ORDERED,
    PARKED,
    POSTPONED,
    READY,
    RESERVED_SHARE,
    RUN,
    SCHEDULED,
    TAKEN,
    UNTOUCHED,
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
    position, size = int(row["position"]), int(row["record_bytes"])
    if size < MESSAGE_HEAD_BYTES or position + size > store.log_readable:
        return BROKEN
    record = store.log[position : position + size].tobytes()
    crc, record_bytes = struct.unpack_from("<II", record)
    same = record_bytes == size and int.from_bytes(record[16:24], "little") == message_id
    return DUE if same and crc32c(record[4:]) == crc else BROKEN


def lane_chain(store: TwinStore, topic_id: int) -> Chain:
    topic, arrivals = store.topics[topic_id], store.arrivals[topic_id]
    return Chain(topic, arrivals, "lane_first", "lane_last", "lanes", "next")


def apply_put(store: TwinStore, topic_id: int, first_seq: int, of: Array) -> int:
    """0, or -1 when a message does not exist or there is no room for its arrival: then nothing is changed."""
    ids = [message_id for message_id, _, _ in expanded(of)] if not reach_beyond(of, store.next_id) else [0]
    if 0 in ids or first_seq + len(ids) > int(store.topics[topic_id]["allocated"]):
        return -1
    chain = lane_chain(store, topic_id)
    for seq, message_id in enumerate(ids, first_seq):
        row = store.rows[message_id]
        topic = store.topics[topic_id]
        if row["state"] == SCHEDULED and topic["scheduled"]:
            topic["scheduled"] -= 1
        topic["ready"] += row["state"] != READY
        row["state"], row["topic_seq"] = READY, seq
        store.arrivals[topic_id][seq]["id"] = message_id
        chain.append(int(row["priority"]), seq)
    topic = store.topics[topic_id]
    topic["count"] = max(int(topic["count"]), first_seq + len(ids))
    for group_id in store.groups_of(topic_id):
        store.groups[group_id]["pending"] += len(ids)
    return 0


# -- from the topic to a subscriber --


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


class Needed(Exception):
    """Something must be provided first: NEED_ORDERS, NEED_MORE_TIME, or how far the group's rows must reach."""

    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


class Selection:
    """What one delivery takes: redeliveries first, then new messages, from the lowest priority number up; and one of
    RESERVED_SHARE the message that waits longest."""

    def __init__(self, store: TwinStore, group_id: int) -> None:
        self.store, self.group_id, self.group = store, group_id, store.groups[group_id]
        self.rows = store.deliveries[group_id]
        self.retries = retry_chain(store, group_id)
        topic_id = int(self.group["topic_id"])
        self.topic, self.arrivals = store.topics[topic_id], store.arrivals[topic_id]
        words = [int(a) | int(b) for a, b in zip(self.topic["lanes"], self.group["retry_lanes"], strict=True)]
        self.lanes = [p for p in range(256) if words[p // 64] >> p % 64 & 1]
        self.has_one_lane = len(self.lanes) <= 1
        self.scanned = 0

    def next(self) -> int | None:
        """The topic_seq of the message to be delivered next."""
        if not self.has_one_lane and (int(self.group["turn"]) + 1) % RESERVED_SHARE == 0:
            seq = self._longest_waiting()
            if seq is not None:
                return seq
        while self.lanes:
            seq = self._take(self.lanes[0])
            if seq is not None:
                return seq
            self.lanes.pop(0)
        return None

    def _take(self, priority: int) -> int | None:
        seq = self._retry_head(priority)
        if seq is not None:
            self._drop_retry(priority)
            return seq
        seq = self._lane_head(priority)
        if seq is not None:
            self.group["cursor"][priority] = seq + 1
        return seq

    def _longest_waiting(self) -> int | None:
        found: list[tuple[int, int, bool]] = []
        for priority in self.lanes:
            retry, fresh = self._retry_head(priority), self._lane_head(priority)
            found += [
                (seq, priority, again) for seq, again in ((retry, True), (fresh, False)) if seq is not None
            ]
        if not found:
            return None
        seq, priority, again = min(found)
        if again:
            self._drop_retry(priority)
        else:
            self.group["cursor"][priority] = seq + 1
        return seq

    def _drop_retry(self, priority: int) -> None:
        seq = self.retries.pop(priority)
        assert seq is not None
        self.rows[seq]["flags"] &= ~np.uint8(IN_RETRY | POSTPONED)

    def _has_its_key(self, seq: int) -> bool:
        message = self.store.message_of(self.group_id, seq)
        if not message["flags"] & ORDERED:
            return True
        if not orders.have_room(self.store, self.group_id):
            raise Needed(NEED_ORDERS)
        hash_ = int(self.rows[seq]["order_hash"]) or orders.order_hash(self.store, message)
        return orders.enter(self.store, self.group_id, hash_, seq)

    def _retry_head(self, priority: int) -> int | None:
        while (at := int(self.group["retry_first"][priority])) != 0:
            seq = at - 1
            waits = self.store.is_open(self.group_id, seq) and not self.rows[seq]["flags"] & POSTPONED
            if waits and self._has_its_key(seq):
                return seq
            self._drop_retry(priority)
            if waits:
                orders.park(self.store, self.group_id, seq)
        return None

    def _lane_head(self, priority: int) -> int | None:
        while self.scanned < SCAN_LIMIT:
            cursor = int(self.group["cursor"][priority])
            behind = self.arrivals[cursor - 1]["next"] if cursor else self.topic["lane_first"][priority]
            if not behind:
                return None
            if behind > self.group["allocated"]:
                raise Needed(int(behind))
            if self._is_its_turn(int(behind) - 1):
                return int(behind) - 1
            self.group["cursor"][priority] = behind
            self.scanned += 1
        raise Needed(NEED_MORE_TIME)

    def _is_its_turn(self, seq: int) -> bool:
        if seq < self.group["start_seq"] or not self.store.is_open(self.group_id, seq):
            return False
        row = self.rows[seq]
        if row["flags"] & (PARKED | TAKEN | CALLED):
            return False
        is_new = bool(row["state"] == UNTOUCHED and not row["flags"] & IN_RETRY)
        if self._has_its_key(seq):
            return is_new
        if is_new:
            orders.park(self.store, self.group_id, seq)
        return False

    def lease(self, seq: int, now_ms: int) -> tuple[int, int, int, int]:
        """(topic_seq, epoch, lease's end, bytes in the frame) of a message that was taken."""
        message_id, fence = int(self.arrivals[seq]["id"]), int(self.group["fence"])
        epoch = max(int(self.rows[seq]["epoch"]), fence) + 1
        attempt = epoch - max(int(self.rows[seq]["base_epoch"]), fence)
        least, middle, most = self.group[["ack_wait_ms", "min_backoff_ms", "max_backoff_ms"]].tolist()
        content = int(self.store.rows[message_id]["record_bytes"]) - MESSAGE_HEAD_BYTES
        return (
            seq,
            epoch,
            now_ms + backoff_ms(least, middle, most, message_id, attempt),
            COLUMN_BYTES + content,
        )


def select(
    store: TwinStore, group_id: int, limit: int, limit_bytes: int, now_ms: int
) -> tuple[list[tuple[int, int, int]], int, int]:
    """Returns ([(topic_seq, epoch, lease's end)], the frame's bytes, need)."""
    selection = Selection(store, group_id)
    taken: list[tuple[int, int, int]] = []
    size, need = DELIVER_HEAD_BYTES, 0
    while len(taken) < limit and (not taken or size < limit_bytes):
        try:
            seq = selection.next()
        except Needed as needed:
            need = needed.need
            break
        if seq is None:
            break
        *lease, message_bytes = selection.lease(seq, now_ms)
        taken.append((lease[0], lease[1], lease[2]))
        selection.group["turn"] += 1
        selection.rows[seq]["flags"] |= TAKEN
        size += message_bytes
    return taken, 16 + size, need


def unselect(store: TwinStore, group_id: int, receipts: Sequence[Receipt]) -> None:
    """Gives messages back to where they were taken from."""
    group = store.groups[group_id]
    chain, rows = retry_chain(store, group_id), store.deliveries[group_id]
    arrivals = store.arrivals[int(group["topic_id"])]
    group["turn"] -= len(receipts)
    for seq, _ in reversed(receipts):
        priority = int(store.rows[arrivals[seq]["id"]]["priority"])
        rows[seq]["flags"] &= ~np.uint8(TAKEN)
        if rows[seq]["state"] == UNTOUCHED:
            group["cursor"][priority] = 0  # what was taken of this lane before is found again by its state
        else:
            chain.prepend(priority, seq)
            rows[seq]["flags"] |= IN_RETRY


def apply_lease(store: TwinStore, group_id: int, holder: int, of: Array) -> int:
    """0, or -1 when a run names a row that is not there: then nothing is changed."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    if reach_beyond(of, int(group["allocated"])):
        return -1
    for seq, epoch, time_ms in expanded(of):
        row = rows[seq]
        group["high_seq"] = max(int(group["high_seq"]), seq + 1)
        group["highest_epoch"] = max(int(group["highest_epoch"]), epoch)
        if store.is_gone(group_id, seq):
            continue
        if row["state"] == UNTOUCHED:
            group["touched"] += 1
            row["base_epoch"] = epoch - 1
        row["base_epoch"] = max(int(row["base_epoch"]), int(group["fence"]))
        row["flags"] &= ~np.uint8(TAKEN | CALLED)
        row["state"], row["epoch"], row["time_ms"], row["holder"] = LEASED, epoch, time_ms, holder
        group["leased"] += 1
        group["deliveries"] += 1
        store.outstanding[holder] += 1
    return 0


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
