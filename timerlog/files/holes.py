"""Holes of mapped files, where even to read one takes disk space.

A purge gives pages of the tables back, and a table that begins late has none before its first item: holes, which
read as zeros. On tmpfs such a read takes a block. So it would take back what the purge gave; and where no block is
free, it ends the process (SIGBUS). Other file systems read holes without taking anything. On tmpfs, therefore, a hole
is covered: zeros of memory that belong to no file, and cost none, lie in its place. What lies in a hole is gone and is
not written again; a stray write would stay in memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import ClassVar, Final

from tickwheel_native import memory
from timerlog.files.window import PAGE_BYTES, Window

#: In a process. Each costs two of the 65,530 mappings that it may have; what is more is not given back.
MOST_PIECES: Final = 16_384
_FOUND: Final = 1_024


class Holes:
    """Those of one mapped file that have addresses, by page."""

    #: Whether a write into a hole ends the process, as it may without a cover: for tests and the simulator.
    are_read_only: ClassVar[bool] = False
    _pieces_in_all: ClassVar[int] = 0

    def __init__(self, window: Window) -> None:
        """``window``: where the file is mapped."""
        self._window = window
        #: Where each piece begins and ends: in order, with pages between two of them.
        self._starts: list[int] = []
        self._ends: list[int] = []

    def cover(self, start: int, end: int) -> bool:
        """Covers what has addresses of ``[start, end)``; False if there would be too many pieces: then nothing is to
        be given back."""
        assert start % PAGE_BYTES == end % PAGE_BYTES == 0, "a hole has whole pages"
        start = max(start, self._window.start)
        if start >= end:
            return True
        assert end <= self._window.end, "what is covered is a part of the window"
        first, last = start // PAGE_BYTES, end // PAGE_BYTES
        at, behind = bisect_left(self._ends, first), bisect_right(self._starts, last)
        if Holes._pieces_in_all >= MOST_PIECES and at == behind:
            return False
        if not _cover(self._window, start, end):
            return False
        if at < behind:
            first, last = min(first, self._starts[at]), max(last, self._ends[behind - 1])
        self._replace(at, behind, [(first, last)])
        return True

    def uncovered(self, start: int, end: int) -> None:
        """The file is mapped there again."""
        first, last = start // PAGE_BYTES, end // PAGE_BYTES
        at, behind = bisect_right(self._ends, first), bisect_left(self._starts, last)
        assert behind == at + 1, "what is mapped again is a part of one hole"
        if at < behind:
            rest = [(self._starts[at], first), (last, self._ends[behind - 1])]
            self._replace(at, behind, [(begin, stop) for begin, stop in rest if begin < stop])

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """The covered ranges of ``[start, end)``."""
        first, last = start // PAGE_BYTES, end // PAGE_BYTES
        at, behind = bisect_right(self._ends, first), bisect_left(self._starts, last)
        pieces = zip(self._starts[at:behind], self._ends[at:behind], strict=True)
        return [
            (max(first, begin) * PAGE_BYTES, min(last, stop) * PAGE_BYTES)
            for begin, stop in pieces
            if max(first, begin) < min(last, stop)
        ]

    def move(self, window: Window) -> bool:
        """The file is mapped in another window, where the same is covered; False if that cannot be: then nothing has
        changed."""
        kept = self.within(window.start, window.end)
        if not all(_cover(window, *piece) for piece in kept):
            return False
        self._window = window
        self._replace(0, len(self._starts), [(a // PAGE_BYTES, b // PAGE_BYTES) for a, b in kept])
        return True

    def forget(self) -> None:
        """Nothing is mapped any more."""
        self._replace(0, len(self._starts), [])

    def _replace(self, at: int, behind: int, pieces: list[tuple[int, int]]) -> None:
        self._starts[at:behind] = [start for start, _ in pieces]
        self._ends[at:behind] = [end for _, end in pieces]
        Holes._pieces_in_all += len(pieces) - (behind - at)


def _cover(window: Window, start: int, end: int) -> bool:
    return not memory.cover(window.pointer, start, end - start, writable=not Holes.are_read_only)


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
