"""The twin of ``native/delivery.c``."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from native import crc32c
from native.twins.ingest import frame
from native.twins.store import (
    ACKED,
    ACKING,
    CANCELLED,
    IN_RETRY,
    LEASED,
    MESSAGE_HEAD_BYTES,
    NONE,
    READY,
    RUN,
    SCHEDULED,
    UNTOUCHED,
    Array,
    TwinStore,
)

ALREADY_ACKED, STALE_RECEIPT, NOT_FOUND, NEVER_DELIVERED = range(1, 5)
SUPERSEDED, DUE, BROKEN = range(3)
DELIVER: Final = 22
DELIVER_HEAD_BYTES: Final = 8
COLUMN_BYTES: Final = 37  # of each message, besides its key, headers and body
LAST: Final = (1 << 64) - 1

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


def _reach_beyond(of: Array, end: int) -> bool:
    return any(first + count > end for first, count, _, _ in of.tolist())


# -- into the topic --


def lookup(store: TwinStore, ids: Sequence[int], versions: Sequence[int]) -> list[int]:
    """A verdict for each timer that came off the wheel."""
    return [_lookup(store, *timer) for timer in zip(ids, versions, strict=True)]


def _lookup(store: TwinStore, message_id: int, version: int) -> int:
    if not 0 < message_id < store.next_id:
        return SUPERSEDED
    row = store.rows[message_id]
    if row["state"] != SCHEDULED or row["version"] != version:
        return SUPERSEDED
    position, size = int(row["position"]), int(row["record_bytes"])
    if size < MESSAGE_HEAD_BYTES or position + size > store.log_readable:
        return BROKEN
    record = store.log[position : position + size].tobytes()
    crc, record_bytes = struct.unpack_from("<II", record)
    same = record_bytes == size and int.from_bytes(record[16:24], "little") == message_id
    return DUE if same and crc32c(record[4:]) == crc else BROKEN


class Chain:
    """The first and last item of each priority's chain, a bit for each chain that holds something, and the link from
    each item to the next. Items are numbered by topic_seq + 1."""

    def __init__(self, struct_: Any, items: Array, first: str, last: str, lanes: str, link: str) -> None:
        self.first, self.last, self.lanes = struct_[first], struct_[last], struct_[lanes]
        self.links = items[link]

    def append(self, priority: int, seq: int) -> None:
        self.links[seq] = 0
        if self.last[priority]:
            self.links[int(self.last[priority]) - 1] = seq + 1
        else:
            self.first[priority] = seq + 1
        self.last[priority] = seq + 1
        self.mark(priority)

    def prepend(self, priority: int, seq: int) -> None:
        self.links[seq] = self.first[priority]
        self.first[priority] = seq + 1
        if not self.last[priority]:
            self.last[priority] = seq + 1
        self.mark(priority)

    def pop(self, priority: int) -> int | None:
        """The topic_seq of the first item."""
        if not self.first[priority]:
            return None
        seq = int(self.first[priority]) - 1
        self.first[priority] = self.links[seq]
        if not self.first[priority]:
            self.last[priority] = 0
            self.lanes[priority // 64] &= np.uint64(LAST ^ 1 << priority % 64)
        return seq

    def mark(self, priority: int) -> None:
        self.lanes[priority // 64] |= np.uint64(1 << priority % 64)


def lane_chain(store: TwinStore, topic_id: int) -> Chain:
    topic, arrivals = store.topics[topic_id], store.arrivals[topic_id]
    return Chain(topic, arrivals, "lane_first", "lane_last", "lanes", "next")


def retry_chain(store: TwinStore, group_id: int) -> Chain:
    group, rows = store.groups[group_id], store.deliveries[group_id]
    return Chain(group, rows, "retry_first", "retry_last", "retry_lanes", "retry_next")


def apply_put(store: TwinStore, topic_id: int, first_seq: int, of: Array) -> int:
    """0, or -1 when a message does not exist or there is no room for its arrival: then nothing is changed."""
    ids = [message_id for message_id, _, _ in expanded(of)] if not _reach_beyond(of, store.next_id) else [0]
    if 0 in ids or first_seq + len(ids) > int(store.topics[topic_id]["allocated"]):
        return -1
    chain = lane_chain(store, topic_id)
    for seq, message_id in enumerate(ids, first_seq):
        row = store.rows[message_id]
        row["state"], row["topic_seq"] = READY, seq
        store.arrivals[topic_id][seq]["id"] = message_id
        chain.append(int(row["priority"]), seq)
    topic = store.topics[topic_id]
    topic["count"] = max(int(topic["count"]), first_seq + len(ids))
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
    """The group's rows must first reach up to this number."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


