"""The disk seam: everything the CommitLog and the checkpoint ask of a disk.

``FileDisk`` is the real one. The simulator has another that forgets what was not synced, tears writes and fails.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from tickwheel_native import Buffer, memory
from timerlog.errors import DiskFull, LogFailed, LogFull, NoDataDirectory, TooManyOpenFiles

#: Of a data directory.
LOG_FOLDER: Final = "commitlog"
#: Of a replica: the files of a bulk job that its owner is taking in.
STAGED_FOLDER: Final = "staged"
_ASIDE: Final = f"{STAGED_FOLDER}."


class SegmentFile(Protocol):
    """One open CommitLog segment. Offsets are from its start."""

    size_bytes: int

    def allocate(self, end: int) -> None:
        """Makes the file ``end`` bytes long with disk blocks behind all of it. Raises ``DiskFull``."""

    def write(self, offset: int, data: Buffer) -> None:
        """Hands data to the operating system; it is durable after the next ``sync``. Raises ``LogFailed``."""

    def sync(self) -> None:
        """Returns when everything written is on the disk. Raises ``OSError``; safe in another thread."""

    def fileno(self) -> int:
        """What a thread that is not Python's may sync."""

    def cut(self, end: int) -> None:
        """Forgets everything from ``end`` on, durably; the file keeps no stale bytes there."""

    def map_into(self, base: Any, offset: int, span_bytes: int) -> None:
        """Maps the file, now and as it grows to ``span_bytes``, read-only at ``base + offset``."""

    def is_deleted(self) -> bool:
        """Whether the file has no name any more."""

    def close(self) -> None: ...


class Disk(Protocol):
    def segments(self) -> list[int]:
        """The base positions of the segments that exist, ascending."""

    def open_segment(self, base: int, *, create: bool) -> SegmentFile: ...

    def remove_segment(self, base: int) -> None: ...

    def adopt_segment(self, base: int, source: Path) -> None:
        """Gives a file, which stays where it is, a second name as a segment. Raises ``OSError``."""

    def open_staged(self, number: int) -> SegmentFile:
        """A file that may become a segment; it is made if there is none. Raises ``DiskFull``."""

    def link_staged(self, number: int, base: int) -> None:
        """Makes such a file the segment that begins at a position."""

    def drop_staged(self) -> None:
        """Sets all such files aside, at once."""

    def sweep_staged(self) -> bool:
        """Deletes one of those that were set aside; whether there was one."""

    def sync_directory(self) -> None: ...

    def read(self, name: str) -> bytes | None: ...

    def replace(self, name: str, data: bytes, *, durable: bool) -> None:
        """Replaces a small file as a whole: a reader sees the old one or the new one. Durable: the new file is synced
        before it gets the name, and its directory after that (T. Pillai et al., "All File Systems Are Not Created
        Equal", OSDI 2014)."""

    def prepare(self, name: str, size_bytes: int) -> None:
        """Makes room for ``replace``. Raises ``DiskFull``."""

    def remove(self, name: str) -> None:
        """Deletes a small file, durably."""

    def held_bytes(self, name: str) -> int:
        """The size of a file of blocks that hold nothing."""

    def resize_held(self, name: str, size_bytes: int) -> None:
        """Makes such a file larger or smaller. Raises ``DiskFull``: then it is as it was."""


#: Of a write into what was allocated: there is no room all the same (btrfs, ZFS, thin volumes), or not any more.
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def has_no_room(error: OSError) -> bool:
    """Whether a write failed because the disk takes nothing more, and not because it is broken."""
    return error.errno in _NO_ROOM


def _raise_allocation(error: int, what: object) -> None:
    if -error in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise DiskFull(f"the disk is full (growing {what})")
    failed = LogFull if -error in _NO_ROOM else LogFailed
    raise failed(f"cannot grow {what}: {os.strerror(-error)}")


def open_file(path: Path, flags: int, mode: int = 0o640) -> int:
    """A descriptor, closed on exec. Raises ``TooManyOpenFiles``, ``OSError``."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise TooManyOpenFiles(f"{path.name} cannot be opened: {error.strerror}") from error
        raise


def segment_name(base: int) -> str:
    """The file name of the segment that begins at a position, so that names sort as positions do."""
    return f"{base:020d}.log"


def segment_bases(folder: Path) -> list[int]:
    """Where the segments in a folder begin, in order."""
    return sorted(int(path.stem) for path in folder.glob("*.log") if path.stem.isdigit())


def segment_path(directory: Path, base: int) -> Path:
    """Where a segment of a data directory is."""
    return directory / LOG_FOLDER / segment_name(base)


def check_data_directory(directory: Path) -> None:
    """Raises ``NoDataDirectory``."""
    if not (directory / LOG_FOLDER).is_dir():
        raise NoDataDirectory(f"{directory} is not a data directory: it has no {LOG_FOLDER}/")


def sync_directory(directory: Path) -> None:
    """What was created or renamed in it is on the disk afterwards."""
    fd = open_file(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """Makes a file that is there as a whole or not at all; it, and its name, are on the disk afterwards."""
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


@contextmanager
def full_disk_errors(target: Path) -> Iterator[None]:
    """Says in our own terms that there is no room at ``target``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"the disk that holds {target} is full") from error
        raise


