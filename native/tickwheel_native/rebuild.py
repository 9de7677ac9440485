"""``rebuild.c``: what follows from the tables, derived again at a start."""

from __future__ import annotations

from typing import Final

from tickwheel_native._native import ffi, lib
from tickwheel_native.arrays import Int64s, Store, UInt32s, UInt64s, int64s, uint32s, uint64s

NEED_KEYS: Final = lib.TW_STOP_NEED_KEYS


def used(store: Store, from_id: int, end_id: int) -> tuple[int, int] | None:
    """The first and the last message in a range, whose rows have addresses, that is there; None: there is none."""
    first, last = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    is_used = lib.tw_rows_used(store, from_id, end_id, first, last)
    return (int(first[0]), int(last[0])) if is_used else None


def topics(store: Store) -> bool:
    """Lanes and counters; False when an arrival names a message that is not in the table."""
    return lib.tw_rebuild_topics(store) == 0


def group(store: Store, group_id: int) -> None:
    """Cursors and counters; empties the retry chains."""
    lib.tw_rebuild_group(store, group_id)


def orders(store: Store, group_id: int, from_seq: int) -> tuple[bool, int]:
    """Makes the ordering keys of leased messages busy: (whether the table must grow first, where to go on)."""
    at = ffi.new("uint64_t *", from_seq)
    return bool(lib.tw_rebuild_orders(store, group_id, at)), int(at[0])


def keys(store: Store, from_id: int, end_id: int) -> tuple[int, int, int]:
    """Enters keys into the index: (0 or NEED_KEYS, where to go on, the partition to grow)."""
    at, need = ffi.new("uint64_t *", from_id), ffi.new("uint64_t *")
    return lib.tw_rebuild_keys(store, at, end_id, need), int(at[0]), int(need[0])


def scheduled(
    store: Store, from_id: int, end_id: int, due_ms: Int64s, ids: UInt64s, versions: UInt32s
) -> tuple[int, int]:
    """Lists messages that wait for their time: (how many, where to go on)."""
    at = ffi.new("uint64_t *", from_id)
    into = int64s(due_ms), uint64s(ids), uint32s(versions)
    return lib.tw_scheduled(store, at, end_id, len(ids), *into), int(at[0])


def leased(
    store: Store, group_id: int, from_seq: int, until_ms: Int64s, seqs: UInt64s, epochs: UInt32s
) -> tuple[int, int]:
    """Lists messages of a group whose lease or wait has an end: (how many, where to go on)."""
    at = ffi.new("uint64_t *", from_seq)
    into = int64s(until_ms), uint64s(seqs), uint32s(epochs)
    return lib.tw_leased(store, group_id, at, len(seqs), *into), int(at[0])
