"""``delivery.c``, ``acks.c`` and ``change.c``: what is decided before a record is written."""

from __future__ import annotations

from typing import Final, NamedTuple

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

#: What ``select`` needs, besides rows up to a number.
NEED_ORDERS: Final = lib.TW_NEED_ORDERS
NEED_MORE_TIME: Final = lib.TW_NEED_MORE_TIME
#: Verdicts of ``lookup``, besides that a message is not due (any more).
DUE: Final = lib.TW_IS_DUE
DAMAGED: Final = lib.TW_IS_BROKEN


class Selected(NamedTuple):
    """``need``: 0, or what must be provided for more: NEED_ORDERS, NEED_MORE_TIME (it is to be called again), or the
    number that the group's rows must first reach."""

    messages: int
    frame_bytes: int
    need: int


def runs(values: UInt64s, epochs: UInt32s | None, times: Int64s | None, into: Runs) -> int:
    """Compresses values that follow each other and share epoch and time; returns how many runs."""
    pointers = (
        uint64s(values),
        ffi.NULL if epochs is None else uint32s(epochs),
        ffi.NULL if times is None else int64s(times),
    )
    return lib.tw_runs(*pointers, len(values), runs_pointer(into))


def runs_end(of: Runs) -> int:
    """The value behind the last one of any run; 0: there are none."""
    return lib.tw_runs_end(runs_pointer(of), len(of))


def runs_values(of: Runs) -> int:
    """How many values all runs have."""
    return lib.tw_runs_values(runs_pointer(of), len(of))


def lookup(store: Store, ids: UInt64s, versions: UInt32s, now_ms: int, verdicts: UInt8s) -> int:
    """Whether messages are due for their topics: DUE, DAMAGED or 0. Returns how many are due."""
    return lib.tw_lookup(store, uint64s(ids), uint32s(versions), len(ids), now_ms, uint8s(verdicts))


def still_scheduled(store: Store, ids: UInt64s, versions: UInt32s, into: UInt64s) -> int:
    """Writes those of some messages that still wait for their time, with the same version, and whose topic is there;
    returns how many."""
    return lib.tw_still_scheduled(store, uint64s(ids), uint32s(versions), len(ids), uint64s(into))


def damaged(store: Store, ids: UInt64s, into: UInt64s) -> int:
    """Writes those of some messages whose record in the log does not match its checksum; returns how many."""
    return lib.tw_damaged(store, uint64s(ids), len(ids), uint64s(into))


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


def count_lateness(
    store: Store,
    group_id: int,
    values: UInt64s,
    epochs: UInt32s | None,
    now_ms: int,
    bounds: Int64s,
    counts: Int64s,
) -> tuple[int, int]:
    """Adds to a histogram how late messages are (ids, or numbers in a group's topic; with epochs, first deliveries
    only): (how many were counted, the sum in ms)."""
    sum_ms = ffi.new("int64_t *")
    given = uint64s(values), ffi.NULL if epochs is None else uint32s(epochs), len(values), now_ms
    histogram = int64s(bounds), len(bounds), int64s(counts), sum_ms
    return lib.tw_count_lateness(store, group_id, *given, *histogram), int(sum_ms[0])


def select(
    store: Store, group_id: int, limit: int, limit_bytes: int, run_limit: int, now_ms: int,
    seqs: UInt64s, epochs: UInt32s, until_ms: Int64s,
) -> Selected:  # fmt: skip
    """Takes messages for a delivery, in the order in which they are to go; of an ordering key up to ``run_limit``."""
    into, out = (uint64s(seqs), uint32s(epochs), int64s(until_ms)), ffi.new("uint64_t[2]")
    count = lib.tw_select(store, group_id, limit, limit_bytes, run_limit, now_ms, *into, out, out + 1)
    return Selected(count, int(out[0]), int(out[1]))


def deliver_frame(store: Store, group_id: int, subscription: int, seqs: UInt64s, frame: bytearray) -> int:
    """Writes a whole DELIVER frame; returns its bytes, -1 when it does not fit."""
    into = uint8s(frame), len(frame)
    return lib.tw_deliver_frame(store, group_id, subscription, uint64s(seqs), len(seqs), *into)


def held_by(
    store: Store, group_id: int, holder: int, from_seq: int, limit: int, seqs: UInt64s, epochs: UInt32s
) -> int:
    """Lists messages that a holder has on lease; returns how many."""
    at = ffi.new("uint64_t *", from_seq)
    return lib.tw_held_by(store, group_id, holder, at, uint64s(seqs), uint32s(epochs), limit)


def ack_check(
    store: Store, group_id: int, receipts: bytes | memoryview, seqs: UInt64s, epochs: UInt32s, codes: UInt32s
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
    """Moves messages to the retry chain, whatever state they are in."""
    lib.tw_requeue(store, group_id, uint64s(seqs), len(seqs))


def finish_frame(frame: bytearray, payload_bytes: int, frame_type: int, correlation: int) -> int:
    """Fills in the head of a frame in front of its payload; 0, or -1 when it is too large."""
    return lib.tw_finish_frame(uint8s(frame), payload_bytes, frame_type, correlation)
