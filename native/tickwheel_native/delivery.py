"""``delivery.c``, ``acks.c`` and ``change.c``: what is decided before a record is written."""

from __future__ import annotations

from tickwheel_native._native import ffi, lib
from tickwheel_native.arrays import (
    Int64s,
    Runs,
    Store,
    UInt8s,
    UInt32s,
    UInt64s,
    int64s,
    uint8s,
    uint32s,
    uint64s,
)
from tickwheel_native.arrays import runs as runs_pointer


def runs(values: UInt64s, epochs: UInt32s | None, times: Int64s | None, into: Runs) -> int:
    """Compresses values that follow each other and share epoch and time; returns how many runs."""
    pointers = (
        uint64s(values),
        ffi.NULL if epochs is None else uint32s(epochs),
        ffi.NULL if times is None else int64s(times),
    )
    return lib.tw_runs(*pointers, len(values), runs_pointer(into))


def lookup(store: Store, ids: UInt64s, versions: UInt32s, now_ms: int, verdicts: UInt8s) -> int:
    """Verdicts: 1 due for its topic, 0 not (any more), 2 damaged. Returns how many are due."""
    return lib.tw_lookup(store, uint64s(ids), uint32s(versions), len(ids), now_ms, uint8s(verdicts))


def due_times(store: Store, ids: UInt64s, due_ms: Int64s) -> None:
    """When messages are due: their time, and their part of the topic's spread."""
    lib.tw_due_times(store, uint64s(ids), len(ids), int64s(due_ms))


def backoff_ms(
    ack_wait_ms: int, min_backoff_ms: int, max_backoff_ms: int, message_id: int, epoch: int
) -> int:
    return lib.tw_backoff_ms(ack_wait_ms, min_backoff_ms, max_backoff_ms, message_id, epoch)


def judge_all(store: Store, ids: UInt64s, verdicts: UInt8s) -> None:
    """How messages stand: TW_IS_UNKNOWN to TW_IS_EXPIRED."""
    lib.tw_judge_all(store, uint64s(ids), len(ids), uint8s(verdicts))


def find_key(store: Store, topic_id: int, key: bytes) -> int:
    """The id of the message with this key; 0: there is none."""
    return lib.tw_keys_find(store, topic_id, uint8s(key), len(key))


def ack_check(
    store: Store, group_id: int, receipts: bytes, seqs: UInt64s, epochs: UInt32s, codes: UInt32s
) -> int:
    """Judges receipts, ids and then epochs: a code for each, 0 for those that count, which are marked and listed.
    Returns how many count."""
    into = uint64s(seqs), uint32s(epochs), uint32s(codes)
    return lib.tw_ack_check(store, group_id, uint8s(receipts), len(codes), *into)


def unmark_acks(store: Store, group_id: int, seqs: UInt64s) -> None:
    """Takes the marks of ``ack_check`` back."""
    lib.tw_unmark_acks(store, group_id, uint64s(seqs), len(seqs))


def unselect(store: Store, group_id: int, seqs: UInt64s) -> None:
    """Gives selected messages back to where they were taken from."""
    lib.tw_unselect(store, group_id, uint64s(seqs), len(seqs))


def expire(
    store: Store, group_id: int, seqs: UInt64s, epochs: UInt32s, now_ms: int, exhausted: UInt64s
) -> tuple[int, int]:
    """Moves messages whose lease or wait of that epoch has ended to the retry chain: (how many, how many are listed
    instead, since they had all their attempts)."""
    count = ffi.new("uint64_t *")
    into = uint64s(exhausted), count
    moved = lib.tw_expire(store, group_id, uint64s(seqs), uint32s(epochs), len(seqs), now_ms, *into)
    return moved, int(count[0])


def requeue(store: Store, group_id: int, seqs: UInt64s) -> None:
    """Moves messages to the retry chain without a question."""
    lib.tw_requeue(store, group_id, uint64s(seqs), len(seqs))


def finish_frame(frame: bytearray, payload_bytes: int, frame_type: int, correlation: int) -> int:
    """Fills in the head of a frame in front of its payload; 0, or -1 when it is too large."""
    return lib.tw_finish_frame(uint8s(frame), payload_bytes, frame_type, correlation)