class Selection:
    """What one delivery takes: redeliveries first, then new messages, from the lowest priority number up."""

    def __init__(self, store: TwinStore, group_id: int) -> None:
        self.store, self.group = store, store.groups[group_id]
        self.rows = store.deliveries[group_id]
        self.retries = retry_chain(store, group_id)
        topic_id = int(self.group["topic_id"])
        self.topic, self.arrivals = store.topics[topic_id], store.arrivals[topic_id]

    def next_of(self, priority: int) -> int | None:
        seq = self._redelivery(priority)
        return self._new(priority) if seq is None else seq

    def _redelivery(self, priority: int) -> int | None:
        while (seq := self.retries.pop(priority)) is not None:
            self.rows[seq]["flags"] &= ~np.uint8(IN_RETRY)
            if self.rows[seq]["state"] == LEASED:
                return seq
        return None

    def _new(self, priority: int) -> int | None:
        while True:
            cursor = int(self.group["cursor"][priority])
            behind = self.arrivals[cursor - 1]["next"] if cursor else self.topic["lane_first"][priority]
            if not behind:
                return None
            if behind > self.group["allocated"]:
                raise Needed(int(behind))
            self.group["cursor"][priority] = behind
            seq = int(behind) - 1
            waits = seq >= self.group["start_seq"] and self.rows[seq]["state"] == UNTOUCHED
            if waits and self.store.rows[self.arrivals[seq]["id"]]["state"] == READY:
                return seq

    def lease(self, seq: int, now_ms: int) -> tuple[int, int, int, int]:
        """(topic_seq, epoch, lease's end, bytes in the frame) of a message that was taken."""
        message_id, epoch = int(self.arrivals[seq]["id"]), int(self.rows[seq]["epoch"]) + 1
        least, middle, most = self.group[["ack_wait_ms", "min_backoff_ms", "max_backoff_ms"]].tolist()
        content = int(self.store.rows[message_id]["record_bytes"]) - MESSAGE_HEAD_BYTES
        return seq, epoch, now_ms + backoff_ms(least, middle, most, message_id, epoch), COLUMN_BYTES + content


def select(
    store: TwinStore, group_id: int, limit: int, limit_bytes: int, now_ms: int
) -> tuple[list[tuple[int, int, int]], int, int]:
    """Returns ([(topic_seq, epoch, lease's end)], the frame's bytes, need)."""
    selection = Selection(store, group_id)
    taken: list[tuple[int, int, int]] = []
    size, need, priority = DELIVER_HEAD_BYTES, 0, 0
    while len(taken) < limit and (not taken or size < limit_bytes) and priority < 256:
        try:
            seq = selection.next_of(priority)
        except Needed as needed:
            need = needed.rows
            break
        if seq is None:
            priority += 1
            continue
        *lease, message_bytes = selection.lease(seq, now_ms)
        taken.append((lease[0], lease[1], lease[2]))
        size += message_bytes
    return taken, 16 + size, need


def unselect(store: TwinStore, group_id: int, receipts: Sequence[Receipt]) -> None:
    """Gives messages back to where they were taken from."""
    group = store.groups[group_id]
    chain, rows = retry_chain(store, group_id), store.deliveries[group_id]
    arrivals = store.arrivals[int(group["topic_id"])]
    for seq, epoch in reversed(receipts):
        priority = int(store.rows[arrivals[seq]["id"]]["priority"])
        if epoch == 1:
            group["cursor"][priority] = 0  # what was taken of this lane before is found again by its state
        else:
            chain.prepend(priority, seq)
            rows[seq]["flags"] |= IN_RETRY


