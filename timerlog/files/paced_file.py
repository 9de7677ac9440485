"""Files that are written from their start to their end, at the pace of the disk."""

from __future__ import annotations

import os
from typing import Final

from tickwheel_native import Buffer, memory

_STEP_BYTES: Final = 1 << 20
_BEHIND_BYTES: Final = 4 << 20


class PacedFile:
    """Writes a file of some size so that few of its bytes ever wait for the disk: a sync of another file, such as the
    log's, waits for what was handed to the disk before it."""

    def __init__(self, fd: int) -> None:
        """``fd``: an open file without bytes, which stays the caller's."""
        self._fd = fd
        self._written_bytes = self._begun_bytes = 0

    def write(self, data: Buffer) -> None:
        """Writes all of it. Raises ``OSError``, also of what was written before."""
        view = memoryview(data).cast("B")
        self._written_bytes += len(view)
        while view:
            view = view[os.write(self._fd, view) :]
        if self._written_bytes - self._begun_bytes >= _STEP_BYTES:
            result = memory.keep_pace(self._fd, self._begun_bytes, self._written_bytes, _BEHIND_BYTES)
            if result:
                raise OSError(-result, os.strerror(-result))
            self._begun_bytes = self._written_bytes
