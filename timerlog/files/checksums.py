"""Checksums of the derived files, which a clean checkpoint keeps: what a start believes is what a stop left.

A file is read in blocks, and each block that is not all zeros adds its part. So a hole and written zeros are the same,
whatever copied the file, and a sparse file of a terabyte costs what is in it. The zeros at the end of a block are not
read either: of most tables of topics only the first page is written.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tickwheel_native import crc32c
from timerlog.files.window import PAGE_BYTES

BLOCK_BYTES: Final = 1 << 20
_MASK: Final = (1 << 64) - 1
_EMPTY: Final = crc32c(bytes(BLOCK_BYTES))


def table_sum(path: Path, size_bytes: int) -> int:
    """Raises ``OSError`` when it cannot be read."""
    total = 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for number in _used_blocks(fd, size_bytes):
            used = os.pread(fd, _used_bytes(fd, number * BLOCK_BYTES), number * BLOCK_BYTES)
            checksum = _with_zeros(crc32c(used), BLOCK_BYTES - len(used))
            if checksum != _EMPTY:
                place = struct.pack("<QI", number, checksum)
                total += crc32c(place) << 32 | checksum
    finally:
        os.close(fd)
    return total & _MASK


def _used_blocks(fd: int, size_bytes: int) -> Iterator[int]:
    """Numbers of the blocks of which something may be written."""
    number = 0
    while number * BLOCK_BYTES < size_bytes:
        try:
            start = os.lseek(fd, number * BLOCK_BYTES, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole
                return
            raise
        number = max(number, start // BLOCK_BYTES)
        if number * BLOCK_BYTES < size_bytes:
            yield number
        number += 1


def _used_bytes(fd: int, start: int) -> int:
    """Behind so many bytes of a block is nothing but a hole."""
    end = start + BLOCK_BYTES
    try:
        hole = os.lseek(fd, os.lseek(fd, start, os.SEEK_DATA), os.SEEK_HOLE)
        if hole >= end or os.lseek(fd, hole, os.SEEK_DATA) < end:
            return BLOCK_BYTES
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    return min(hole - start, BLOCK_BYTES)


def _with_zeros(checksum: int, zeros: int) -> int:
    """The checksum of the same bytes with so many zeros behind them."""
    changed, columns = _behind(zeros)
    for bit, column in enumerate(columns):
        if checksum >> bit & 1:
            changed ^= column
    return changed


@cache
def _behind(zeros: int) -> tuple[int, tuple[int, ...]]:
    """What zeros make of a checksum: it is linear, so that of 0 and of each bit say what becomes of all. There are few
    lengths: those of whole pages."""
    data = bytes(zeros)
    of_nothing = crc32c(data, 0)
    return of_nothing, tuple(crc32c(data, 1 << bit) ^ of_nothing for bit in range(32))


def are_as_they_were(directory: Path, sizes: Mapping[str, int], sums: Mapping[str, int]) -> bool:
    """Whether the derived files of a directory are those that a clean checkpoint speaks of, byte by byte."""
    if sums.keys() != sizes.keys():
        return False
    for name, size_bytes in sizes.items():
        path = directory / name
        try:
            # What lies behind would be mapped, and must be nothing, too.
            if path.stat().st_size // PAGE_BYTES * PAGE_BYTES != size_bytes:
                return False
            if table_sum(path, size_bytes) != sums[name]:
                return False
        except OSError:
            return False  # it cannot be read: what it held follows from the log
    return True
