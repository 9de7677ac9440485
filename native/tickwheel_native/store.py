"""``store.h``: the structures that C works on, and the arrays that they point to. The caller keeps the arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tickwheel_native._native import ffi, lib
from tickwheel_native.arrays import Store, UInt8s, UInt16s, UInt32s, UInt64s

#: Memory that C uses as long as a store points to it.
Memory: TypeAlias = Any


def new() -> Store:
    """A store without anything."""
    return ffi.new("tw_store *")


def make_topics(store: Store, count: int) -> Memory:
    """Room for topics, none of which exists."""
    topics = ffi.new("tw_topic[]", count)
    store.topics, store.topics_capacity = topics, count
    return topics


def make_groups(store: Store, count: int) -> Memory:
    """Room for groups, none of which exists."""
    groups = ffi.new("tw_group[]", count)
    store.groups, store.groups_capacity = groups, count
    return groups


def clear_topic(store: Store, topic_id: int) -> None:
    """As if it had never been used: nothing points to what is gone."""
    _clear(store.topics + topic_id)


def clear_group(store: Store, group_id: int) -> None:
    """As if it had never been used: nothing points to what is gone."""
    _clear(store.groups + group_id)


def _clear(item: Any) -> None:
    ffi.buffer(item)[:] = bytes(ffi.sizeof(item[0]))


def use_scratch(store: Store, outstanding: UInt32s, key_hashes: UInt32s, key_counts: UInt16s) -> None:
    """The arrays of numbers beside the tables."""
    store.outstanding = ffi.cast("uint32_t *", outstanding.ctypes.data)
    store.key_hashes = ffi.cast("uint32_t *", key_hashes.ctypes.data)
    store.key_counts = ffi.cast("uint16_t *", key_counts.ctypes.data)


def use_staging(store: Store, staging: UInt8s) -> None:
    """Where records are collected before they are written."""
    store.staging, store.staging_capacity = ffi.cast("uint8_t *", staging.ctypes.data), len(staging)


def use_rows(store: Store, address: int, start: int) -> None:
    """``address``: where the first one would be; ``start``: the first that has an address."""
    store.rows, store.rows_start = ffi.cast("tw_row *", address), start


def use_empty_rows(store: Store, stretches: UInt64s) -> None:
    """``stretches``: the first id of each and that behind its last, in order and apart. The caller keeps the array."""
    store.empty, store.empty_count = ffi.cast("tw_gap *", stretches.ctypes.data), len(stretches) // 2


def use_sparse_rows(store: Store, has_space: UInt8s, end: int) -> None:
    """``has_space``: of rows below ``end``, by blocks of TW_SPARSE_IDS. The caller keeps the array."""
    store.has_space, store.sparse_end = ffi.cast("uint8_t *", has_space.ctypes.data), end


def use_arrivals(store: Store, topic_id: int, address: int, start: int) -> None:
    topic = store.topics[topic_id]
    topic.arrivals, topic.arrivals_start = ffi.cast("tw_arrival *", address), start


def use_deliveries(store: Store, group_id: int, address: int, start: int) -> None:
    group = store.groups[group_id]
    group.rows, group.rows_start = ffi.cast("tw_delivery *", address), start


def grow_orders(store: Store, group_id: int) -> Memory:
    """A larger table of the ordering keys that are busy in a group."""
    capacity = max(64, 2 * store.groups[group_id].orders_capacity)
    table = ffi.new("tw_order[]", capacity)
    lib.tw_orders_move(store, group_id, table, capacity)
    return table


def ignore_order(store: Store, group_id: int, *, is_ignored: bool) -> None:
    """Whether a group looks at ordering keys, from now on. If it does again, the keys of what is held must be made
    busy."""
    group = store.groups[group_id]
    if bool(group.ignores_order) == is_ignored:
        return
    group.ignores_order = is_ignored
    if is_ignored:
        lib.tw_orders_release(store, group_id)
    else:
        lib.tw_orders_resume(store, group_id)


def skip_to_end(store: Store, group_id: int) -> None:
    """A new group has taken everything that is in its topic."""
    group = store.groups[group_id]
    last = store.topics[group.topic_id].lane_last
    ffi.memmove(group.cursor, last, ffi.sizeof(last))


def record(store: Store, message_id: int) -> bytes:
    """A copy of a message's record, which is written or still staged."""
    row = store.rows[message_id]
    if row.position >= store.staging_position:
        start = store.staging + (row.position - store.staging_position)
    else:
        start = store.log + row.position
    return bytes(ffi.buffer(start, row.record_bytes))


def topic_columns(store: Store, fields: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Fields of all topics, as arrays over their memory."""
    return _columns(store.topics, store.topics_capacity, "tw_topic", fields)


def group_columns(store: Store, fields: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Fields of all groups, as arrays over their memory."""
    return _columns(store.groups, store.groups_capacity, "tw_group", fields)


def _columns(items: Any, count: int, kind: str, fields: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    size, described = ffi.sizeof(kind), dict(ffi.typeof(kind).fields)
    buffer = ffi.buffer(items, count * size)
    found = {name: described[name] for name in fields}
    return {
        name: np.ndarray((count,), f"<u{ffi.sizeof(field.type)}", buffer, field.offset, (size,))
        for name, field in found.items()
    }
