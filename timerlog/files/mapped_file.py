"""Files mapped into memory: a region, which its one writer lets grow, and a mapping, which others only read.

A region reserves a large range of addresses once and maps its file there. Growing allocates disk blocks *first*, so a
full disk is an error before anything is written, and arrays over the region stay valid as long as it is open.
``path=None`` gives a region without a file (memory only), which the simulator and unit tests use.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tickwheel_native import memory
from timerlog.errors import DiskFull, NoAddressSpace, StoreError
from timerlog.files.disk import open_file
from timerlog.files.held_space import Lender, allocate_lent
from timerlog.files.holes import MOST_PIECES, PAGE_BYTES, Holes, find_holes, reading_fills
from timerlog.files.maps import ADVICE, MAPS
from timerlog.layout import FORMAT_VERSION, HEADER_BYTES, TABLE_HEADER

SMALLEST_STEP_BYTES = 64 * 1024
LARGEST_STEP_BYTES = 8 * 1024 * 1024


def _check(result: int, what: str) -> None:
    if result == 0:
        return
    if -result == errno.ENOMEM:
        raise _no_room_in_memory(what)
    if -result in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise DiskFull(f"the disk is full ({what})")
    raise OSError(-result, f"{os.strerror(-result)} ({what})")


def _no_room_in_memory(what: str) -> NoAddressSpace:
    error = NoAddressSpace(f"the system maps no more files into memory ({what})")
    if MAPS.is_at_limit():
        error.advice = ADVICE
    return error


class Region:
    """``allocated_bytes`` of a file, mapped at a fixed address inside ``reserve_bytes`` of address space."""

    def __init__(
        self,
        path: Path | None,
        reserve_bytes: int,
        lender: Lender | None = None,
        never_used: Sequence[tuple[int, int]] = (),
    ) -> None:
        """``lender`` helps out when the disk is full. ``never_used``: from, to below which nothing is in the file."""
        self.path = path
        self._lender = lender
        self.reserve_bytes = reserve_bytes
        self.allocated_bytes = 0
        # Without a path: an unlinked file in memory; the same calls, no disk.
        self._memory_fd = os.memfd_create("tickwheel-region", os.MFD_CLOEXEC) if path is None else -1
        self._base = memory.reserve(reserve_bytes)
        if self._base == memory.NULL:
            raise _no_room_in_memory(f"reserving {reserve_bytes} bytes of address space for {path}")
        self._is_mapped = False
        #: None where holes may be read.
        self._holes: Holes | None = None
        try:
            with self._file() as fd:
                size = os.fstat(fd).st_size // PAGE_BYTES * PAGE_BYTES
                fills = reading_fills(fd)
                if fills or Holes.are_read_only:
                    self._holes = Holes(self._base)
                if size:
                    self._map(fd, size)
                if size and fills:
                    self._cover_holes(fd, size, never_used)
        except BaseException:
            self.close()
            raise

    @classmethod
    def fresh(cls, path: Path | None, reserve_bytes: int, lender: Lender | None = None) -> Region:
        """One that starts empty, whatever file was there."""
        if path is not None:
            path.unlink(missing_ok=True)
        return cls(path, reserve_bytes, lender)

    @contextmanager
    def _file(self) -> Iterator[int]:
        """The file, open for a moment: thousands of topics must not need thousands of descriptors."""
        if self.path is None:
            yield self._memory_fd
            return
        fd = open_file(self.path, os.O_RDWR | os.O_CREAT)
        try:
            yield fd
        finally:
            os.close(fd)

    @property
    def address(self) -> int:
        """The address of byte 0; constant for the life of the region."""
        return memory.number_of(self._base)

    @property
    def pointer(self) -> Any:
        return self._base

    def _map(self, fd: int, end: int) -> None:
        """All addresses are mapped at once, also those behind the end of the file: that is one map of the process, and
        not one more for what is only reserved. There are 30,000 topics with a group, and 65,530 maps."""
        if not self._is_mapped:
            whole = memory.map_file(self._base, 0, fd, 0, self.reserve_bytes, writable=True)
            _check(whole, f"mapping {self.path}")
            self._is_mapped = True
        self.allocated_bytes = end

    def _cover_holes(self, fd: int, size: int, never_used: Sequence[tuple[int, int]]) -> None:
        """To look for holes takes time for each page, so not where nothing can be."""
        if self._holes is None:
            return
        at = 0
        for first, last in [*never_used, (size, size)]:
            start, end = (
                min(-(-first // PAGE_BYTES) * PAGE_BYTES, size),
                min(last // PAGE_BYTES * PAGE_BYTES, size),
            )
            for hole in find_holes(fd, start, is_own=True, start=at):
                self._holes.cover(*hole)
            at = max(start, end)
            self._holes.cover(start, at)

    def ensure(self, bytes_needed: int) -> None:
        """Makes at least ``bytes_needed`` usable, growing by doubling steps; on a full disk by the smallest one.
        Raises ``DiskFull``; then nothing changed."""
        if bytes_needed <= self.allocated_bytes:
            return
        step = min(max(self.allocated_bytes, SMALLEST_STEP_BYTES), LARGEST_STEP_BYTES)
        least = -(-bytes_needed // PAGE_BYTES) * PAGE_BYTES
        target = max(self.allocated_bytes + step, least)
        if target > self.reserve_bytes:
            target = self.reserve_bytes
            if bytes_needed > target:
                raise StoreError(f"{self.path} cannot grow beyond {self.reserve_bytes} bytes")
        with self._file() as fd:
            if not self._has_room(fd, target):
                target = min(target, least)
                self._allocate_least(fd, target)
            self._map(fd, target)
        assert bytes_needed <= self.allocated_bytes <= self.reserve_bytes

    def _has_room(self, fd: int, target: int) -> bool:
        try:
            self._allocate(fd, target)
        except DiskFull:
            return False
        return True

    def _allocate(self, fd: int, target: int) -> None:
        start = self.allocated_bytes
        _check(memory.allocate(fd, start, target - start), f"growing {self.path}")

    def _allocate_least(self, fd: int, target: int) -> None:
        if not self._has_room(fd, target):
            missing_bytes = target - self.allocated_bytes
            allocate_lent((self._lender,), missing_bytes, lambda: self._allocate(fd, target))

    def start_at(self, offset: int) -> None:
        """Begins to allocate disk blocks at ``offset``: what lies before and was not allocated yet reads as zeros, and
        must never be written."""
        start, offset = self.allocated_bytes, offset // PAGE_BYTES * PAGE_BYTES
        if offset <= start:
            return
        if offset > self.reserve_bytes:
            raise StoreError(f"{self.path} cannot grow beyond {self.reserve_bytes} bytes")
        with self._file() as fd:
            os.ftruncate(fd, offset)
            self._map(fd, offset)
            if self._holes is not None:
                self._holes.cover(start, offset)

    def clear(self) -> None:
        """Gives everything back and starts anew with an empty file."""
        if self._is_mapped:
            _check(memory.unmap_to_reserved(self._base, 0, self.reserve_bytes), f"clearing {self.path}")
            self._is_mapped = False
        if self._holes is not None:
            self._holes.forget()
        with self._file() as fd:
            os.ftruncate(fd, 0)
        self.allocated_bytes = 0

    def array(self, dtype: npt.DTypeLike, offset_bytes: int, count: int) -> npt.NDArray[Any]:
        """A numpy array over ``count`` items at ``offset_bytes``; they must be allocated before they are touched."""
        itemsize = np.dtype(dtype).itemsize
        buffer = memory.view(self._base, offset_bytes, itemsize * count)
        return np.frombuffer(buffer, dtype=dtype)

    def free(self, start: int, end: int) -> None:
        """Gives the disk blocks of ``[start, end)``, whole pages, back; the range then reads as zeros, and is never
        written. Safe in another thread as long as the region is open."""
        if self.leave(start, end):
            self.punch(start, end)

    def leave(self, start: int, end: int) -> bool:
        """Before ``punch``: whether nothing needs ``[start, end)``, whole pages, any more. Fast."""
        assert 0 <= start <= end <= self.allocated_bytes
        assert start % PAGE_BYTES == end % PAGE_BYTES == 0, "a part of a page may hold what is needed"
        return self._holes is None or self._holes.cover(start, end)

    def punch(self, start: int, end: int) -> None:
        """Gives disk blocks back that were left. It may wait for the disk, and is safe in another thread."""
        if self.path is None:
            if self.is_open:
                self._punch_hole(self._memory_fd, start, end)
            return
        try:
            fd = open_file(self.path, os.O_RDWR)
        except FileNotFoundError:
            return  # its topic was deleted
        try:
            self._punch_hole(fd, start, end)
        finally:
            os.close(fd)

    def refill(self, start: int, end: int) -> None:
        """Gives ``[start, end)``, which is a part of what is usable, disk blocks again. Safe in another thread. Raises
        ``DiskFull``."""
        with self._file() as fd:
            if self._holes is None:
                _check(memory.allocate(fd, start, end - start), f"refilling {self.path}")
            else:
                self._fill_holes(fd, self._holes, start, end)

    def _fill_holes(self, fd: int, holes: Holes, start: int, end: int) -> None:
        """Only them: on tmpfs, what does not fit takes blocks away that were there and not yet written."""
        for first, last in holes.within(start // PAGE_BYTES * PAGE_BYTES, -(-end // PAGE_BYTES) * PAGE_BYTES):
            _check(memory.allocate(fd, first, last - first), f"refilling {self.path}")
            _check(
                memory.map_file(self._base, first, fd, first, last - first, writable=True),
                f"mapping {self.path}",
            )
            holes.uncovered(first, last)

    def write_back(self, start: int, end: int) -> None:
        """Writes what is dirty in ``[start, end)`` slowly: the system would write it in one burst later,
        for which all syncs wait. Safe in another thread, and promises nothing."""
        if self.path is None:
            return
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # its topic was deleted, or clients have all open files: the system writes it some day
        try:
            memory.write_back(fd, start, end - start)
        finally:
            os.close(fd)

    def _punch_hole(self, fd: int, start: int, end: int) -> None:
        result = memory.punch_hole(fd, start, end - start)
        if result != -errno.EOPNOTSUPP:  # a file system without holes keeps the space; nothing else is wrong
            _check(result, f"freeing part of {self.path or 'memory'}")

    def sync(self) -> None:
        """Writes every change to the disk."""
        if self.allocated_bytes:
            _check(memory.sync_map(self._base, self.allocated_bytes), f"syncing {self.path}")
            with self._file() as fd:
                os.fsync(fd)

    def disk_bytes(self) -> int:
        if self.path is None:
            return os.fstat(self._memory_fd).st_blocks * 512
        return self.path.stat().st_blocks * 512

    @property
    def is_open(self) -> bool:
        return bool(self._base != memory.NULL)

    def delete(self) -> None:
        """Closes the region and deletes its file."""
        self.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmaps the region. No array over it may be touched afterwards."""
        if self._base != memory.NULL:
            memory.release(self._base, self.reserve_bytes)
            self._base = memory.NULL
            if self._holes is not None:
                self._holes.forget()
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd = -1


