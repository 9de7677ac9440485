"""One data directory has one owner at a time: a lock file with the owner's pid."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from timerlog.errors import BadDirectory, DirectoryLocked, DirectoryReadOnly, DiskFull, StoreError


class DirectoryLock:
    """Creates the directory where it is missing and holds ``LOCK`` in it until ``release``.

    The kernel drops the lock when the process ends, however it ends, so a stale file never locks anybody out.
    """

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._fd = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise _as_store_error(directory, error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise DirectoryLocked(f"{directory} is in use by process {pid}") from error
            raise
        os.ftruncate(self._fd, 0)
        with suppress(OSError):  # it is only told to others; a full disk is no reason not to start
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def owner_of(directory: Path) -> str | None:
    """The process that has the directory open, as far as it is known; None when none has."""
    try:
        fd = os.open(directory / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(fd)
    return None


def _as_store_error(directory: Path, error: OSError) -> StoreError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DirectoryReadOnly(f"{directory} cannot be written: {error.strerror}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"the disk that holds {directory} is full")
    return BadDirectory(f"cannot use {directory}: {error.strerror}")
