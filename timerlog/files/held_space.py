"""Disk space that is held for a full disk: files of blocks that hold nothing, which become smaller by what something
else has to grow.

The reserve is for what accepted messages will still need: places in their topics and groups, timers, records of leases
and acks. It is made larger before sends are accepted. When the disk is full and a table or the log must grow for a
message that was accepted, the reserve becomes smaller by as much. Sends themselves get nothing.
``timerlog.engine.space`` says how large it should be.

The spare is for purging: on a full disk, what is needed of a segment must be written somewhere before the segment can
be deleted. Purging makes it smaller by what the log has to grow, so that nothing else gets the blocks in between, and
larger again as soon as a segment was deleted. It grows with the log, up to ``SPARE_BYTES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from timerlog.errors import DiskFull
from timerlog.files.disk import Disk

RESERVE_NAME: Final = "reserve"
SPARE_NAME: Final = "spare"
SPARE_BYTES: Final = 8 * 1024 * 1024
_PAGE_BYTES: Final = 4096
#: The smallest step in which the reserve grows while the disk has room.
_STEP_BYTES: Final = 2 * 1024 * 1024
#: What is lent on top when the file system wants blocks of its own to make a file longer.
_EXTRA_BYTES: Final = (0, 64 * 1024, 256 * 1024)
#: Of the spare: file systems need blocks of their own to make a file longer, and the next checkpoint needs some.
_SLACK_BYTES: Final = 128 * 1024


class Lender(Protocol):
    def lend(self, bytes_needed: int) -> bool:
        """Gives blocks back to the disk; whatever allocates next gets them: so do it at once. False: too little."""


def allocate_lent(
    lenders: tuple[Lender | None, ...], bytes_needed: int, allocate: Callable[[], None]
) -> None:
    """Allocates on a full disk with what one of the lenders gives. Raises ``DiskFull``: then nothing was allocated."""
    assert bytes_needed >= 0, "what is lent makes a lender smaller"
    for lender in lenders:
        for extra_bytes in _EXTRA_BYTES:
            if lender is None or not lender.lend(bytes_needed + extra_bytes):
                break
            with suppress(DiskFull):
                allocate()
                return
    raise DiskFull("the disk is full, and what was kept for this is used up")


def _in_pages(count: int) -> int:
    return -(-count // _PAGE_BYTES) * _PAGE_BYTES


class Reserve:
    """The reserve of one directory; nothing before the first ``cover``."""

    def __init__(self, disk: Disk, limit_bytes: int) -> None:
        """It never grows beyond ``limit_bytes``."""
        self._disk = disk
        self._limit_bytes = _in_pages(limit_bytes)
        self._is_closed = False
        self.size_bytes = disk.held_bytes(RESERVE_NAME)

    def cover(self, bytes_needed: int) -> None:
        """Holds at least so much from now on, or its limit. Raises ``DiskFull``: then it is as it was."""
        bytes_needed = min(bytes_needed, self._limit_bytes)
        if bytes_needed <= self.size_bytes:
            return
        try:
            self._resize(min(bytes_needed + self._step(bytes_needed), self._limit_bytes))
        except DiskFull:
            self._resize(bytes_needed)
        assert bytes_needed <= self.size_bytes <= self._limit_bytes, (
            "what is to be covered is held, up to the limit"
        )

    def trim(self, bytes_needed: int) -> None:
        """Gives the disk back what is much more than needed."""
        bytes_needed = min(bytes_needed, self._limit_bytes)
        step = self._step(bytes_needed)
        if self.size_bytes > bytes_needed + 3 * step:
            self._resize(min(bytes_needed + step, self._limit_bytes))
            assert self.size_bytes >= bytes_needed, "what is needed is not given back"

    @property
    def is_at_limit(self) -> bool:
        return self.size_bytes >= self._limit_bytes

    @staticmethod
    def _step(bytes_needed: int) -> int:
        return max(_STEP_BYTES, bytes_needed // 32)

    def _resize(self, size_bytes: int) -> None:
        size_bytes = _in_pages(size_bytes)
        self._disk.resize_held(RESERVE_NAME, size_bytes)
        self.size_bytes = size_bytes

    def lend(self, bytes_needed: int) -> bool:
        """See ``Lender``."""
        bytes_needed = _in_pages(bytes_needed)
        if self._is_closed or bytes_needed > self.size_bytes:
            return False
        self._resize(self.size_bytes - bytes_needed)
        return True

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Inside, it lends nothing: for what can be refused."""
        was_closed, self._is_closed = self._is_closed, True
        try:
            yield
        finally:
            self._is_closed = was_closed


class Spare:
    """The spare space of one directory; nothing before the first ``cover``."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.size_bytes = disk.held_bytes(SPARE_NAME)

    @property
    def is_at_limit(self) -> bool:
        return self.size_bytes >= SPARE_BYTES

    def cover(self, log_bytes: int) -> None:
        """Holds as much as a log of this length may need to be purged, ``SPARE_BYTES`` at most, if the disk has it."""
        wanted_bytes = _in_pages(min(log_bytes, SPARE_BYTES))
        if self.size_bytes < wanted_bytes:
            with suppress(DiskFull):
                self._disk.resize_held(SPARE_NAME, wanted_bytes)
                self.size_bytes = wanted_bytes

    def can_lend(self, bytes_needed: int) -> bool:
        """Whether there is so much, and what file systems need on top of it."""
        return bytes_needed + _SLACK_BYTES <= self.size_bytes

    def lend(self, bytes_needed: int) -> bool:
        """Gives blocks back to the disk; whatever allocates next gets them: so do it at once. False: too little."""
        if not self.can_lend(bytes_needed):
            return False
        left = (self.size_bytes - bytes_needed - _SLACK_BYTES) // _PAGE_BYTES * _PAGE_BYTES
        self._disk.resize_held(SPARE_NAME, left)
        self.size_bytes = left
        return True
