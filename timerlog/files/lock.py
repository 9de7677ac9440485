"""One data directory has one owner at a time: a lock on the directory itself, and on a file with the owner's pid."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from timerlog.errors import (
    BadDirectory,
    DirectoryGone,
    DirectoryLocked,
    DirectoryReadOnly,
    DiskFull,
    StoreError,
    TooManyOpenFiles,
)

_HELD = (errno.EWOULDBLOCK, errno.EACCES)


class DirectoryLock:
    """Creates the directory where it is missing and locks it, and ``LOCK`` in it, until ``release``.

    The kernel drops the locks when the process ends, however it ends, so a stale file never locks a start out. Older
    versions know the file only; the directory stays locked when the file is deleted.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory.absolute()
        self._fd = self._directory_fd = -1
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):  # a network file system may lock files only
                _lock(self._directory_fd, directory)
            self._fd = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            _lock(self._fd, directory)
        except OSError as error:
            self.release()
            raise _as_store_error(directory, error) from error
        except BaseException:
            self.release()
            raise
        with suppress(OSError):  # it is only told to others; a full disk is no reason not to start
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def check(self) -> None:
        """Raises ``DirectoryGone`` when the path does not lead to the locked directory any more."""
        try:
            there, held = os.stat(self._path), os.fstat(self._directory_fd)
        except FileNotFoundError:
            raise DirectoryGone(f"{self._path} was deleted or renamed") from None
        except OSError:
            return  # this is not how to find out what is wrong with a disk
        if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            raise DirectoryGone(f"{self._path} was replaced by another directory")

    def release(self) -> None:
        for fd in (self._fd, self._directory_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._directory_fd = -1


def _lock(fd: int, directory: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise DirectoryLocked(f"{directory} is in use by process {_pid_in(directory)}") from error
        raise


def owner_of(directory: Path) -> str | None:
    """The process that has the directory open, as far as it is known; None when none has."""
    for path in (directory, directory / "LOCK"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                return _pid_in(directory)
        finally:
            os.close(fd)
    return None


def _pid_in(directory: Path) -> str:
    try:
        return (directory / "LOCK").read_text(errors="replace")[:32].strip() or "unknown"
    except OSError:
        return "unknown (its LOCK file was deleted)"


def _as_store_error(directory: Path, error: OSError) -> StoreError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return DirectoryReadOnly(f"{directory} cannot be written: {error.strerror}")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"the disk that holds {directory} is full")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return TooManyOpenFiles(f"{directory} cannot be opened: {error.strerror}")
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return BadDirectory(f"cannot use {directory}: it, or a part of its path, is a file and no directory")
    return BadDirectory(f"cannot use {directory}: {error.strerror}")
