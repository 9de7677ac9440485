"""``bulk.c``: messages that others have written as whole segments."""

from __future__ import annotations

from typing import Any, NamedTuple

from tickwheel_native._native import ffi, lib
from tickwheel_native.arrays import (
    Int64s,
    Store,
    UInt8s,
    UInt32s,
    UInt64s,
    int64s,
    uint8s,
    uint32s,
    uint64s,
)
from tickwheel_native.memory import Address


class Checked(NamedTuple):
    """``why``: 0, or a TW_BULK code of what stands at ``position``; ``filled``: how many were rejected before."""

    why: int
    position: int
    next_id: int
    filled: int


class Entered(NamedTuple):
    """How many ids were looked at, how many are duplicates, and the partition that must grow first."""

    looked_at: int
    duplicates: int
    need: int


def take_in(store: Store, base: Address) -> None:
    """What is mapped at ``base`` is being taken in; NULL: nothing."""
    store.foreign = ffi.cast("const uint8_t *", base)


def build(columns: Any, order: UInt32s, first_id: int, into: UInt8s, room_bytes: int) -> tuple[int, int]:
    """Writes records of messages in an order, of a ``tw_bulk``, as many as fit: (how many, their bytes)."""
    written = ffi.new("uint64_t *")
    target = uint8s(into), min(room_bytes, len(into)), written
    return lib.tw_bulk_build(columns, uint32s(order), len(order), first_id, *target), int(written[0])


def hash_texts(at: Int64s, data: UInt8s, hashes: UInt32s) -> None:
    """By which a topic with shards spreads its messages; 0 where there is no text."""
    lib.tw_bulk_hash(int64s(at), uint8s(data), len(hashes), uint32s(hashes))


def check(store: Store, start: int, end: int, first_id: int, end_id: int, limit: int) -> Checked:
    """Checks records at foreign positions, and fills in their rows, which stay invisible."""
    at, next_id, filled = ffi.new("uint64_t *", start), ffi.new("uint64_t *", first_id), ffi.new("uint64_t *")
    why = lib.tw_bulk_check(store, at, end, next_id, end_id, limit, filled)
    return Checked(why, int(at[0]), int(next_id[0]), int(filled[0]))


def order(store: Store, first_id: int, messages: int, ids: UInt64s, hashes: UInt32s) -> int:
    """Lists the ids that have a key, and its hash, by partition of the key index; returns how many."""
    count = ffi.new("uint64_t *")
    lib.tw_bulk_order(store, first_id, messages, uint64s(ids), uint32s(hashes), count)
    return int(count[0])


def enter(store: Store, ids: UInt64s, hashes: UInt32s, duplicates: UInt64s, earlier: UInt64s) -> Entered:
    """Enters keys; those that are there already are listed, with the message that has it."""
    out = ffi.new("uint64_t[2]")
    found = uint64s(duplicates), uint64s(earlier), out, out + 1
    looked_at = lib.tw_bulk_enter(store, uint64s(ids), uint32s(hashes), len(ids), *found)
    return Entered(looked_at, int(out[0]), int(out[1]))


def racers(
    store: Store, from_id: int, first_id: int, end_id: int, duplicates: UInt64s, earlier: UInt64s
) -> int:
    """Lists the invisible messages that have a key with which another one was sent meanwhile; returns how many."""
    found = uint64s(duplicates), uint64s(earlier)
    return lib.tw_bulk_racers(store, from_id, len(duplicates), first_id, end_id, *found)


def forget(store: Store, ids: UInt64s) -> None:
    """Takes invisible messages out again, and their keys."""
    lib.tw_bulk_forget(store, uint64s(ids), len(ids), 1)


def adopt(store: Store, first_id: int, messages: int, base: int) -> int:
    """Makes rows visible, whose foreign position 0 is the log's ``base`` now; returns how many."""
    return lib.tw_bulk_adopt(store, first_id, messages, base)
