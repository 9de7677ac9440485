"""The files of bulk jobs that are put here: each comes in under a name of its own, and has that of the put when all of
it is on the disk. Nothing is written outside of ``staging/JOB``, and no link is followed.

A run may put files while its file ``RUN-open`` is there: from the plan of the job on, until the job is handed to the
broker or dropped. So what comes too late is refused, also by a process that was started anew.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from tickwheel.arrow.jobs import MANIFEST_SUFFIX, STAGING, Stored
from tickwheel.errors import BadJob, DiskFull, TickwheelError
from tickwheel_flight.bulk.incoming import Incoming, Watch
from tickwheel_flight.bulk.room import Room
from tickwheel_flight.bulk.staged_names import OPEN_SUFFIX, PART_SUFFIX, BadPut, Name, is_of_run
from timerlog.bulk.write import MANIFEST

MAX_MANIFEST_BYTES: Final = 64 << 20
MAX_CHUNK_BYTES: Final = 4 << 20
ASK_AGAIN_S: Final = 10.0
"""So often a put asks whether its writer may still write."""
_COPY_BYTES: Final = 1 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Chunks: TypeAlias = Iterator[Any]
"""Pieces of a file, as buffers, and at the end what it is as a whole: `Stored`."""


class StagingUnusable(TickwheelError):
    """The directory of jobs cannot be used from the process that was asked."""

    code = "staging"
    advice = "`tickwheel flight` must run as the broker's user, on its machine, with its data directory."


class _Named(msgspec.Struct):
    file: str
    bytes: int


class _Plan(msgspec.Struct):
    job: str


class _Manifest(msgspec.Struct):
    """What has to be known of a manifest here."""

    plan: _Plan
    segments: list[_Named]


class Staging:
    """Used by many threads at once."""

    def __init__(
        self,
        data: Path,
        max_bytes: int,
        *,
        watch: Watch | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``max_bytes``: of all files that are staged together."""
        self.path = data / STAGING
        self._room = Room(self.path, max_bytes)
        self._watch = Watch() if watch is None else watch
        self._now_s = now_s
        self._names = threading.Lock()
        """Which files count for a run is decided by one thread at a time."""

    def stop(self) -> None:
        """Puts end, and none begins."""
        self._watch.stop()

    def begin(self, job: str, run: str) -> None:
        """From now on files of this run may come. Raises `StagingUnusable`, DiskFull."""
        with _typed(), self._opened(job) as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with suppress(FileExistsError):
                os.close(os.open(run + OPEN_SUFFIX, flags, 0o640, dir_fd=folder))

    def put(self, name: Name, chunks: Chunks, judge: Callable[[], None]) -> Stored:
        """Stores a file. ``judge``: raises when its writer may not write any more. Raises `BadPut`, BadJob,
        `StagingFull`, DiskFull, `TooManyPuts`, StoodStill, `StagingUnusable`."""
        with _typed(), self._opened(name.job) as folder:
            self._check_open(folder, name)
            part = f"{name.file}.{secrets.token_hex(8)}{PART_SUFFIX}"
            with self._watch.incoming(folder, part, self._room) as incoming:
                found = self._receive(incoming, name, chunks, judge)
                incoming.sync()
                with self._names:
                    self._check_open(folder, name)
                    _give_name(folder, part, name.file, found)
        return found

    def _receive(self, incoming: Incoming, name: Name, chunks: Chunks, judge: Callable[[], None]) -> Stored:
        asked_s = self._now_s()
        count = checksum = 0
        for chunk in chunks:
            incoming.moved()
            if isinstance(chunk, Stored):
                if chunk != Stored(count, checksum):
                    raise BadPut(
                        f"{name.file} came as {count:,} bytes with the checksum {checksum}, and its end says "
                        f"{chunk.bytes:,} and {chunk.crc32}."
                    )
                return chunk
            if self._now_s() - asked_s >= ASK_AGAIN_S:
                asked_s = self._now_s()
                judge()
            if len(chunk) > MAX_CHUNK_BYTES:
                raise BadPut(f"A piece has {len(chunk):,} bytes, and may have {MAX_CHUNK_BYTES:,}.")
            count += len(chunk)
            if name.is_manifest and count > MAX_MANIFEST_BYTES:
                raise BadPut(
                    f"The manifest has more than {MAX_MANIFEST_BYTES:,} bytes.",
                    advice="Write fewer and larger files, or split the job.",
                )
            incoming.write(chunk)
            checksum = zlib.crc32(chunk, checksum)
        incoming.check()
        raise BadPut(f"{name.file} was cut: {count:,} bytes came, and not its end.")

    def complete(self, job: str, run: str) -> None:
        """Before the broker is asked to take a run in: its manifest becomes that of the job, and what it does not name
        goes. Again, or when the job is gone, it does nothing: the broker knows what became of it. Raises BadJob,
        `StagingUnusable`, DiskFull."""
        with _typed(), self._names, self._found(job) as folder:
            if folder is None:
                return
            found = _read_manifest(folder, run + MANIFEST_SUFFIX)
            if found is None:
                known = _read_manifest(folder, MANIFEST)
                if known is None or not _is_of_run(known, run):
                    raise BadJob("The manifest of the run was not put, or the run was dropped.")
            else:
                _check_files(folder, job, run, found)
                named = {run + OPEN_SUFFIX, run + MANIFEST_SUFFIX, *(one.file for one in found.segments)}
                for file in os.listdir(folder):
                    if is_of_run(file, run) and file not in named:
                        _remove(folder, file)
                os.rename(run + MANIFEST_SUFFIX, MANIFEST, src_dir_fd=folder, dst_dir_fd=folder)
            _remove(folder, run + OPEN_SUFFIX)
            os.fsync(folder)

    def drop(self, job: str, run: str) -> None:
        """Removes what a run has put. Raises `StagingUnusable`."""
        with _typed(), self._names, self._found(job) as folder:
            if folder is None:
                return
            _remove(folder, run + OPEN_SUFFIX)
            known = _read_manifest(folder, MANIFEST)
            if known is not None and _is_of_run(known, run):
                _remove(folder, MANIFEST)
            for file in os.listdir(folder):
                if is_of_run(file, run):
                    _remove(folder, file)
            if not os.listdir(folder):
                with suppress(OSError):  # another run begins
                    os.rmdir(self.path / job)

    @contextmanager
    def _opened(self, job: str) -> Iterator[int]:
        """The directory of a job, as a descriptor. Raises BadJob where there is none."""
        with self._found(job) as folder:
            if folder is None:
                raise BadJob(f"There is no job {job} here: it was not planned, or was taken in or dropped.")
            yield folder

    @contextmanager
    def _found(self, job: str) -> Iterator[int | None]:
        """The same; None where there is none."""
        staging = os.open(self.path, _DIRECTORY)
        try:
            folder = os.open(job, _DIRECTORY, dir_fd=staging)
        except FileNotFoundError:
            folder = None
        finally:
            os.close(staging)
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    def _check_open(self, folder: int, name: Name) -> None:
        if _regular(folder, name.run + OPEN_SUFFIX) is None:
            raise BadJob(f"The job {name.job} takes no files of this run: it was handed in or dropped.")


