"""``log.c`` and the replay of ``store.h``: appending records, and what stands in a log."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from tickwheel_native._native import ffi, lib
from tickwheel_native.arrays import Store
from tickwheel_native.memory import Address

#: How many records of each type there are: 256 numbers of C.
Counts: TypeAlias = Any

#: What ``replay`` returns when it needs room.
NEED_ROWS: Final = lib.TW_STOP_NEED_ROWS
NEED_DELIVERIES: Final = lib.TW_STOP_NEED_DELIVERIES
NEED_KEYS: Final = lib.TW_STOP_NEED_KEYS


class Replayed(NamedTuple):
    """``result``: 0 at the end, 1 at a record of another type, -1 at one that does not make sense, or what it needs."""

    result: int
    position: int
    need: int


def new_counts() -> Counts:
    return ffi.new("uint64_t[256]")


def append(store: Store, record: int, aux: int, payload: bytes | bytearray | memoryview = b"") -> int:
    """Stages one control record; returns its position, -1 when staging or the segment has no room."""
    data = ffi.from_buffer("uint8_t[]", payload)
    return lib.tw_log_append(store, record, aux, data, len(data))


def group_begin(store: Store, record: int, aux: int, payload: bytes, room_bytes: int) -> int:
    """Starts a record of records, which take ``room_bytes`` at most; returns where in staging, -1 without room."""
    data = ffi.from_buffer("uint8_t[]", payload)
    return lib.tw_group_begin(store, record, aux, data, len(data), room_bytes)


def group_end(store: Store, start: int) -> None:
    """Fills in the length and checksum of a record of records."""
    lib.tw_group_end(store, start)


def unsend(store: Store, first_id: int, staging_bytes: int) -> None:
    """Takes back the messages from ``first_id`` on, which lie in staging from there on."""
    lib.tw_unsend(store, first_id, staging_bytes)


def verify(base: Address, position: int, end: int, counts: Counts) -> tuple[int, int]:
    """(where the first record starts that is not whole, why: see ``tw_log_verify``). ``counts`` grows."""
    reason = ffi.new("int32_t *")
    stop = lib.tw_log_verify(ffi.cast("const uint8_t *", base), position, end, counts, reason)
    return stop, int(reason[0])


def replay(store: Store, position: int, end: int) -> Replayed:
    """Applies message records, already verified."""
    at, need = ffi.new("uint64_t *", position), ffi.new("uint64_t *")
    result = lib.tw_replay(store, at, end, need)
    return Replayed(result, int(at[0]), int(need[0]))


def read_from(store: Store, base: Address) -> None:
    """The log that is mapped at ``base`` is the store's."""
    store.log = ffi.cast("const uint8_t *", base)
