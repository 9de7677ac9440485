"""How much of the disk what is put may take: together so many bytes, and never what the broker's messages need."""

from __future__ import annotations

import os
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from tickwheel.errors import DiskFull, TickwheelError

_SHARE: Final = 0.05
_MOST_KEPT_BYTES: Final = 16 << 30


class StagingFull(TickwheelError):
    """Jobs that are not taken in yet have as many bytes as they may have."""

    code = "staging_full"
    advice = "Wait until other jobs are taken in, write smaller jobs, or raise max_staging_bytes."
    retryable = True


class Room:
    """Of ``staging``. Used by many threads at once."""

    def __init__(self, staging: Path, max_bytes: int) -> None:
        self._staging, self._max_bytes = staging, max_bytes
        self._coming: dict[str, int] = {}
        self._others_bytes = 0
        self._lock = threading.Lock()

    def enter(self, part: str) -> None:
        """A file comes in, under the name ``part`` until it is whole."""
        with self._lock:
            self._coming[part] = 0
            self._others_bytes = self._count()

    def leave(self, part: str) -> None:
        """It does not come any more."""
        with self._lock:
            self._others_bytes += self._coming.pop(part)

    def take(self, part: str, count: int) -> None:
        """Before so many bytes more of it are written. Raises `StagingFull`, DiskFull."""
        with self._lock:
            if self._used() + count > self._max_bytes:
                self._others_bytes = self._count()
            if self._used() + count > self._max_bytes:
                raise StagingFull(
                    f"The files of jobs that are not taken in yet may have {self._max_bytes:,} bytes, and have "
                    f"{self._used():,}."
                )
            disk = os.statvfs(self._staging)
            free_bytes = disk.f_bavail * disk.f_frsize
            kept_bytes = min(int(_SHARE * disk.f_blocks * disk.f_frsize), _MOST_KEPT_BYTES)
            if free_bytes - count < kept_bytes:
                raise DiskFull(
                    f"Of the broker's disk {free_bytes:,} bytes are free, and {kept_bytes:,} are kept for other "
                    "messages.",
                    advice="Free space or extend the broker's disk.",
                )
            self._coming[part] += count

    def _used(self) -> int:
        return self._others_bytes + sum(self._coming.values())

    def _count(self) -> int:
        """What lies there and does not come in now."""
        found = 0
        with suppress(FileNotFoundError), os.scandir(self._staging) as jobs:
            for job in jobs:
                if job.is_dir(follow_symlinks=False):
                    found += self._count_in(job.path)
        return found

    def _count_in(self, directory: str) -> int:
        found = 0
        with suppress(FileNotFoundError), os.scandir(directory) as files:
            for file in files:
                with suppress(FileNotFoundError):
                    status = file.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and file.name not in self._coming:
                        found += status.st_size
        return found