def apply_lease(store: TwinStore, group_id: int, holder: int, of: Array) -> int:
    """0, or -1 when a run names a row that is not there: then nothing is changed."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    if _reach_beyond(of, int(group["allocated"])):
        return -1
    for seq, epoch, time_ms in expanded(of):
        row = rows[seq]
        group["touched"] += row["state"] == UNTOUCHED
        row["state"], row["epoch"], row["time_ms"], row["holder"] = LEASED, epoch, time_ms, holder
        group["high_seq"] = max(int(group["high_seq"]), seq + 1)
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
        bytes(int(row["priority"]) for row in messages),
        *(record[MESSAGE_HEAD_BYTES:] for record in records),
    ]
    return frame(DELIVER, 0, b"".join(columns))


# -- back --


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
    if message["state"] != READY or message["topic_seq"] >= group["allocated"]:
        return NEVER_DELIVERED
    row = rows[int(message["topic_seq"])]
    if row["state"] == UNTOUCHED:
        return NEVER_DELIVERED
    if row["state"] == ACKED or row["flags"] & ACKING:
        return ALREADY_ACKED
    return 0 if row["epoch"] == epoch else STALE_RECEIPT


def unmark_acks(store: TwinStore, group_id: int, seqs: Sequence[int]) -> None:
    for seq in seqs:
        store.deliveries[group_id][seq]["flags"] &= ~np.uint8(ACKING)


def _let_go(store: TwinStore, group: Any, row: Any) -> None:
    """A lease has ended: the holder's credit comes back."""
    holder = int(row["holder"])
    if holder and store.outstanding[holder]:
        store.outstanding[holder] -= 1
    row["holder"] = 0
    group["leased"] -= 1 if group["leased"] else 0


def apply_ack(store: TwinStore, group_id: int, of: Array) -> int:
    """0, or -1 when a run names a row that is not there: then nothing is changed."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    if _reach_beyond(of, int(group["allocated"])):
        return -1
    for seq, _, time_ms in expanded(of):
        row = rows[seq]
        row["flags"] &= ~np.uint8(ACKING)
        if row["state"] == ACKED:
            continue
        if row["state"] == LEASED and not row["flags"] & IN_RETRY:
            _let_go(store, group, row)
        row["state"], row["time_ms"] = ACKED, time_ms
        group["acked"] += 1
    return 0


def expire(store: TwinStore, group_id: int, receipts: Sequence[Receipt], now_ms: int) -> int:
    """Ends leases whose time has come. Returns how many."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    arrivals = store.arrivals[int(group["topic_id"])]
    moved = 0
    for seq, epoch in receipts:
        if seq >= group["allocated"]:
            continue
        row = rows[seq]
        is_held = row["state"] == LEASED and row["epoch"] == epoch and not row["flags"] & IN_RETRY
        if not is_held or row["time_ms"] > now_ms:
            continue
        _let_go(store, group, row)
        row["flags"] |= IN_RETRY
        retry_chain(store, group_id).append(int(store.rows[arrivals[seq]["id"]]["priority"]), seq)
        moved += 1
    return moved


def held_by(
    store: TwinStore, group_id: int, holder: int, from_seq: int, capacity: int
) -> tuple[list[Receipt], int]:
    """Returns (what a holder has on lease, where to go on)."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    high_seq = int(group["high_seq"])
    _raise_floor(store, group, rows)
    found: list[Receipt] = []
    seq = max(from_seq, int(group["floor_seq"]))
    while seq < high_seq and len(found) < capacity:
        row = rows[seq]
        if row["state"] == LEASED and row["holder"] == holder:
            found.append((seq, int(row["epoch"])))
        seq += 1
    return found, seq


def _raise_floor(store: TwinStore, group: Any, rows: Array) -> None:
    arrivals = store.arrivals[int(group["topic_id"])]
    for seq in range(int(group["floor_seq"]), int(group["high_seq"])):
        is_cancelled = store.rows[arrivals[seq]["id"]]["state"] == CANCELLED
        if rows[seq]["state"] != ACKED and not is_cancelled:
            break
        group["floor_seq"] = seq + 1


def apply_release(store: TwinStore, group_id: int, of: Array) -> int:
    """0, or -1 when a run names a row that is not there: then nothing is changed."""
    group, rows = store.groups[group_id], store.deliveries[group_id]
    if _reach_beyond(of, int(group["allocated"])):
        return -1
    for seq, epoch, time_ms in expanded(of):
        if rows[seq]["state"] == LEASED and rows[seq]["epoch"] == epoch:
            rows[seq]["time_ms"] = time_ms
    return 0


def group_untouched(store: TwinStore, topic_id: int, seq: int) -> int:
    for group_id, rows in store.deliveries.items():
        group = store.groups[group_id]
        is_known = group["topic_id"] == topic_id and seq < group["allocated"]
        if is_known and rows[seq]["state"] != UNTOUCHED:
            return 0
    return 1
