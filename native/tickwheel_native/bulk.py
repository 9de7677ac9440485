"""``bulk.c``: messages that others have written as whole segments."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tickwheel_native._native import ffi, lib
from tickwheel_native.arrays import (
    Int64s,
    Store,
    UInt8s,
    UInt16s,
    UInt32s,
    UInt64s,
    int64s,
    uint8s,
    uint32s,
    uint64s,
)
from tickwheel_native.memory import Address

#: The data and the bounds of a text a message: ``data[at[i]:at[i + 1]]``.
Texts: TypeAlias = tuple[Int64s, UInt8s]


class Columns:
    """A ``tw_bulk``, and the arrays to which it points. ``None``: no message has one."""

    def __init__(
        self, *, created_ms: int, topic_ids: UInt16s, deliver_at_ms: Int64s, priorities: UInt8s,
        keys: Texts | None, headers: Texts | None, orders: Texts | None, bodies: Texts,
    ) -> None:  # fmt: skip
        self.pointer = bulk = ffi.new("tw_bulk *")
        self._arrays: list[npt.NDArray[Any]] = []
        bulk.created_ms = created_ms
        bulk.topic_ids = self._kept("uint16_t *", topic_ids)
        bulk.deliver_at_ms = self._kept("int64_t *", deliver_at_ms)
        bulk.priorities = self._kept("uint8_t *", priorities)
        bulk.key_at, bulk.keys = self._kept_texts(keys)
        bulk.headers_at, bulk.headers = self._kept_texts(headers)
        bulk.order_at, bulk.orders = self._kept_texts(orders)
        bulk.body_at, bulk.bodies = self._kept_texts(bodies)

    def _kept(self, kind: str, array: npt.NDArray[Any]) -> Any:
        assert array.flags.c_contiguous
        self._arrays.append(array)
        return ffi.cast(kind, array.ctypes.data)

    def _kept_texts(self, texts: Texts | None) -> tuple[Any, Any]:
        if texts is None:
            return ffi.NULL, ffi.NULL
        return self._kept("int64_t *", texts[0]), self._kept("uint8_t *", texts[1])


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


def build(columns: Columns, order: UInt32s, first_id: int, into: UInt8s, room_bytes: int) -> tuple[int, int]:
    """Writes records of messages in an order, as many as fit: (how many, their bytes)."""
    written = ffi.new("uint64_t *")
    target = uint8s(into), min(room_bytes, len(into)), written
    return lib.tw_bulk_build(columns.pointer, uint32s(order), len(order), first_id, *target), int(written[0])


def hash_texts(at: Int64s, data: UInt8s) -> UInt32s:
    """The hash of each text, by which a topic with shards spreads its messages; 0 where there is no text."""
    hashes = np.empty(len(at) - 1, np.uint32)
    lib.tw_bulk_hash(int64s(at), uint8s(data), len(hashes), uint32s(hashes))
    return hashes


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
