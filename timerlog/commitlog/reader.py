"""Segment files of a folder, mapped together so that every record of them can be verified; nothing is written."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tickwheel_native import crc32c, ffi, lib
from timerlog.commitlog.log import ADDRESS_SPACE_BYTES, reserve_log_address_space, unpack_segment_header
from timerlog.errors import DamagedLog, DiskFull
from timerlog.layout import RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES, TRANSACTION_ID_BYTES, RecordType
from timerlog.recovery.opening import LogReader


def padded(size_bytes: int) -> int:
    """What a record takes: the next one begins at a multiple of 8."""
    return (size_bytes + 7) // 8 * 8


class MappedLog:
    """The segments at ``paths``, by the position of their first byte; their headers must be whole."""

    def __init__(self, paths: Mapping[int, Path]) -> None:
        """Raises ``DamagedLog``, ``UnsupportedFormat``."""
        if not paths:
            raise DamagedLog("there is no segment of the CommitLog")
        headers = {base: _header(path) for base, path in paths.items()}
        first = headers[min(headers)]
        for base, header in headers.items():
            if (header.base, header.segment_bytes, header.log_id) != (
                base,
                first.segment_bytes,
                first.log_id,
            ):
                raise DamagedLog(f"segment {base:020d}.log belongs to another log")
        self.segment_bytes, self.log_id = first.segment_bytes, first.log_id
        self.base = reserve_log_address_space()
        self.reader = LogReader(self.base, self.segment_bytes, {})
        try:
            for base, path in sorted(paths.items()):
                self._map(base, path)
        except OSError:
            self.close()
            raise

    @classmethod
    def of(cls, folder: Path) -> MappedLog:
        """All segments in a folder."""
        return cls({int(path.stem): path for path in folder.glob("*.log") if path.stem.isdigit()})

    def remap(self, base: int, path: Path) -> None:
        """Takes another file for a segment."""
        lib.tw_unmap_to_reserved(self.base, base, self.segment_bytes)
        self._map(base, path)

    def drop(self, base: int) -> None:
        """Goes on without a segment."""
        lib.tw_unmap_to_reserved(self.base, base, self.segment_bytes)
        del self.reader.sizes[base]

    def is_record(self, position: int) -> bool:
        """Whether a whole record begins there."""
        base = position // self.segment_bytes * self.segment_bytes
        room = base + self.reader.sizes[base] - position
        if position % 8 or room < RECORD_HEAD_BYTES:
            return False
        checksum, size_bytes = struct.unpack("<II", self.bytes_at(position, 8))
        if size_bytes < RECORD_HEAD_BYTES or padded(size_bytes) > room:
            return False
        return crc32c(self.bytes_at(position + 4, size_bytes - 4)) == int(checksum)

    def message_behind(self, position: int) -> int:
        """The number of the first message that was sent behind ``position``; 0 when none is found."""
        base = position // self.segment_bytes * self.segment_bytes
        while base in self.reader.sizes:
            while self.is_record(position):
                kind = self.bytes_at(position, RECORD_HEAD_BYTES)[8]
                if kind == RecordType.END:
                    break
                if kind == RecordType.MESSAGE:
                    return int.from_bytes(self.bytes_at(position + RECORD_HEAD_BYTES, 8), "little")
                if kind == RecordType.TRANSACTION:
                    position += RECORD_HEAD_BYTES + TRANSACTION_ID_BYTES  # the records inside
                else:
                    position += padded(int.from_bytes(self.bytes_at(position + 4, 4), "little"))
            base += self.segment_bytes
            position = base + SEGMENT_HEADER_BYTES
        return 0

    def _map(self, base: int, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = min(os.fstat(fd).st_size, self.segment_bytes)
            result = lib.tw_map_file(self.base, base, fd, 0, size_bytes, 0)
        finally:
            os.close(fd)
        if result:
            raise OSError(-result, f"cannot map {path.name}: {os.strerror(-result)}")
        self.reader.sizes[base] = size_bytes

    @property
    def bases(self) -> list[int]:
        return sorted(self.reader.sizes)

    def bytes_at(self, position: int, count: int) -> bytes:
        return bytes(ffi.buffer(ffi.cast("char *", self.base) + position, count))

    def first_type(self) -> int:
        """The type of the first record; 0 when there is none."""
        first = self.bases[0]
        if self.reader.sizes[first] < SEGMENT_HEADER_BYTES + RECORD_HEAD_BYTES:
            return 0
        return self.bytes_at(first + SEGMENT_HEADER_BYTES, RECORD_HEAD_BYTES)[8]

    def close(self) -> None:
        """No byte of it may be read afterwards."""
        lib.tw_release(self.base, ADDRESS_SPACE_BYTES)


def _header(path: Path) -> Any:
    with path.open("rb") as file:
        header = unpack_segment_header(file.read(SEGMENT_HEADER_BYTES))
    if header is None:
        raise DamagedLog(f"segment {path.name} has a damaged header")
    return header


@contextmanager
def full_disk_errors(target: Path) -> Iterator[None]:
    """Says in our own terms that there is no room at ``target``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"the disk that holds {target} is full") from error
        raise


def sync_directory(directory: Path) -> None:
    """What was created or renamed in it is on the disk afterwards."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
