"""A file as one flat array that grows in place.

A region reserves a large range of addresses once and maps its file there. Growing allocates disk blocks *first*, so a
full disk is an error before anything is written, and arrays over the region stay valid for ever. ``path=None`` gives
a region without a file (memory only), which the simulator and unit tests use.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from native import ffi, lib
from timerlog.errors import DiskFull, StoreError

PAGE_BYTES = 4096
SMALLEST_STEP_BYTES = 64 * 1024
LARGEST_STEP_BYTES = 8 * 1024 * 1024


def _check(result: int, what: str) -> None:
    if result == 0:
        return
    if -result in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFull(f"the disk is full ({what})")
    raise OSError(-result, f"{os.strerror(-result)} ({what})")


class Region:
    """``allocated_bytes`` of a file, mapped at a fixed address inside ``reserve_bytes`` of address space."""

    def __init__(self, path: Path | None, reserve_bytes: int) -> None:
        self.path = path
        self.reserve_bytes = reserve_bytes
        self.allocated_bytes = 0
        self._fd = -1 if path is None else os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if path is None:
            # An unlinked file in memory: the same calls, no disk.
            self._fd = os.memfd_create("tickwheel-region", os.MFD_CLOEXEC)
        self._base = lib.tw_reserve(reserve_bytes)
        if self._base == ffi.NULL:
            os.close(self._fd)
            raise StoreError(f"cannot reserve {reserve_bytes} bytes of address space for {path}")
        size = os.fstat(self._fd).st_size // PAGE_BYTES * PAGE_BYTES
        if size:
            self._map(0, size)

    @property
    def address(self) -> int:
        """The address of byte 0; constant for the life of the region."""
        return int(ffi.cast("uintptr_t", self._base))

    @property
    def pointer(self) -> Any:
        return self._base

    def _map(self, start: int, end: int) -> None:
        _check(lib.tw_map_file(self._base, start, self._fd, start, end - start, 1), f"mapping {self.path}")
        self.allocated_bytes = end

    def ensure(self, bytes_needed: int) -> None:
        """Makes at least ``bytes_needed`` usable, growing by doubling steps. Raises ``DiskFull``; then nothing
        changed."""
        if bytes_needed <= self.allocated_bytes:
            return
        step = min(max(self.allocated_bytes, SMALLEST_STEP_BYTES), LARGEST_STEP_BYTES)
        target = max(self.allocated_bytes + step, -(-bytes_needed // PAGE_BYTES) * PAGE_BYTES)
        if target > self.reserve_bytes:
            target = self.reserve_bytes
            if bytes_needed > target:
                raise StoreError(f"{self.path} cannot grow beyond {self.reserve_bytes} bytes")
        start = self.allocated_bytes
        _check(lib.tw_allocate(self._fd, start, target - start), f"growing {self.path}")
        self._map(start, target)

    def array(self, dtype: npt.DTypeLike, offset_bytes: int, count: int) -> npt.NDArray[Any]:
        """A numpy array over ``count`` items at ``offset_bytes``; they must be allocated before they are touched."""
        itemsize = np.dtype(dtype).itemsize
        buffer = ffi.buffer(ffi.cast("char *", self._base) + offset_bytes, itemsize * count)
        return np.frombuffer(buffer, dtype=dtype)

    def free(self, start: int, end: int) -> None:
        """Gives the disk blocks of ``[start, end)`` back; the range then reads as zeros."""
        _check(lib.tw_punch_hole(self._fd, start, end - start), f"freeing part of {self.path}")

    def sync(self) -> None:
        """Writes every change to the disk."""
        if self.allocated_bytes:
            _check(lib.tw_sync_map(self._base, self.allocated_bytes), f"syncing {self.path}")
            os.fsync(self._fd)

    def disk_bytes(self) -> int:
        return os.fstat(self._fd).st_blocks * 512

    def close(self) -> None:
        """Unmaps the region. No array over it may be touched afterwards."""
        if self._fd >= 0:
            lib.tw_release(self._base, self.reserve_bytes)
            os.close(self._fd)
            self._fd = -1
