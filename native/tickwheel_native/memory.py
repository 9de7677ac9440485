"""``memory.h``: address space and disk space of mapped files. What returns a result returns 0 or a negated errno."""

from __future__ import annotations

import os
from typing import Any, Final, TypeAlias

from tickwheel_native._native import ffi, lib

#: Where something is mapped; NULL for nowhere.
Address: TypeAlias = Any
NULL: Final[Address] = ffi.NULL


def reserve(count_bytes: int) -> Address:
    """NULL when there is no address space; ``reserve_errno`` says why."""
    return lib.tw_reserve(count_bytes)


def reserve_errno() -> int:
    """Of the last call."""
    return int(ffi.errno)


def map_file(
    base: Address, offset: int, fd: int, file_offset: int, count_bytes: int, *, writable: bool
) -> int:
    return lib.tw_map_file(base, offset, fd, file_offset, count_bytes, writable)


def unmap_to_reserved(base: Address, offset: int, count_bytes: int) -> int:
    return lib.tw_unmap_to_reserved(base, offset, count_bytes)


def release(base: Address, count_bytes: int) -> int:
    return lib.tw_release(base, count_bytes)


def allocate(fd: int, offset: int, count_bytes: int) -> int:
    return lib.tw_allocate(fd, offset, count_bytes)


def punch_hole(fd: int, offset: int, count_bytes: int) -> int:
    return lib.tw_punch_hole(fd, offset, count_bytes)


def sync_map(base: Address, count_bytes: int) -> int:
    return lib.tw_sync_map(base, count_bytes)


def sync_file_system(fd: int) -> int:
    """All of the file system in which an open file lies."""
    return lib.tw_sync_file_system(fd)


def write_back(fd: int, offset: int, count_bytes: int) -> None:
    """A little at a time, so that other syncs do not wait for all of it."""
    lib.tw_write_back(fd, offset, count_bytes)


def keep_pace(fd: int, start: int, end: int, behind_bytes: int) -> int:
    """``[start, end)`` of a file was written: waits until the disk has what lies more than ``behind_bytes`` before."""
    return lib.tw_keep_pace(fd, start, end, behind_bytes)


def cover(base: Address, offset: int, count_bytes: int, *, writable: bool) -> int:
    """Puts zeros that belong to no file in the place of a part of a mapped file."""
    return lib.tw_cover(base, offset, count_bytes, writable)


def reading_fills_holes(fd: int) -> bool:
    """Whether reading a hole through a mapping takes a block: tmpfs."""
    return bool(lib.tw_reading_fills_holes(fd))


def find_holes(
    fd: int, start: int, end: int, most: int, *, is_own: bool
) -> tuple[int, list[tuple[int, int]]]:
    """(where to go on, ranges without disk blocks, at most so many). Raises ``OSError``."""
    at, ranges = ffi.new("uint64_t *", start), ffi.new("uint64_t[]", 2 * most)
    found = lib.tw_find_holes(fd, at, end, is_own, most, ranges)
    if found < 0:
        raise OSError(-found, os.strerror(-found))
    return int(at[0]), [(int(ranges[2 * n]), int(ranges[2 * n + 1])) for n in range(found)]


def words_for_bus_error(words: bytes, exit_code: int) -> int:
    """What a page that cannot be read or written says, and the exit code that it ends the process with."""
    return lib.tw_words_for_bus_error(ffi.from_buffer("uint8_t[]", words), len(words), exit_code)


def view(base: Address, offset: int, count_bytes: int) -> memoryview:
    """The bytes there, not copied."""
    return memoryview(ffi.buffer(ffi.cast("char *", base) + offset, count_bytes))


def shifted(base: Address, offset: int) -> Address:
    """The address so many bytes behind another one, or before it; it need not be one of the process."""
    return ffi.cast("void *", (number_of(base) + offset) % (1 << 64))


def number_of(base: Address) -> int:
    """The address as a number."""
    return int(ffi.cast("uintptr_t", base))
