"""The addresses into which the segments of a log are mapped.

The byte at position ``p`` of the log lies at ``pointer + p``. Only a window of positions has addresses: it begins where
the log began when it was reserved, and is at least twice as long as the log was. A log that comes near the end of its
window moves into another one, so that it goes on however much was written before. Whatever looks at the log asks for
``pointer`` each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from tickwheel_native import lib, memory
from timerlog.errors import LogAtItsEnd, NoAddressSpace

#: A log ends before this position.
END_POSITION: Final = lib.TW_FOREIGN
#: A window is longer than the log by so much at least.
ROOM_BYTES: Final = 1 << 40


def _check_end(end: int) -> None:
    if end > END_POSITION:
        raise LogAtItsEnd(f"the log is at its end: position {end} is behind the last one, {END_POSITION}")


class LogAddresses:
    """The window of one log. The bytes of a segment have addresses from ``map`` to ``unmap``."""

    def __init__(self, first: int, end: int) -> None:
        """For a log from position ``first`` to ``end``. Raises ``NoAddressSpace``, ``LogAtItsEnd``."""
        self.start = self.end = 0
        self.pointer: memory.Address = memory.NULL
        self._reserve(first, end)

    def _reserve(self, first: int, end: int) -> None:
        assert 0 <= first <= end, "a log ends behind its beginning"
        _check_end(end)
        span_bytes = end - first
        size_bytes = span_bytes + max(span_bytes, ROOM_BYTES)
        reserved = memory.reserve(size_bytes)
        if reserved == memory.NULL:
            raise NoAddressSpace(
                f"cannot reserve address space for the log: {os.strerror(memory.reserve_errno())}"
            )
        self.start, self.end = first, first + size_bytes
        self.pointer = memory.shifted(reserved, -first)

    def reach(self, first: int, end: int, fill: Callable[[memory.Address], None]) -> None:
        """Gives the positions from ``first``, where the log begins now, to ``end`` addresses. In the last quarter of a
        window the log moves: ``fill`` maps its segments relative to another pointer. Raises ``NoAddressSpace``,
        ``LogAtItsEnd``: then nothing has changed."""
        assert self.start <= first < end, "a log begins where it did, or later"
        _check_end(end)
        if end <= self.end - (self.end - self.start) // 4:
            return
        try:
            self._move(first, end, fill)
        except NoAddressSpace:
            if end > self.end:
                raise

    def _move(self, first: int, end: int, fill: Callable[[memory.Address], None]) -> None:
        moved = LogAddresses(first, end)
        try:
            fill(moved.pointer)
        except OSError as error:
            moved.release()
            raise NoAddressSpace(f"the log cannot be mapped elsewhere: {error.strerror}") from error
        except BaseException:
            moved.release()
            raise
        self.release()
        self.start, self.end, self.pointer = moved.start, moved.end, moved.pointer
        assert end <= self.end - (self.end - self.start) // 4, "a log that has moved stays for a while"

    def unmap(self, position: int, size_bytes: int) -> None:
        """Nothing is mapped there any more."""
        assert self.holds(position, position + size_bytes), "what is unmapped has addresses"
        memory.unmap_to_reserved(self.pointer, position, size_bytes)

    def holds(self, start: int, end: int) -> bool:
        """Whether these positions have addresses."""
        return self.start <= start <= end <= self.end

    def view(self, position: int, count: int) -> memoryview:
        """Bytes of a segment that is mapped, not copied: for now, not for later."""
        assert self.holds(position, position + count), "what is looked at has addresses"
        return memory.view(self.pointer, position, count)

    def release(self) -> None:
        """No byte of the log may be looked at afterwards."""
        if self.end > self.start:
            memory.release(memory.shifted(self.pointer, self.start), self.end - self.start)
        self.start = self.end = 0
