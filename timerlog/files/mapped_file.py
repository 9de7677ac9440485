"""Files mapped into memory: a region, which its one writer lets grow, and a mapping, which others only read.

A region has a window of addresses and maps its file there. Growing allocates disk blocks *first*, so a full disk is an
error before anything is written. Arrays over a region stay valid as long as it is open, if it does not move; one that
comes near the end of its window moves into another one, without what is gone, if its owner says what that is.
``path=None`` gives a region without a file (memory only), which the simulator and unit tests use.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tickwheel_native import memory
from timerlog.errors import DiskFull, LogAtItsEnd, NoAddressSpace, StoreError
from timerlog.files.disk import open_file
from timerlog.files.held_space import Lender, allocate_lent
from timerlog.files.holes import MOST_PIECES, Holes, find_holes, reading_fills
from timerlog.files.items import Items
from timerlog.files.maps import ADVICE, MAPS
from timerlog.files.window import PAGE_BYTES, Window, window_around
from timerlog.layout import FORMAT_VERSION, HEADER_BYTES, TABLE_HEADER

SMALLEST_STEP_BYTES = 64 * 1024
LARGEST_STEP_BYTES = 8 * 1024 * 1024
_RELEASED_AT_ONCE_BYTES = 64 * 1024 * 1024
"""Of a window that was left. Each page of it that was looked at takes its time."""


def _check(result: int, what: str) -> None:
    if result == 0:
        return
    if -result == errno.ENOMEM:
        raise _no_room_in_memory(what)
    if -result in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFull(f"the disk is full ({what})")
    if -result == errno.EFBIG:
        raise LogAtItsEnd(f"the file system has no longer files ({what})")
    raise OSError(-result, f"{os.strerror(-result)} ({what})")


def _no_room_in_memory(what: str) -> NoAddressSpace:
    error = NoAddressSpace(f"the system maps no more files into memory ({what})")
    if MAPS.is_at_limit():
        error.advice = ADVICE
    return error


class Region:
    """``allocated_bytes`` of a file, of which those from ``start`` on have addresses."""

    def __init__(
        self,
        *,
        path: Path | None,
        room_bytes: int,
        lender: Lender | None = None,
        never_used: Sequence[tuple[int, int]] = (),
        first: int = 0,
        lowest: Callable[[], int] | None = None,
        moved: Callable[[], None] | None = None,
    ) -> None:
        """``lender`` helps out when the disk is full. ``never_used``: from, to below which nothing is in the file.
        ``first``: what lies before is gone. ``lowest`` says that later: with it the region moves when it must, calls
        ``moved``, and has ``room_bytes`` to grow after that; without it, ``room_bytes`` are all that it will have."""
        self.path = path
        self._lender = lender
        self._room_bytes, self._lowest, self._moved = room_bytes, lowest, moved
        self.allocated_bytes = 0
        # Without a path: an unlinked file in memory; the same calls, no disk.
        self._memory_fd = os.memfd_create("tickwheel-region", os.MFD_CLOEXEC) if path is None else -1
        self._holds = 0
        #: Windows that were left and that somebody may still look at.
        self._left: list[Window] = []
        self._is_mapped = False
        #: None where holes may be read.
        self._holes: Holes | None = None
        self._window: Window | None = None
        try:
            with self._file() as fd:
                size = os.fstat(fd).st_size // PAGE_BYTES * PAGE_BYTES
                self._window = self._first_window(first, size)
                fills = reading_fills(fd)
                if fills or Holes.are_read_only:
                    self._holes = Holes(self._window)
                if size:
                    self._map(fd, size)
                if size and fills:
                    self._cover_holes(fd, self.start, size, never_used)
        except BaseException:
            self.close()
            raise

    @classmethod
    def fresh(cls, path: Path | None, room_bytes: int, lender: Lender | None = None) -> Region:
        """One that starts empty, whatever file was there, and does not move."""
        if path is not None:
            path.unlink(missing_ok=True)
        return cls(path=path, room_bytes=room_bytes, lender=lender)

    def _first_window(self, first: int, size: int) -> Window:
        if self._lowest is None:
            return Window(0, -(-self._room_bytes // PAGE_BYTES) * PAGE_BYTES)
        return window_around(min(first, size), size, self._room_bytes)

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
    def _addresses(self) -> Window:
        assert self._window is not None, "a region that was closed has no addresses"
        return self._window

    @property
    def start(self) -> int:
        """The first byte that has an address."""
        return self._addresses.start

    @property
    def end(self) -> int:
        """No byte from here on has an address."""
        return self._addresses.end

    @property
    def near(self) -> int:
        """Up to here it grows without a move."""
        window = self._addresses
        return window.end if self._lowest is None else window.end - (window.end - window.start) // 4

    @property
    def address(self) -> int:
        """The address of byte 0, as a number, which may be that of nothing; another one after a move."""
        return memory.number_of(self._addresses.pointer)

    @property
    def pointer(self) -> Any:
        """The same as a pointer."""
        return self._addresses.pointer

    def _map(self, fd: int, end: int) -> None:
        """All addresses are mapped at once, also those behind the end of the file: that is one map of the process, and
        not one more for what is only reserved. There are 30,000 topics with a group, and 65,530 maps."""
        assert self.allocated_bytes <= end, "a region does not become shorter"
        if not self._is_mapped:
            self._map_all(fd, self._addresses)
            self._is_mapped = True
        self.allocated_bytes = end

    def _map_all(self, fd: int, window: Window) -> None:
        size_bytes = window.end - window.start
        result = memory.map_file(window.pointer, window.start, fd, window.start, size_bytes, writable=True)
        _check(result, f"mapping {self.path}")

    def _cover_holes(self, fd: int, at: int, size: int, never_used: Sequence[tuple[int, int]]) -> None:
        """To look for holes takes time for each page, so not where nothing can be."""
        if self._holes is None:
            return
        for first, last in [*never_used, (size, size)]:
            start, end = (
                min(-(-first // PAGE_BYTES) * PAGE_BYTES, size),
                min(last // PAGE_BYTES * PAGE_BYTES, size),
            )
            for hole in find_holes(fd, start, is_own=True, start=at):
                self._holes.cover(*hole)
            at = max(at, start, end)
            self._holes.cover(start, at)

    # -- moving --

    def reach(self, end: int) -> None:
        """Gives the bytes below ``end`` addresses; in the last quarter of its window a region moves. Raises
        ``NoAddressSpace``: then nothing has changed."""
        window = self._addresses
        if end <= self.near:
            return
        if self._lowest is None:
            raise NoAddressSpace(f"{self.path} cannot grow beyond {window.end} bytes")
        try:
            self._move(self._lowest(), end)
        except DiskFull:
            if end > window.end:
                raise

    def reach_down(self, start: int) -> None:
        """Gives the bytes from ``start`` on addresses. Raises ``NoAddressSpace``."""
        before = self.start
        if start >= before:
            return
        self._move(start, self.allocated_bytes)
        assert self.start <= start, "what was asked for has addresses"
        with self._file() as fd:
            if reading_fills(fd):
                self._cover_holes(fd, self.start, min(before, self.allocated_bytes), ())

    def _move(self, first: int, end: int) -> None:
        # Somebody may look at what is gone for others.
        first = min(first, self.start) if self._holds else first
        end = max(end, self.allocated_bytes)
        window = self._reserved_around(min(first, end), end)
        try:
            with self._file() as fd:
                if self._is_mapped:
                    self._map_all(fd, window)
            if self._holes is not None and not self._holes.move(window):
                raise _no_room_in_memory(f"moving {self.path}")
        except BaseException:
            window.release()
            raise
        before, self._window = self._addresses, window
        assert not self._holds or window.start <= before.start, "what is held keeps having addresses"
        self._left.append(before)
        if not self._holds and self.allocated_bytes - before.start <= _RELEASED_AT_ONCE_BYTES:
            self._release_left()
        assert self.start <= end <= self.end, "a window reaches what it was reserved for"
        if self._moved is not None:
            self._moved()

    def _reserved_around(self, first: int, end: int) -> Window:
        try:
            return window_around(first, end, self._room_bytes)
        except NoAddressSpace:
            if self._holds or not self._left:
                raise
            self._release_left()
            return window_around(first, end, self._room_bytes)

    def hold(self) -> None:
        """Until ``let_go``, addresses that were asked for stay good, also in another thread; and none are given up
        from the first one on that there is now."""
        self._holds += 1

    def let_go(self) -> None:
        """Nobody looks at older addresses any more that was meant by a ``hold``."""
        assert self._holds > 0, "who lets go has held"
        self._holds -= 1

    def _release_some(self) -> None:
        """At each step by which the file grows: so what was left is gone long before the next move."""
        self._left[0].release_some(_RELEASED_AT_ONCE_BYTES)
        if not self._left[0].is_open:
            del self._left[0]

    def _release_left(self) -> None:
        while self._left:
            self._left.pop().release()

    # -- growing --

    def ensure(self, bytes_needed: int) -> None:
        """Makes at least ``bytes_needed`` usable, growing by doubling steps; on a full disk by the smallest one.
        Raises ``DiskFull``; then nothing changed."""
        if bytes_needed <= self.allocated_bytes:
            return
        step = min(max(self.allocated_bytes, SMALLEST_STEP_BYTES), LARGEST_STEP_BYTES)
        least = -(-bytes_needed // PAGE_BYTES) * PAGE_BYTES
        self.reach(least)
        target = min(max(self.allocated_bytes + step, least), self.end)
        with self._file() as fd:
            if not self._has_room(fd, target):
                target = min(target, least)
                self._allocate_least(fd, target)
            self._map(fd, target)
        if self._left and not self._holds:
            self._release_some()
        assert bytes_needed <= self.allocated_bytes <= self.end

    def _has_room(self, fd: int, target: int) -> bool:
        try:
            self._allocate(fd, target)
        except LogAtItsEnd:
            raise
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
        """Begins to allocate disk blocks at ``offset``, of a file in which nothing is: what lies before reads as zeros
        as far as it has addresses, and is never written. Raises ``DiskFull``."""
        if self._lowest is not None and offset > self.near:
            self._move(offset, offset)
        self.leave_to(offset)

    def leave_to(self, offset: int) -> None:
        """The same behind what is in the file. Raises ``DiskFull``."""
        start, offset = self.allocated_bytes, offset // PAGE_BYTES * PAGE_BYTES
        if offset <= start:
            return
        self.reach(offset)
        with self._file() as fd:
            _check(_truncate(fd, offset), f"growing {self.path}")
            self._map(fd, offset)
            if self._holes is not None:
                self._holes.cover(start, offset)

    def clear(self) -> None:
        """Gives everything back and starts anew with an empty file."""
        assert not self._holds, "nobody looks at what is given back"
        if self._is_mapped:
            size_bytes = self.end - self.start
            result = memory.unmap_to_reserved(self.pointer, self.start, size_bytes)
            _check(result, f"clearing {self.path}")
            self._is_mapped = False
        if self._holes is not None:
            self._holes.forget()
        with self._file() as fd:
            os.ftruncate(fd, 0)
        self.allocated_bytes = 0

    # -- looking --

    def array(self, dtype: npt.DTypeLike, offset_bytes: int, count: int) -> npt.NDArray[Any]:
        """A numpy array over ``count`` items at ``offset_bytes``; they must be allocated, and have addresses, before
        they are touched."""
        itemsize = np.dtype(dtype).itemsize
        assert 0 <= offset_bytes <= self.end - itemsize * count, "all items have addresses, or may have them"
        buffer = memory.view(self.pointer, offset_bytes, itemsize * count)
        return np.frombuffer(buffer, dtype=dtype)

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of the file, whether they have addresses or not."""
        with self._file() as fd:
            return os.pread(fd, count, offset)

    def write(self, offset: int, data: bytes) -> None:
        """Into the file, whether there it has addresses or not; the disk blocks are allocated."""
        assert offset + len(data) <= self.allocated_bytes, "what is written has disk blocks"
        with self._file() as fd:
            written = os.pwrite(fd, data, offset)
        assert written == len(data), "a few bytes are written in one go"

    def first_data(self, offset: int) -> int:
        """The first byte from ``offset`` on, by whole pages, before which there is nothing but a hole."""
        with self._file() as fd:
            try:
                return os.lseek(fd, offset, os.SEEK_DATA) // PAGE_BYTES * PAGE_BYTES
            except OSError as error:
                return self.allocated_bytes if error.errno == errno.ENXIO else offset

    # -- giving back --

    def free(self, start: int, end: int) -> None:
        """Gives the disk blocks of ``[start, end)``, whole pages, back; the range then reads as zeros, and is never
        written. Safe in another thread as long as the region is open and does not move."""
        if self.leave(start, end):
            self.punch(start, end)

    def leave(self, start: int, end: int) -> bool:
        """Before ``punch``: whether nothing needs ``[start, end)``, whole pages, any more. Fast."""
        assert 0 <= start <= end <= self.allocated_bytes
        assert start % PAGE_BYTES == end % PAGE_BYTES == 0, "a part of a page may hold what is needed"
        return self._holes is None or self._holes.cover(start, end)

    def punch(self, start: int, end: int) -> None:
        """Gives disk blocks back that were left. It may wait for the disk, and is safe in another thread."""
        assert 0 <= start < end, "something is given back"
        assert start % PAGE_BYTES == end % PAGE_BYTES == 0, "whole pages are given back"
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
        """Gives ``[start, end)``, which is a part of what is usable and has addresses, disk blocks again. Raises
        ``DiskFull``."""
        with self._file() as fd:
            assert self.start <= start, "what is used again has addresses"
            assert start <= end <= self.allocated_bytes, "what is used again is a part of what is usable"
            if self._holes is None:
                _check(memory.allocate(fd, start, end - start), f"refilling {self.path}")
            else:
                self._fill_holes(fd, self._holes, start, end)

    def _fill_holes(self, fd: int, holes: Holes, start: int, end: int) -> None:
        """Only them: on tmpfs, what does not fit takes blocks away that were there and not yet written."""
        for first, last in holes.within(start // PAGE_BYTES * PAGE_BYTES, -(-end // PAGE_BYTES) * PAGE_BYTES):
            _check(memory.allocate(fd, first, last - first), f"refilling {self.path}")
            _check(
                memory.map_file(self.pointer, first, fd, first, last - first, writable=True),
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
            if self._is_mapped and self.start < self.allocated_bytes:
                first = memory.shifted(self.pointer, self.start)
                result = memory.sync_map(first, self.allocated_bytes - self.start)
                _check(result, f"syncing {self.path}")
            with self._file() as fd:
                os.fsync(fd)

    def disk_bytes(self) -> int:
        if self.path is None:
            return os.fstat(self._memory_fd).st_blocks * 512
        return self.path.stat().st_blocks * 512

    @property
    def is_open(self) -> bool:
        return self._window is not None and self._window.is_open

    def delete(self) -> None:
        """Closes the region and deletes its file."""
        self.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmaps the region. No array over it may be touched afterwards."""
        if self._window is not None and self._window.is_open:
            self._window.release()
            if self._holes is not None:
                self._holes.forget()
        self._release_left()
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd = -1


def _truncate(fd: int, size_bytes: int) -> int:
    try:
        os.ftruncate(fd, size_bytes)
    except OSError as error:
        return -(error.errno or errno.EIO)
    return 0


class Mapping:
    """A file of another process's data directory, mapped read-only; no descriptor stays open, because there may be
    thousands of files."""

    def __init__(self, path: Path, first: int = 0) -> None:
        """``first``: what lies before this byte is not looked at."""
        self.bytes = 0
        self._head = b""
        self._window: Window | None = None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # its topic was deleted meanwhile
        try:
            size = os.fstat(fd).st_size // PAGE_BYTES * PAGE_BYTES
            if size:
                self._head = os.pread(fd, TABLE_HEADER.size, 0)
                start = min(first // PAGE_BYTES * PAGE_BYTES, size - PAGE_BYTES)
                self._window = Window(start, size)
                result = memory.map_file(self._window.pointer, start, fd, start, size - start, writable=False)
                mapped(result, path)
                self.bytes = size
                self._cover_holes(fd, path, self._window)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(fd)

    @staticmethod
    def _cover_holes(fd: int, path: Path, window: Window) -> None:
        """To read one would take disk space on some file systems, and fail on a full one. What the owner has not
        written yet is covered, too: it is behind all that a reader asks for, or not touched at this moment."""
        if reading_fills(fd):
            holes = find_holes(fd, window.end, is_own=False, start=window.start)
            for start, end in islice(holes, MOST_PIECES):
                mapped(memory.cover(window.pointer, start, end - start, writable=False), path)

    def items(self, dtype: np.dtype[Any], magic: bytes, log_id: int) -> Items:
        """The items behind the header page. Raises ``StoreError`` when it is not the table that is meant."""
        if self._window is None:
            return Items(np.empty(0, dtype), 0)
        if self._head != TABLE_HEADER.pack(magic, FORMAT_VERSION, dtype.itemsize, log_id):
            raise StoreError(f"{magic.decode()} does not belong to this log")
        count = (self.bytes - HEADER_BYTES) // dtype.itemsize
        buffer = memory.view(self._window.pointer, HEADER_BYTES, count * dtype.itemsize)
        return Items(np.frombuffer(buffer, dtype), first_item(self._window.start, dtype.itemsize))

    def close(self) -> None:
        if self._window is not None:
            self._window.release()


def first_item(start: int, item_bytes: int) -> int:
    """The number of the first item of a table that lies as a whole behind the byte ``start`` of its file."""
    return max(0, -(-(start - HEADER_BYTES) // item_bytes))


def mapped(result: int, path: Path) -> None:
    """Raises ``StoreError`` when a file could not be mapped."""
    if result:
        raise StoreError(f"cannot map {path.name}: {os.strerror(-result)}")
