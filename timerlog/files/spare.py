"""Disk space that is kept for purging: on a full disk, what is needed of a segment must be written somewhere before the
segment can be deleted.

It is a file of blocks that hold nothing. Purging makes it smaller by what the log has to grow, so that nobody else gets
the blocks in between, and larger again as soon as a segment was deleted.
"""

from __future__ import annotations

from typing import Final

from timerlog.errors import DiskFull
from timerlog.files.disk import Disk

NAME: Final = "spare"
FULL_BYTES: Final = 8 * 1024 * 1024
#: File systems need blocks of their own to make a file longer, and the next checkpoint needs some.
_SLACK_BYTES: Final = 128 * 1024


class Spare:
    """The spare space of one directory; nothing before the first ``fill``."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.size_bytes = disk.held_bytes(NAME)

    def fill(self) -> None:
        """Takes as much as it should have, if the disk has it."""
        if self.size_bytes < FULL_BYTES:
            try:
                self._disk.resize_held(NAME, FULL_BYTES)
            except DiskFull:
                return
            self.size_bytes = FULL_BYTES

    def can_lend(self, bytes_needed: int) -> bool:
        """Whether there is so much, and what file systems need on top of it."""
        return bytes_needed + _SLACK_BYTES <= self.size_bytes

    def lend(self, bytes_needed: int) -> bool:
        """Gives blocks back to the disk, for whoever allocates next: so do it at once. False: there is too little."""
        if not self.can_lend(bytes_needed):
            return False
        left = (self.size_bytes - bytes_needed - _SLACK_BYTES) // 4096 * 4096
        self._disk.resize_held(NAME, left)
        self.size_bytes = left
        return True
