"""``ingest.c``: SEND frames."""

from __future__ import annotations

from typing import Any, TypeAlias

from tickwheel_native._native import ffi, lib
from tickwheel_native.arrays import Store, UInt8s, UInt32s, UInt64s, uint8s, uint32s, uint64s

#: A ``tw_ingested``.
Result: TypeAlias = Any


def new_result() -> Result:
    return ffi.new("tw_ingested *")


def ingest(store: Store, source: Any, start: int, now_ms: int, replies: UInt8s, result: Result) -> None:
    """Stores every whole SEND frame from ``start`` on, up to the first other one; ``source``: what ``uint8s`` made of
    the bytes."""
    into = uint8s(replies), len(replies)
    lib.tw_ingest(store, source + start, len(source) - start, now_ms, *into, result)


def send_check(
    store: Store, payload: bytes | bytearray | memoryview, now_ms: int, codes: UInt32s, earlier: UInt64s
) -> tuple[int, int]:
    """Judges the messages of a SEND payload and stores nothing: (how many they are, -1 when it does not add up or -2
    for an unknown topic; log bytes that they take at most)."""
    log_bytes = ffi.new("uint64_t *")
    into = uint32s(codes), uint64s(earlier), log_bytes
    count = lib.tw_send_check(store, uint8s(payload), len(payload), now_ms, *into)
    return count, int(log_bytes[0])


def only_to(store: Store, allowed: UInt8s | None) -> None:
    """By topic: whether messages may be sent to it; None: to all. The array must stay."""
    store.may_send = ffi.NULL if allowed is None else ffi.cast("uint8_t *", allowed.ctypes.data)


def without(store: Store, leaving: UInt64s | None) -> None:
    """The keys of these messages, whose numbers are in order, are free until it is called with None. The array must
    stay."""
    store.leaving = ffi.NULL if leaving is None else uint64s(leaving)
    store.leaving_count = 0 if leaving is None else len(leaving)
