"""Reading a log that others write, or wrote: where its records are whole, and what lies behind the first that is not.

A start, an inspection, a repair and a backup all look for the same things: the first record that is not whole, and a
MARK behind it, which says that the log was on the disk beyond it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tickwheel_native import Buffer, crc32c, lib, memory
from tickwheel_native import log as native_log
from tickwheel_native.arrays import uint8s
from timerlog.commitlog.addresses import LogAddresses
from timerlog.commitlog.segments import SegmentHeader, segment_header_of
from timerlog.errors import DamagedLog
from timerlog.files.disk import segment_name
from timerlog.layout import (
    MARK_BODY_BYTES,
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    TRANSACTION_ID_BYTES,
    RecordType,
)

END_OF_RANGE: Final = lib.TW_READ_END_OF_RANGE
ZEROS: Final = lib.TW_READ_ZEROS
BAD_LENGTH: Final = lib.TW_READ_BAD_LENGTH
BAD_CHECKSUM: Final = lib.TW_READ_BAD_CHECKSUM
END_RECORD: Final = lib.TW_READ_END_RECORD
#: By reason.
REASONS: Final = ("end of file", "nothing written", "bad length", "bad checksum", "end of segment")
_MARK_BYTES: Final = RECORD_HEAD_BYTES + MARK_BODY_BYTES
_PIECE_BYTES: Final = 1 << 20
_EMPTY_PIECE: Final = bytes(_PIECE_BYTES)


def padded(size_bytes: int) -> int:
    """What a record takes: the next one begins at a multiple of 8."""
    return (size_bytes + 7) // 8 * 8


def damaged_at(end: int, segment_bytes: int, reason: str) -> DamagedLog:
    """What to raise when the record at ``end`` is not whole, and once was."""
    base = end // segment_bytes * segment_bytes
    return DamagedLog(
        f"segment {segment_name(base)} is damaged at offset {end - base} (position {end}): {reason}"
    )


def whole_bytes(data: Buffer) -> int:
    """How many bytes of records these are, without an END that stands last; -1: there is something else."""
    stop, reason = native_log.verify(uint8s(data), 0, len(data), native_log.new_counts())
    ends_segment = reason == END_RECORD and stop + RECORD_HEAD_BYTES == len(data)
    return stop if stop == len(data) or ends_segment else -1


@dataclass(slots=True)
class LogReader:
    """Reads the segments of an existing log."""

    addresses: LogAddresses
    segment_bytes: int
    sizes: dict[int, int]  # base → size in bytes, of the segments with a whole header
    counts: Any = field(default_factory=native_log.new_counts)

    def verify(self, position: int) -> tuple[int, int]:
        """Returns (position of the first record that is not whole, reason) within the position's segment."""
        segment = position // self.segment_bytes * self.segment_bytes
        return native_log.verify(self.addresses.pointer, position, segment + self.sizes[segment], self.counts)

    def _bytes(self, start: int, end: int) -> bytes:
        """A copy: a broker may be writing there, and numpy does not bear that what it looks at changes."""
        return bytes(self.addresses.view(start, end - start))

    def record_counts(self) -> dict[int, int]:
        """How many records of each type were read."""
        return {number: int(count) for number, count in enumerate(self.counts) if count}

    def forget_counts(self) -> None:
        """Counts records from 0 again."""
        self.counts = native_log.new_counts()

    def garbage_behind(self, position: int) -> int:
        """How many bytes behind ``position`` in its segment reach to the last one that is not zero."""
        segment = position // self.segment_bytes * self.segment_bytes
        end = segment + self.sizes[segment]
        for start in reversed(range(position, end, _PIECE_BYTES)):
            piece = self._bytes(start, min(start + _PIECE_BYTES, end))
            # Most of it is empty, and comparing is much faster than looking at byte after byte.
            used = b"" if piece == _EMPTY_PIECE[: len(piece)] else piece.rstrip(b"\0")
            if used:
                return start + len(used) - position
        return 0

    def marked_behind(self, position: int) -> int:
        """The highest durable position that any whole MARK behind ``position`` names; 0 when there is none."""
        highest = 0
        for segment in sorted(self.sizes):
            start = max(segment + SEGMENT_HEADER_BYTES, position)
            end = segment + self.sizes[segment]
            highest = max(highest, *(durable for _, durable in self._marks(start, end)), 0)
        return highest

    def marks_behind(self, position: int, end: int) -> list[int]:
        """Where records begin behind ``position``: whole MARKs up to ``end``, and what they name."""
        return [at for mark in self._marks(position, end) for at in mark]

    def _marks(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(where it lies, what it names) of each whole MARK."""
        for at in range(-(-start // 8) * 8, end, _PIECE_BYTES):
            yield from self._marks_in_piece(at, min(at + _PIECE_BYTES + _MARK_BYTES, end))

    def _marks_in_piece(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        words = (end - start) // 8
        if words <= 0:
            return
        data = np.frombuffer(self._bytes(start, start + words * 8), np.uint32).reshape(-1, 2)
        # A MARK's second word is its length, its third word is its type.
        places = np.flatnonzero(data[: max(0, words - 3), 1] == _MARK_BYTES)
        for place in places[(data[places + 1, 0] & 0xFF) == RecordType.MARK]:
            record = data[place : place + _MARK_BYTES // 8].tobytes()
            if crc32c(record[4:]) == struct.unpack_from("<I", record)[0]:
                yield start + int(place) * 8, struct.unpack_from("<Q", record, RECORD_HEAD_BYTES)[0]


class MappedLog:
    """The segments at ``paths``, by the position of their first byte; their headers must be whole."""

    def __init__(self, paths: Mapping[int, Path]) -> None:
        """Raises ``DamagedLog``, ``UnsupportedFormat``."""
        if not paths:
            raise DamagedLog("there is no segment of the CommitLog")
        headers = {base: _header(path) for base, path in paths.items()}
        first = headers[min(headers)]
        for base, header in headers.items():
            if header != SegmentHeader(base, first.segment_bytes, first.log_id):
                raise DamagedLog(f"segment {segment_name(base)} belongs to another log")
        self.segment_bytes, self.log_id = first.segment_bytes, first.log_id
        self._paths: dict[int, Path] = {}
        self.addresses = LogAddresses(min(paths), max(paths) + self.segment_bytes)
        self.reader = LogReader(self.addresses, self.segment_bytes, {})
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
        """Takes another file for a segment, or a file for the segment that follows."""
        self.addresses.reach(self.bases[0], base + self.segment_bytes, self._map_all)
        self.addresses.unmap(base, self.segment_bytes)
        self._map(base, path)

    def drop(self, base: int) -> None:
        """Goes on without a segment."""
        self.addresses.unmap(base, self.segment_bytes)
        del self.reader.sizes[base], self._paths[base]

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
        self.reader.sizes[base] = self._map_into(self.addresses.pointer, base, path)
        self._paths[base] = path

    def _map_all(self, pointer: memory.Address) -> None:
        for base, path in self._paths.items():
            self.reader.sizes[base] = self._map_into(pointer, base, path)

    def _map_into(self, pointer: memory.Address, base: int, path: Path) -> int:
        """Returns how many bytes it has."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = min(os.fstat(fd).st_size, self.segment_bytes)
            result = memory.map_file(pointer, base, fd, 0, size_bytes, writable=False)
        finally:
            os.close(fd)
        if result:
            raise OSError(-result, f"cannot map {path.name}: {os.strerror(-result)}")
        return size_bytes

    # -- the log as a whole --

    def verify(self) -> tuple[int, dict[int, int]]:
        """Reads every record: (where the last whole one ends, how many there are of each type). Raises ``DamagedLog``
        for anything that is not whole before that."""
        self.check_bases()
        end = 0
        for base in self.bases:
            end, reason = self.reader.verify(base + SEGMENT_HEADER_BYTES)
            if base != self.bases[-1] and reason != END_RECORD:
                raise self.damaged_at(end, REASONS[reason])
        self.check_end(end, reason)
        return end, self.reader.record_counts()

    def check_bases(self) -> None:
        """Raises ``DamagedLog`` when a segment is missing at the start or between others."""
        bases = self.bases
        if bases != list(range(bases[0], bases[-1] + 1, self.segment_bytes)):
            raise DamagedLog("a segment is missing from the middle of the CommitLog")
        if bases[0] and self.first_type() != RecordType.BASE:
            raise DamagedLog(f"the start of the CommitLog, before {segment_name(bases[0])}, is missing")

    def check_end(self, end: int, reason: int) -> None:
        """Raises ``DamagedLog`` when something behind ``end`` says that the log was on the disk beyond it."""
        if (marked := self.reader.marked_behind(end)) > end:
            what = "" if reason == END_RECORD else f"{REASONS[reason]}; "
            raise self.damaged_at(end, f"{what}the log was on disk up to position {marked}")

    def damaged_at(self, end: int, reason: str) -> DamagedLog:
        """What to raise for damage behind the last whole record."""
        return damaged_at(end, self.segment_bytes, reason)

    @property
    def bases(self) -> list[int]:
        return sorted(self.reader.sizes)

    def bytes_at(self, position: int, count: int) -> bytes:
        return bytes(self.addresses.view(position, count))

    def first_type(self) -> int:
        """The type of the first record; 0 when there is none."""
        first = self.bases[0]
        if self.reader.sizes[first] < SEGMENT_HEADER_BYTES + RECORD_HEAD_BYTES:
            return 0
        return self.bytes_at(first + SEGMENT_HEADER_BYTES, RECORD_HEAD_BYTES)[8]

    def close(self) -> None:
        """No byte of it may be read afterwards."""
        self.addresses.release()


def _header(path: Path) -> SegmentHeader:
    header = segment_header_of(path)
    if header is None:
        raise DamagedLog(f"segment {path.name} has a damaged header")
    return header
