"""``keys.c``: the tables of the key index."""

from __future__ import annotations

from tickwheel_native._native import ffi, lib
from tickwheel_native.arrays import Store, uint8s
from tickwheel_native.memory import Address

#: (offset, bytes) of what a table has left behind.
Left = tuple[int, int]


def init(base: Address) -> None:
    """Makes an empty index."""
    lib.tw_keys_init(ffi.cast("uint8_t *", base))


def attach(store: Store, base: Address, allocated_bytes: int) -> None:
    """The index at ``base`` is the store's."""
    store.keys = ffi.cast("uint8_t *", base)
    store.keys_allocated = allocated_bytes


def find(store: Store, topic_id: int, key: bytes) -> int:
    """The id of the message with this key; 0: there is none."""
    return lib.tw_keys_find(store, topic_id, uint8s(key), len(key))


def bytes_to_grow(store: Store, partition: int) -> int:
    return lib.tw_keys_bytes_to_grow(store, partition)


def grow(store: Store, partition: int) -> Left | None:
    """Doubles a partition's table; None when too little is allocated."""
    freed = ffi.new("uint64_t[2]")
    failed = lib.tw_keys_grow(store, partition, freed, freed + 1)
    return None if failed else (int(freed[0]), int(freed[1]))


def bytes_to_resize(store: Store, capacity: int) -> int:
    return lib.tw_keys_bytes_to_resize(store, capacity)


def resize(store: Store, partition: int, capacity: int) -> Left | None:
    """The same for any capacity that has room for all entries."""
    freed = ffi.new("uint64_t[2]")
    failed = lib.tw_keys_resize(store, partition, capacity, freed, freed + 1)
    return None if failed else (int(freed[0]), int(freed[1]))


def fitting(store: Store, partition: int) -> int:
    """The capacity to which a partition should shrink; 0: none."""
    return lib.tw_keys_fitting(store, partition)


def capacity_for(store: Store, partition: int, more: int) -> int:
    """The capacity with which a partition has room for so many keys more; 0: the one that it has."""
    return lib.tw_keys_capacity_for(store, partition, more)
