"""A window of addresses for a file that is longer than all that is looked at.

The byte at an offset of the file lies at ``pointer + offset``; only those from ``start`` to below ``end`` have
addresses. What lies before them is gone. A window never changes: whoever needs more reserves another one, maps the file
into it, and releases this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from tickwheel_native import memory
from timerlog.errors import NoAddressSpace

PAGE_BYTES: Final = 4096
_LEAST_SHARE: Final = 2
"""Where addresses are few, a window is longer than what is used by a half of that at least."""


class Window:
    """Addresses for the bytes from ``start`` to below ``end``, both whole pages."""

    def __init__(self, start: int, end: int) -> None:
        """Raises ``NoAddressSpace``."""
        assert 0 <= start < end, "a window has a beginning and an end"
        assert start % PAGE_BYTES == end % PAGE_BYTES == 0, "a window has whole pages"
        reserved = memory.reserve(end - start)
        if reserved == memory.NULL:
            raise NoAddressSpace(
                f"cannot reserve {end - start:,} bytes of address space: {os.strerror(memory.reserve_errno())}"
            )
        self.start, self.end = start, end
        #: Where byte 0 would be: a number, and perhaps the address of nothing.
        self.pointer: memory.Address = memory.shifted(reserved, -start)
        self.is_open = True

    def release(self) -> None:
        """No byte may be looked at afterwards. Releasing it again changes nothing."""
        if self.is_open:
            self.is_open = False
            memory.release(memory.shifted(self.pointer, self.start), self.end - self.start)

    def release_some(self, count: int) -> None:
        """So many bytes at its beginning: to release all of a window of which much was looked at takes long."""
        assert count > 0, "each step releases something"
        assert count % PAGE_BYTES == 0, "what is left of a window has whole pages"
        stop = min(self.start + count, self.end)
        if stop == self.end:
            self.release()
            return
        memory.release(memory.shifted(self.pointer, self.start), stop - self.start)
        self.start = stop


def window_around(first: int, end: int, room_bytes: int) -> Window:
    """One for the bytes from ``first`` to ``end`` that is twice as long, and by ``room_bytes`` longer at least; by less
    where addresses are few. Raises ``NoAddressSpace``."""
    assert 0 <= first <= end, "what is used ends behind its beginning"
    start, end = first // PAGE_BYTES * PAGE_BYTES, -(-end // PAGE_BYTES) * PAGE_BYTES
    for more in _rooms(end - start, room_bytes):
        try:
            return Window(start, end + more)
        except NoAddressSpace as error:
            failed = error
    raise failed


def _rooms(span_bytes: int, room_bytes: int) -> Iterator[int]:
    least = -(-max(span_bytes // _LEAST_SHARE, PAGE_BYTES) // PAGE_BYTES) * PAGE_BYTES
    yield max(span_bytes, room_bytes)
    if least < max(span_bytes, room_bytes):
        yield least
