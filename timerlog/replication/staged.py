"""The files of a bulk job, as they come from the log's owner: they are kept apart until a LINK makes them segments.

Nothing of them outlives a FENCE, nor this process: what a replica reads again after its start begins before them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from typing import Final

from timerlog.commitlog.durability import Link
from timerlog.commitlog.segments import pack_segment_header
from timerlog.errors import DamagedSharedLog, DiskFull
from timerlog.files.disk import Disk, SegmentFile
from timerlog.layout import RECORD_HEAD_BYTES, RecordType
from timerlog.replication.places import Linked
from timerlog.replication.record import Head, Staging, unpack_staging
from timerlog.replication.rule import Said, Taken

_TYPE_AT: Final = 8
_SIZE_AT: Final = 4
_FILLS_A_STEP: Final = 1_000
_FILL: Final = bytes([RecordType.FILL])


class Staged:
    """The files of one job at a time."""

    def __init__(self, disk: Disk, segment_bytes: int, log_id: int) -> None:
        self._disk, self._segment_bytes, self._log_id = disk, segment_bytes, log_id
        self._job = b""
        #: Of each file, in bytes; the last is still being written.
        self._sizes: list[int] = []
        self._open: SegmentFile | None = None
        #: Why the files of this job are not kept: its LINK is refused for that.
        self._full: DiskFull | None = None
        disk.drop_staged()

    @property
    def is_empty(self) -> bool:
        return not self._job

    def take(self, staging: Staging) -> None:
        """The next bytes. Bytes of a job whose first bytes were not read here are passed over: a reader that begins
        there comes to a FENCE, and to no LINK. Raises ``DamagedSharedLog``, ``LogFailed``."""
        if staging.is_end or staging.is_start or staging.job != self._job:
            self.discard()
        if staging.is_start:
            self._job = staging.job
        if staging.job != self._job or self._full is not None:
            return
        try:
            self._write(staging)
        except DiskFull as error:
            self._drop()
            self._full = error

    def _write(self, staging: Staging) -> None:
        number, offset = divmod(staging.position, self._segment_bytes)
        end = offset + len(staging.data)
        if number == len(self._sizes) and offset == 0:
            self._close()
            self._open = self._disk.open_staged(number)
            self._sizes.append(0)
        if number != len(self._sizes) - 1 or offset != self._sizes[number] or end > self._segment_bytes:
            raise DamagedSharedLog(
                f"bytes of file {number} of job {staging.job.hex()} from {offset} on do not follow those before them"
            )
        assert self._open is not None, "the last file is open"
        self._open.allocate(end)
        self._open.write(offset, staging.data)
        self._sizes[number] = end

    def link(self, link: Link) -> Generator[None, None, list[int]]:
        """Makes the files segments, some milliseconds at a time; returns where these begin. Raises
        ``DamagedSharedLog``, and ``DiskFull`` where there was no room for the files."""
        if self._full is not None and link.job == self._job:
            raise self._full
        if (link.job, link.sizes) != (self._job, tuple(self._sizes)):
            raise DamagedSharedLog(
                f"job {link.job.hex()} is to become segments, and not all bytes of its files came before"
            )
        self._close()
        first = link.position // self._segment_bytes - len(self._sizes)
        bases = [(first + number) * self._segment_bytes for number in range(len(self._sizes))]
        fills = sorted(link.fills)
        for number, base in enumerate(bases):
            start = number * self._segment_bytes
            low, high = (bisect_left(fills, (at,)) for at in (start, start + self._segment_bytes))
            yield from self._finish(number, base, [(at - start, crc) for at, crc in fills[low:high]])
            self._disk.link_staged(number, base)
        self._job, self._sizes = b"", []
        return bases

    def _finish(self, number: int, base: int, fills: Sequence[tuple[int, int]]) -> Iterator[None]:
        file = self._disk.open_staged(number)
        try:
            file.write(0, pack_segment_header(base, self._segment_bytes, self._log_id))
            for count, (offset, checksum) in enumerate(fills, 1):
                file.write(offset + _TYPE_AT, _FILL)
                file.write(offset, checksum.to_bytes(4, "little"))
                if count % _FILLS_A_STEP == 0:
                    yield
            yield
        finally:
            file.close()

    def discard(self) -> None:
        """Nothing comes of the job."""
        if self._job:
            self._drop()
        self._job, self._full = b"", None
        assert not self._sizes, "nothing is left of a job that is gone"
        assert self._open is None, "a file of a job that is gone is closed"

    def _drop(self) -> None:
        self._close()
        self._disk.drop_staged()
        self._sizes = []

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class StagedRecord:
    """One record of a job that is a part of the log, from the replicated log, whose reader comes to all of the job."""

    def __init__(self, linked: Linked, position: int) -> None:
        """``position``: of the record in the log."""
        assert linked.first <= position < linked.end, "a record of a job lies in its segments"
        self._linked, self._place = linked, position - linked.first
        self._found = bytearray()

    def read(self, head: Head, body: bytes | memoryview, taken: Taken) -> bytes | None:
        """The next record of the replicated log, and what the rule says of it. The whole record of the job, once it is
        known that it counts."""
        if taken.said is Said.FENCED:
            self._found.clear()
        elif taken.said is Said.STAGED:
            self._read_staged(unpack_staging(head.position, body))
        for link in taken.links:
            if link.job == self._linked.job:
                return self._as_linked(link)
        return None

    def _read_staged(self, staging: Staging) -> None:
        if staging.job != self._linked.job:
            return
        if staging.is_start or staging.is_end:
            self._found.clear()  # it came to nothing before, and its files may be others now
        while self._wanted_bytes:
            offset = self._place + len(self._found) - staging.position
            if not 0 <= offset < len(staging.data):
                return
            self._found += staging.data[offset : offset + self._wanted_bytes]

    @property
    def _wanted_bytes(self) -> int:
        """How many bytes are missing, as far as is known."""
        have = len(self._found)
        if have < RECORD_HEAD_BYTES:
            return RECORD_HEAD_BYTES - have
        return max(0, int.from_bytes(self._found[_SIZE_AT : _SIZE_AT + 4], "little") - have)

    def _as_linked(self, link: Link) -> bytes:
        for place, checksum in link.fills:
            if place == self._place:
                self._found[_TYPE_AT : _TYPE_AT + 1] = _FILL
                self._found[:4] = checksum.to_bytes(4, "little")
        return bytes(self._found)