class Mapping:
    """A file of another process's data directory, mapped read-only; no descriptor stays open, because there may be
    thousands of files."""

    def __init__(self, path: Path) -> None:
        self.bytes = 0
        self._base = memory.NULL
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # its topic was deleted meanwhile
        try:
            size = os.fstat(fd).st_size // PAGE_BYTES * PAGE_BYTES
            if size:
                self._base = reserved(memory.reserve(size), path)
                mapped(memory.map_file(self._base, 0, fd, 0, size, writable=False), path)
                self.bytes = size
                self._cover_holes(fd, path)
        finally:
            os.close(fd)

    def _cover_holes(self, fd: int, path: Path) -> None:
        """To read one would take disk space on some file systems, and fail on a full one. What the owner has not
        written yet is covered, too: it is behind all that a reader asks for, or not touched at this moment."""
        if reading_fills(fd):
            for start, end in islice(find_holes(fd, self.bytes, is_own=False), MOST_PIECES):
                mapped(memory.cover(self._base, start, end - start, writable=False), path)

    def items(self, dtype: np.dtype[Any], magic: bytes, log_id: int) -> npt.NDArray[Any]:
        """The items behind the header page. Raises ``StoreError`` when it is not the table that is meant."""
        if not self.bytes:
            return np.empty(0, dtype)
        page = bytes(memory.view(self._base, 0, TABLE_HEADER.size))
        if page != TABLE_HEADER.pack(magic, FORMAT_VERSION, dtype.itemsize, log_id):
            raise StoreError(f"{magic.decode()} does not belong to this log")
        count = (self.bytes - HEADER_BYTES) // dtype.itemsize
        buffer = memory.view(self._base, HEADER_BYTES, count * dtype.itemsize)
        return np.frombuffer(buffer, dtype)

    def close(self) -> None:
        if self.bytes:
            memory.release(self._base, self.bytes)
            self.bytes = 0


def reserved(base: Any, path: Path) -> Any:
    """Raises ``StoreError`` when there is no address space for a file."""
    if base == memory.NULL:
        raise NoAddressSpace(f"cannot reserve address space for {path.name}")
    return base


def mapped(result: int, path: Path) -> None:
    """Raises ``StoreError`` when a file could not be mapped."""
    if result:
        raise StoreError(f"cannot map {path.name}: {os.strerror(-result)}")
