"""Online backups: a copy of the CommitLog, made beside a broker that serves, and verified record by record.

The log is append-only and everything else follows from it, so a copy of its files up to a point where a record ends is
a whole data directory. The broker takes no part: segments are opened before they are copied, and an open file stays
when a purge deletes its name. What lies in the log when the copy begins is in it, so everything that was acknowledged
before is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from tickwheel_native import crc32c
from timerlog.commitlog.reader import END_RECORD, REASONS, MappedLog
from timerlog.commitlog.segments import pack_segment_header, unpack_segment_header
from timerlog.errors import (
    BackupTargetInUse,
    BadBackup,
    BadDirectory,
    DamagedLog,
    UnsupportedFormat,
)
from timerlog.files.disk import (
    LOG_FOLDER,
    FileDisk,
    check_data_directory,
    full_disk_errors,
    segment_name,
    segment_path,
    sync_directory,
    write_durably,
)
from timerlog.files.replica_mark import refuse_replica
from timerlog.files.small_files import seal, unseal
from timerlog.layout import FORMAT_VERSION, SEGMENT_HEADER_BYTES, RecordType
from timerlog.recovery import checkpoint as checkpoints
from timerlog.recovery import timeline

NAME: Final = "backup.json"
BACKUP_FORMAT: Final = 1
#: How often segments may be purged while they are being opened.
_ATTEMPTS: Final = 10
_PIECE_BYTES: Final = 4 * 1024 * 1024
#: Written to the disk after so much, so that the broker's syncs never wait for a long queue.
_WRITE_BACK_BYTES: Final = 16 * 1024 * 1024


class BackupSegment(msgspec.Struct, frozen=True):
    file: str
    base: int
    size_bytes: int
    crc32c: int


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds. Everything before ``end_position`` of the log is in it."""

    log_format: int = FORMAT_VERSION
    log_id: str
    created_ms: int
    segment_bytes: int
    end_position: int
    records: int
    messages: int
    segments: list[BackupSegment]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


def pack_manifest(backup: Backup) -> bytes:
    return seal(BACKUP_FORMAT, backup)


def read_manifest(directory: Path) -> Backup:
    """Raises ``BadBackup`` when it is none or damaged, ``UnsupportedFormat`` for one of a newer version."""
    try:
        content = (directory / NAME).read_bytes()
    except OSError as error:
        raise BadBackup(f"{directory} is not a finished backup: it has no {NAME}") from error
    body = unseal(content, BACKUP_FORMAT, "the backup")
    if body is None:
        raise BadBackup(f"{directory / NAME} is damaged: its checksum is wrong")
    backup = msgspec.json.decode(body, type=Backup)
    if backup.log_format > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"the backup holds a log of format {backup.log_format}; this version reads up to {FORMAT_VERSION}"
        )
    return backup


