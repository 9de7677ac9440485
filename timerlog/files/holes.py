"""Holes of mapped files, where even to read one takes disk space.

A purge gives pages of the tables back, and a table that begins late has none before its first item: holes, which
read as zeros. On tmpfs such a read takes a block. So it would take back what the purge gave; and where no block is
free, it ends the process (SIGBUS). Other file systems read holes without taking anything. On tmpfs, therefore, a hole
is covered: zeros of memory that belong to no file, and cost none, lie in its place. What lies in a hole is gone and is
not written again; a stray write would stay in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from tickwheel_native import memory

PAGE_BYTES: Final = 4096
#: In a process. Each costs two of the 65,530 mappings that it may have; what is more is not given back.
MOST_PIECES: Final = 16_384
_FOUND: Final = 1_024


class Holes:
    """Those of one mapped file, by page."""

    #: Whether a write into a hole ends the process, as it may without a cover: for tests and the simulator.
    are_read_only: ClassVar[bool] = False
    _pieces_in_all: ClassVar[int] = 0

    def __init__(self, base: Any) -> None:
        """``base``: where the file is mapped."""
        self._base = base
        self._is_covered = bytearray()
        self._pieces = 0

    def cover(self, start: int, end: int) -> bool:
        """Covers ``[start, end)``; False if there would be too many pieces: then nothing is to be given back."""
        first, last = start // PAGE_BYTES, end // PAGE_BYTES
        self._grow(last + 1)
        before = self._count_pieces(first, last)
        if Holes._pieces_in_all >= MOST_PIECES and not self._touches(first, last):
            return False
        if memory.cover(self._base, start, end - start, writable=not Holes.are_read_only):
            return False
        self._is_covered[first:last] = b"\1" * (last - first)
        self._count(self._count_pieces(first, last) - before)
        return True

    def uncovered(self, start: int, end: int) -> None:
        """The file is mapped there again."""
        first, last = start // PAGE_BYTES, end // PAGE_BYTES
        before = self._count_pieces(first, last)
        self._is_covered[first:last] = bytes(last - first)
        self._count(self._count_pieces(first, last) - before)

    def within(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The covered ranges of ``[start, end)``."""
        at, last = start // PAGE_BYTES, end // PAGE_BYTES
        while (first := self._is_covered.find(1, at, last)) >= 0:
            at = self._is_covered.find(0, first, last)
            at = last if at < 0 else at
            yield first * PAGE_BYTES, at * PAGE_BYTES

    def forget(self) -> None:
        """Nothing is mapped any more."""
        self._is_covered.clear()
        self._count(-self._pieces)

    def _grow(self, pages: int) -> None:
        missing = pages - len(self._is_covered)
        if missing > 0:
            self._is_covered += bytes(missing)

    def _count(self, more: int) -> None:
        self._pieces += more
        Holes._pieces_in_all += more

    def _count_pieces(self, first: int, last: int) -> int:
        """Of the pages and their neighbours."""
        pages = self._is_covered[max(0, first - 1) : last + 1]
        return pages.count(b"\0\1") + pages.startswith(b"\1")

    def _touches(self, first: int, last: int) -> bool:
        return 1 in self._is_covered[max(0, first - 1) : last + 1]


def reading_fills(fd: int) -> bool:
    """Whether holes of an open file have to be covered."""
    return memory.reading_fills_holes(fd)


def find_holes(fd: int, end: int, *, is_own: bool, start: int = 0) -> Iterator[tuple[int, int]]:
    """Where a file has no disk blocks. Not ``is_own``, of a file that another process writes: also where it was never
    written. Raises ``OSError``."""
    at = start
    while at < end:
        at, found = memory.find_holes(fd, at, end, _FOUND, is_own=is_own)
        yield from found
