"""The files of a job of bulk scheduling, from the side that takes them in."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tickwheel_native import crc32c, memory
from timerlog.bulk.write import MANIFEST, MANIFEST_FORMAT, Manifest
from timerlog.commitlog.segments import pack_segment_header, unpack_segment_header
from timerlog.errors import DECODE_ERRORS, BadJob, UnsupportedFormat
from timerlog.layout import RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES, TRANSACTION_ID_BYTES, RecordType

#: Each takes some of the process's mappings, of which Linux allows 65,530, and is an open file from then on.
MAX_SEGMENTS: Final = 4_096
_OTHER_FILES: Final = 256
_LEAST_BYTES: Final = SEGMENT_HEADER_BYTES + RECORD_HEAD_BYTES
_KEY_BYTES_AT: Final = 40
_KEY_AT: Final = 48


class JobFiles:
    """Reads the manifest when it is made. Raises ``BadJob``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manifest = _read_manifest(directory)
        self.segments = self.manifest.segments
        self.segment_bytes = self.manifest.plan.segment_bytes
        self.base: Any = memory.NULL
        self._mapped_bytes = 0

    @property
    def job_id(self) -> bytes:
        """16 bytes. Raises ``BadJob``."""
        try:
            job_id = bytes.fromhex(self.manifest.plan.job)
        except ValueError:
            job_id = b""
        if len(job_id) != TRANSACTION_ID_BYTES:
            raise BadJob("the job's number is not 32 hexadecimal digits")
        return job_id

    @property
    def id_range(self) -> tuple[int, int]:
        """All message numbers of the job lie from the first to below the second."""
        return (
            min(segment.first_id for segment in self.segments),
            max(segment.end_id for segment in self.segments),
        )

    @property
    def paths(self) -> list[Path]:
        return [self.directory / segment.file for segment in self.segments]

    def check_number(self, segments: int) -> None:
        """Whether so many files can be taken in beside so many ``segments`` of the log. Raises ``BadJob``."""
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = min(MAX_SEGMENTS, open_files - _OTHER_FILES - segments)
        if len(self.segments) > limit:
            raise BadJob(
                f"the job has {len(self.segments):,} files, and {max(0, limit):,} can be taken in at once; "
                "write fewer and larger ones"
            )

    def check_names(self) -> None:
        """Raises ``BadJob``: names of files that are not in the job's directory, numbers that overlap."""
        end = 1
        for first_id, count in sorted((segment.first_id, segment.messages) for segment in self.segments):
            if first_id < end or count <= 0:
                raise BadJob("the job's message numbers overlap")
            end = first_id + count
        for segment in self.segments:
            if "/" in segment.file or not segment.file.endswith(".log"):
                raise BadJob(f"{segment.file!r} is no name of a segment")

    def map(self) -> None:
        """Segment n is at ``base + n * segment_bytes`` then. Raises ``BadJob``, ``OSError``."""
        assert not self.is_mapped, "a job's files are mapped once"
        self._mapped_bytes = self.segment_bytes * len(self.segments)
        self.base = memory.reserve(self._mapped_bytes)
        if self.base == memory.NULL:
            self._mapped_bytes = 0
            raise BadJob("there is no address space for a job of this size")
        for number, path in enumerate(self.paths):
            with self._opened(number) as fd:
                self._check_file(number, fd)
                if memory.map_file(
                    self.base, number * self.segment_bytes, fd, 0, self.segment_bytes, writable=False
                ):
                    raise BadJob(f"{path.name} cannot be mapped")

    @contextmanager
    def _opened(self, number: int) -> Iterator[int]:
        """A file for as long as it is needed: open files are few, and clients need them too."""
        fd = os.open(self.paths[number], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            yield fd
        finally:
            os.close(fd)

    @property
    def is_mapped(self) -> bool:
        return self._mapped_bytes > 0

    def _check_file(self, number: int, fd: int) -> None:
        segment = self.segments[number]
        size = os.fstat(fd).st_size
        if size != segment.bytes or not _LEAST_BYTES <= size <= self.segment_bytes:
            raise BadJob(f"{segment.file} has not the {segment.bytes} bytes that the job says")
        header = unpack_segment_header(os.pread(fd, SEGMENT_HEADER_BYTES, 0))
        wanted = (self.segment_bytes, self.manifest.plan.log_id)
        if header is None or (header.segment_bytes, header.log_id) != wanted:
            raise BadJob(f"{segment.file} does not belong to this job")
        last = os.pread(fd, RECORD_HEAD_BYTES, size - RECORD_HEAD_BYTES)
        if last[8] != RecordType.END or crc32c(last[4:]) != int.from_bytes(last[:4], "little"):
            raise BadJob(f"{segment.file} does not end where it should")

    def key_at(self, place: int) -> bytes:
        """The key of the message at ``base + place``."""
        assert 0 <= place < self._mapped_bytes, "what is not in the log yet lies in the job's files"
        number, offset = divmod(place, self.segment_bytes)
        with self._opened(number) as fd:
            count = int.from_bytes(os.pread(fd, 2, offset + _KEY_BYTES_AT), "little")
            return os.pread(fd, count, offset + _KEY_AT)

    def fill(
        self, places: npt.NDArray[np.uint64], record_bytes: npt.NDArray[np.uint32]
    ) -> list[tuple[int, int]]:
        """What the records at ``base + place`` say means nothing any more. Returns the places and the checksums that
        the records have now."""
        assert (places < np.uint64(self._mapped_bytes)).all(), "nothing that is a part of the log is filled"
        found = []
        numbers, offsets = np.divmod(places.astype(np.int64), self.segment_bytes)
        assert (offsets >= SEGMENT_HEADER_BYTES).all(), "records lie behind the header"
        assert (offsets + record_bytes <= self.segment_bytes).all(), "records end in their segment"
        for number in np.unique(numbers).tolist():
            here = numbers == number
            with self._opened(number) as fd:
                for offset, size in zip(offsets[here].tolist(), record_bytes[here].tolist(), strict=True):
                    record = bytearray(os.pread(fd, size, offset))
                    record[8] = RecordType.FILL
                    checksum = crc32c(bytes(record[4:]))
                    record[:4] = checksum.to_bytes(4, "little")
                    os.pwrite(fd, record, offset)
                    found.append((number * self.segment_bytes + offset, checksum))
        assert len(found) == len(places), "each of them is filled"
        return found

    def settle(self, bases: Sequence[int]) -> None:
        """The headers say where the segments will lie, and all of them is on the disk."""
        assert len(bases) == len(self.segments), "each file has its place in the log"
        assert bases[0] % self.segment_bytes == 0, "a segment begins at a multiple of its size"
        for number, base in enumerate(bases):
            with self._opened(number) as fd:
                os.pwrite(fd, pack_segment_header(base, self.segment_bytes, self.manifest.plan.log_id), 0)
                os.fdatasync(fd)

    def close(self) -> None:
        if self._mapped_bytes:
            memory.release(self.base, self._mapped_bytes)
            self._mapped_bytes = 0


def clear_away(directory: Path) -> None:
    """Removes what is left of a job: the log has its files under names of its own. Tasks whose work did not count may
    have left more. Raises ``OSError``."""
    if directory.exists():
        shutil.rmtree(directory)


class _Format(msgspec.Struct):
    format: int = 1


def _read_manifest(directory: Path) -> Manifest:
    try:
        content = (directory / MANIFEST).read_bytes()
        if (found := msgspec.json.decode(content, type=_Format).format) > MANIFEST_FORMAT:
            raise UnsupportedFormat(f"the job has format {found}; this version reads up to {MANIFEST_FORMAT}")
        return msgspec.json.decode(content, type=Manifest)
    except FileNotFoundError:
        reason = "the job is not complete, or was taken in and cleared away"
        raise BadJob(f"there is no {MANIFEST}: {reason}") from None
    except DECODE_ERRORS as error:
        raise BadJob(f"{MANIFEST} cannot be read: {error}") from error