def check_empty(target: Path, *sources: Path) -> None:
    """Raises ``BackupTargetInUse`` unless nothing lies at ``target``, and it is no part of any of ``sources``."""
    for source in sources:
        if target.resolve().is_relative_to(source.resolve()):
            raise BackupTargetInUse(f"{target} lies inside {source}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BackupTargetInUse(f"{target} is not empty")


def back_up(
    directory: Path, target: Path, created_ms: int, pause: Callable[[int], None] = lambda copied_bytes: None
) -> Backup:
    """Copies the log of ``directory`` to ``target``, which is made, while a broker may serve; then reads the copy back
    and verifies every record. ``pause`` is told how much was copied, and may wait.

    Raises ``NoDataDirectory``, ``BackupTargetInUse``, ``DamagedLog``, ``UnsupportedFormat``, ``DiskFull``; then
    nothing is left at ``target``.
    """
    check_data_directory(directory)
    check_empty(target, directory)
    had_target = target.exists()
    try:
        with full_disk_errors(target), ExitStack() as files:
            (target / LOG_FOLDER).mkdir(parents=True, mode=0o750)
            return _Copying(directory, target, pause, files).run(created_ms)
    except BaseException:
        shutil.rmtree(target / LOG_FOLDER if had_target else target, ignore_errors=True)
        raise


class _Copying:
    def __init__(self, directory: Path, target: Path, pause: Callable[[int], None], files: ExitStack) -> None:
        self._directory, self._target, self._pause, self._files = directory, target, pause, files
        self._held: dict[int, int] = {}  # base → descriptor
        self._unwritten_bytes = 0

    def run(self, created_ms: int) -> Backup:
        floor = self._durable_position()
        self._hold()
        if not self._held:
            raise BadDirectory(f"{self._directory} holds no log yet")
        for base in sorted(self._held):
            self._copy(base)
        log = MappedLog.of(self._target / LOG_FOLDER)
        try:
            end, counts = self._verify(log)
            return self._finish(log, end, counts, floor, created_ms)
        finally:
            log.close()

    def _verify(self, log: MappedLog) -> tuple[int, dict[int, int]]:
        """Reads every record of the copy, and follows a broker that goes on: see ``MappedLog.verify``.

        A copy takes its time. Behind a place that was not written yet when it was read, there may be what was written a
        moment later: that looks like damage. So such a place is read once more, and counts as damage if it is still not
        whole. It follows as far as there are segments now, and no further: a broker may write as fast as this reads.
        """
        log.check_bases()
        last = max(FileDisk(self._directory).segments())
        position, read_again = log.bases[0] + SEGMENT_HEADER_BYTES, -1
        while True:
            base = position // log.segment_bytes * log.segment_bytes
            end, reason = log.reader.verify(position)
            if reason == END_RECORD:
                base += log.segment_bytes
                if base not in log.reader.sizes and not self._take_later(log, last):
                    break
                position = base + SEGMENT_HEADER_BYTES
            elif end != read_again and (base != log.bases[-1] or log.reader.marked_behind(end) > end):
                self._copy(base, end - base)
                log.remap(base, self._path(base))
                position = read_again = end
            else:
                break
        log.check_end(end, reason)
        self._drop_behind(log, end, reason)
        counts = log.reader.record_counts()
        if reason == END_RECORD:  # it says that a segment follows: the copy is cut before it
            counts[RecordType.END] -= 1
        return end, counts

    def _drop_behind(self, log: MappedLog, end: int, reason: int) -> None:
        """Leaves out segments in which the broker was about to go on, and had not yet said so, as a start would."""
        later = [base for base in log.bases if base > end]
        if later and reason != END_RECORD and log.reader.garbage_behind(end):
            raise log.damaged_at(end, REASONS[reason])
        for base in later:
            log.drop(base)
            self._path(base).unlink()

    def _take_later(self, log: MappedLog, last: int) -> bool:
        """Copies the segments in which a broker has gone on meanwhile, if any, up to ``last``."""
        bases = self._hold_later(last)
        for base in bases:
            self._copy(base)
            log.remap(base, self._path(base))
        log.check_bases()
        return bool(bases)

    def _path(self, base: int) -> Path:
        return segment_path(self._target, base)

    def _durable_position(self) -> int:
        found = checkpoints.load(FileDisk(self._directory))
        return 0 if found is None else found.durable_position

    def _hold(self) -> None:
        """Opens every segment that there is: from then on a purge cannot take it away."""
        for _ in range(_ATTEMPTS):
            self._hold_later()
            steps = {later - base for base, later in pairwise(sorted(self._held))}
            if len(steps) <= 1:
                break
            self._held.clear()  # some were purged just now; the files are closed in the end
        else:
            raise DamagedLog("a segment is missing from the middle of the CommitLog")
        found = checkpoints.load(FileDisk(self._directory))
        if found is not None and found.segments and min(found.segments) < min(self._held, default=0):
            raise DamagedLog(f"segment {segment_name(min(found.segments))} is missing")

    def _hold_later(self, last: int | None = None) -> list[int]:
        """Opens the segments that are not held yet, up to ``last``; returns which."""
        bases = FileDisk(self._directory).segments()
        held = max(self._held, default=-1)
        later = [base for base in bases if base > held and (last is None or base <= last)]
        return [base for base in later if self._open(base, is_newest=base == bases[-1])]

    def _open(self, base: int, *, is_newest: bool) -> bool:
        path = segment_path(self._directory, base)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False  # purged since: what was needed of it stands in a later one
        self._files.callback(os.close, fd)
        if unpack_segment_header(os.pread(fd, SEGMENT_HEADER_BYTES, 0)) is not None:
            self._held[base] = fd
        elif not is_newest:  # that one may be about to be created
            raise DamagedLog(f"segment {path.name} has a damaged header")
        return base in self._held

    def _copy(self, base: int, at: int = 0) -> None:
        """Copies a segment from byte ``at`` on."""
        source = self._held[base]
        size_bytes = os.fstat(source).st_size
        with open(self._path(base), "r+b" if at else "xb", buffering=0) as copy:
            copy.seek(at)
            while at < size_bytes:
                piece = os.pread(source, min(_PIECE_BYTES, size_bytes - at), at)
                if not piece:
                    break
                copy.write(piece)
                at += len(piece)
                self._note_written(copy.fileno(), len(piece))
                self._pause(len(piece))
            os.fsync(copy.fileno())
            # What is read back comes from the disk then, and the broker keeps its part of the memory.
            os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _note_written(self, fd: int, size_bytes: int) -> None:
        self._unwritten_bytes += size_bytes
        if self._unwritten_bytes >= _WRITE_BACK_BYTES:
            os.fdatasync(fd)
            self._unwritten_bytes = 0

    def _finish(
        self, log: MappedLog, end: int, counts: dict[int, int], floor: int, created_ms: int
    ) -> Backup:
        """Cuts what was still being written, and says what the copy holds."""
        if end < floor:
            raise DamagedLog(
                f"the log is damaged at position {end}: it was on the disk up to position {floor}"
            )
        last = end // log.segment_bytes * log.segment_bytes
        assert last == log.bases[-1], "a copy ends in its last segment"
        os.truncate(self._path(last), end - last)
        segments = [
            BackupSegment(f"{LOG_FOLDER}/{segment_name(base)}", base, *_size_and_checksum(self._target, base))
            for base in log.bases
        ]
        backup = Backup(
            log_id=f"{log.log_id:016x}",
            created_ms=created_ms,
            segment_bytes=log.segment_bytes,
            end_position=end,
            records=sum(counts.values()),
            messages=counts.get(RecordType.MESSAGE, 0),
            segments=segments,
        )
        sync_directory(self._target / LOG_FOLDER)
        write_durably(self._target / NAME, pack_manifest(backup))
        sync_directory(self._target.resolve().parent)
        return backup


def _size_and_checksum(target: Path, base: int) -> tuple[int, int]:
    path = segment_path(target, base)
    with path.open("r+b") as file:
        os.fsync(file.fileno())
    return path.stat().st_size, file_checksum(path)


def file_checksum(path: Path) -> int:
    """The CRC-32C of a whole file."""
    seed = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            seed = crc32c(piece, seed)
    return seed


def check_backup(directory: Path) -> Backup:
    """Verifies a backup: its manifest, the checksum of every file, every record. Raises ``BadBackup``,
    ``UnsupportedFormat``."""
    backup = read_manifest(directory)
    for segment in backup.segments:
        path = directory / segment.file
        if segment.file != f"{LOG_FOLDER}/{segment_name(segment.base)}" or not path.is_file():
            raise BadBackup(f"{path} is missing")
        if path.stat().st_size != segment.size_bytes or file_checksum(path) != segment.crc32c:
            raise BadBackup(f"{path} is damaged: it is not what was backed up")
    named = {Path(segment.file).name for segment in backup.segments}
    if {path.name for path in (directory / LOG_FOLDER).iterdir()} != named:
        raise BadBackup(f"{directory / 'commitlog'} has files in it that are no part of the backup")
    log = MappedLog.of(directory / LOG_FOLDER)
    try:
        end, counts = log.verify()
    except DamagedLog as error:
        raise BadBackup(f"{directory}: {error}") from error
    finally:
        log.close()
    if (end, sum(counts.values())) != (backup.end_position, backup.records):
        raise BadBackup(f"{directory} does not end where its {NAME} says")
    return backup


def restore(source: Path, target: Path, log_id: int) -> Backup:
    """Makes a data directory at ``target`` out of a backup, after all of it was verified. ``log_id``: a new number,
    because what is sent from now on is another past than what the broker that was backed up has sent since. The next
    start gives out no id and no receipt that this one may have given out.

    Raises ``BadBackup``, ``UnsupportedFormat``, ``BackupTargetInUse``, ``ReplicaDirectory``, ``DiskFull``; then nothing
    is left there.
    """
    refuse_replica(target)
    check_empty(target, source)
    backup = check_backup(source)
    had_target = target.exists()
    try:
        with full_disk_errors(target):
            _restore(backup, source, target, log_id)
    except BaseException:
        shutil.rmtree(target / "restoring" if had_target else target, ignore_errors=True)
        (target / timeline.NAME).unlink(missing_ok=True)
        raise
    return backup


def _restore(backup: Backup, source: Path, target: Path, log_id: int) -> None:
    # Under another name until it is complete: a broker must not start on half a log.
    new = target / "restoring"
    new.mkdir(parents=True, mode=0o750)
    for segment in backup.segments:
        _copy_segment(source / segment.file, new / Path(segment.file).name, segment, backup, log_id)
    sync_directory(new)
    write_durably(target / timeline.NAME, timeline.pack_mark(backup.created_ms))
    new.rename(target / LOG_FOLDER)
    sync_directory(target)
    sync_directory(target.resolve().parent)


def _copy_segment(source: Path, copy: Path, segment: BackupSegment, backup: Backup, log_id: int) -> None:
    header = pack_segment_header(segment.base, backup.segment_bytes, log_id)
    seed = 0
    with source.open("rb") as old, copy.open("xb") as file:
        os.fchmod(file.fileno(), 0o640)
        while piece := old.read(_PIECE_BYTES):
            seed = crc32c(piece, seed)
            file.write(piece)
        file.flush()
        os.pwrite(file.fileno(), header, 0)
        os.fsync(file.fileno())
    if seed != segment.crc32c:
        raise BadBackup(f"{source} has changed while it was read")