class FileSegment:
    def __init__(self, path: Path, create: bool, *, read_only: bool = False) -> None:
        flags = os.O_RDONLY if read_only else os.O_RDWR | (os.O_CREAT if create else 0)
        try:
            self._fd = open_file(path, flags)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"the disk is full (creating {path.name})") from error
            raise
        self._path = path
        self.size_bytes = os.fstat(self._fd).st_size

    def allocate(self, end: int) -> None:
        if end <= self.size_bytes:
            return
        result = memory.allocate(self._fd, self.size_bytes, end - self.size_bytes)
        if result:
            _raise_allocation(result, self._path.name)
        self.size_bytes = end

    def write(self, offset: int, data: Buffer) -> None:
        assert offset >= 0, "nothing lies before the start of a file"
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._fd, view, offset)
                view, offset = view[written:], offset + written
        except OSError as error:
            failed = LogFull if has_no_room(error) else LogFailed
            raise failed(f"writing {self._path.name} failed: {error.strerror}") from error

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def fileno(self) -> int:
        return self._fd

    def cut(self, end: int) -> None:
        assert 0 <= end <= self.size_bytes, "what is cut off is in the file"
        size = self.size_bytes
        os.ftruncate(self._fd, end)
        self.size_bytes = end
        self.allocate(size)
        os.fsync(self._fd)

    def truncate(self, end: int) -> None:
        assert 0 <= end <= self.size_bytes, "a file that is made smaller gets no holes"
        os.ftruncate(self._fd, end)
        self.size_bytes = end

    def map_into(self, base: Any, offset: int, span_bytes: int) -> None:
        result = memory.map_file(base, offset, self._fd, 0, span_bytes, writable=False)
        if result:
            raise OSError(-result, f"cannot map {self._path.name}: {os.strerror(-result)}")

    def is_deleted(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FileDisk:
    """Segments are files ``<base, 20 digits>.log`` in ``directory/commitlog``."""

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        """``read_only``: of a directory that is looked at, and may be one that cannot be written."""
        self.directory, self._read_only = directory, read_only
        self._log_directory, self._staged = directory / LOG_FOLDER, directory / STAGED_FOLDER
        if not read_only:
            self._log_directory.mkdir(mode=0o750, exist_ok=True)

    def _path(self, base: int) -> Path:
        return self._log_directory / segment_name(base)

    def segments(self) -> list[int]:
        return segment_bases(self._log_directory)

    def open_segment(self, base: int, *, create: bool) -> SegmentFile:
        assert not (create and self._read_only), "a log that is only looked at does not grow"
        return FileSegment(self._path(base), create, read_only=self._read_only)

    def remove_segment(self, base: int) -> None:
        assert not self._read_only, "a log that is only looked at keeps its segments"
        self._path(base).unlink()

    def adopt_segment(self, base: int, source: Path) -> None:
        os.link(source, self._path(base))

    def open_staged(self, number: int) -> SegmentFile:
        self._staged.mkdir(mode=0o750, exist_ok=True)
        return FileSegment(self._staged / segment_name(number), create=True)

    def link_staged(self, number: int, base: int) -> None:
        assert not self._path(base).exists(), "a file of a job takes the place of no segment"
        (self._staged / segment_name(number)).rename(self._path(base))

    def drop_staged(self) -> None:
        if self._staged.is_dir():
            numbers = itertools.count()
            aside = (self.directory / f"{_ASIDE}{number}" for number in numbers)
            self._staged.rename(next(path for path in aside if not path.exists()))

    def sweep_staged(self) -> bool:
        for folder in self.directory.glob(f"{_ASIDE}*"):
            for path in folder.iterdir():
                path.unlink()
                return True
            folder.rmdir()
            return True
        return False

    def sync_directory(self) -> None:
        for path in (self._log_directory, self.directory):
            sync_directory(path)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, data: bytes, *, durable: bool) -> None:
        temporary = self._new(name)
        try:
            # Not cut before it is written: there may be room in it already.
            with open(open_file(temporary, os.O_RDWR | os.O_CREAT), "wb") as file:
                file.write(data)
                file.truncate()
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, self.directory / name)
            if durable:
                self.sync_directory()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                temporary.unlink(missing_ok=True)  # half a file would only take space
                raise DiskFull(f"the disk is full (writing {name})") from error
            raise

    def _new(self, name: str) -> Path:
        return self.directory / f"{name}.new"

    def prepare(self, name: str, size_bytes: int) -> None:
        file = FileSegment(self._new(name), create=True)
        try:
            file.allocate(size_bytes)
        finally:
            file.close()

    def remove(self, name: str) -> None:
        (self.directory / name).unlink(missing_ok=True)
        self.sync_directory()

    def held_bytes(self, name: str) -> int:
        try:
            return (self.directory / name).stat().st_size
        except FileNotFoundError:
            return 0

    def resize_held(self, name: str, size_bytes: int) -> None:
        file = FileSegment(self.directory / name, create=True)
        before_bytes = file.size_bytes
        try:
            if size_bytes > before_bytes:
                file.allocate(size_bytes)
            else:
                file.truncate(size_bytes)
        except DiskFull:
            file.truncate(before_bytes)  # it may have got a part of it
            raise
        finally:
            file.close()