def _is_of_run(manifest: _Manifest, run: str) -> bool:
    return all(is_of_run(one.file, run) for one in manifest.segments)


def _give_name(folder: int, part: str, file: str, stored: Stored) -> None:
    try:
        os.link(part, file, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        # An answer that was lost: it is sent again.
        if _checksum(folder, file) != stored:
            raise BadPut(f"There is another file {file} already.") from None
    _remove(folder, part)
    os.fsync(folder)


def _check_files(folder: int, job: str, run: str, manifest: _Manifest) -> None:
    """Raises BadJob."""
    if manifest.plan.job != job:
        raise BadJob("The manifest is that of another job.")
    if _regular(folder, run + OPEN_SUFFIX) is None:
        raise BadJob("The run was dropped.")
    for one in manifest.segments:
        if not is_of_run(one.file, run) or "/" in one.file:
            raise BadJob(f"{one.file[:80]!r} is no file of this run.")
        if _regular(folder, one.file) != one.bytes:
            raise BadJob(
                f"{one.file[:80]!r} is not here with the {one.bytes:,} bytes that the manifest says."
            )


def _read_manifest(folder: int, file: str) -> _Manifest | None:
    """None: there is none. Raises BadJob."""
    size = _regular(folder, file)
    if size is None:
        return None
    if size > MAX_MANIFEST_BYTES:
        raise BadJob("The manifest is too large.")
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb") as opened:
        content = opened.read()
    try:
        return msgspec.json.decode(content, type=_Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadJob(f"The manifest cannot be read: {str(error)[:200]}.") from None


def _checksum(folder: int, file: str) -> Stored:
    if _regular(folder, file) is None:
        raise BadPut(f"{file} is no file.")
    count = checksum = 0
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb") as opened:
        while chunk := opened.read(_COPY_BYTES):
            count += len(chunk)
            checksum = zlib.crc32(chunk, checksum)
    return Stored(count, checksum)


def _regular(folder: int, file: str) -> int | None:
    """The size of a file; None for what is none."""
    try:
        found = os.stat(file, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _remove(folder: int, file: str) -> None:
    with suppress(FileNotFoundError, IsADirectoryError):
        os.unlink(file, dir_fd=folder)


@contextmanager
def _typed() -> Iterator[None]:
    """What the file system says, for who is at the other end."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TickwheelError):
            raise
        if error.errno in _FULL:
            raise DiskFull(
                "The broker's disk is full.", advice="Free space or extend the broker's disk."
            ) from None
        raise StagingUnusable(
            f"The directory of jobs cannot be used: {error.strerror or type(error).__name__}."
        ) from None
