"""Repair of a damaged data directory: offline, only when asked, and with every damaged byte kept.

A CommitLog record stands for itself: it says what came to be, in absolute terms, and has a checksum. So what lies
behind damage is still true, and a log whose damaged part is passed over is a log in which some messages were never
sent, some acks never given, some cancels never made. That is what a repair leaves behind:

* a record that fails its checksum becomes a FILL record, which means nothing. If its length can be trusted (a whole
  record begins where it ends), it alone is lost; otherwise everything up to the next place that a MARK names, because
  a MARK names the beginnings of records, and what only looks like one, inside a body, is none;
* numbers of messages that may be lost are reserved (RESERVED), so that records which name them mean nothing;
* a segment that is missing in the middle becomes one FILL record;
* a record that contradicts those before it, because they are lost, becomes FILL as well;
* everything derived is deleted, and the next start makes it again.

The result is replayed in memory before anything is changed. What is replaced is moved to a directory beside it.
"""

from __future__ import annotations

import os
import shutil
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tickwheel_native import crc32c, rebuild
from timerlog.commitlog.reader import END_RECORD, REASONS, MappedLog, padded
from timerlog.commitlog.segments import (
    SegmentHeader,
    pack_segment_header,
    segment_header_of,
    unpack_segment_header,
)
from timerlog.errors import Unrepairable
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
from timerlog.files.lock import DirectoryLock
from timerlog.files.replica_mark import refuse_replica
from timerlog.layout import RECORD_HEAD_BYTES, RECORD_HEAD_STRUCT, SEGMENT_HEADER_BYTES, RecordType
from timerlog.recovery import checkpoint as checkpoints
from timerlog.recovery import timeline
from timerlog.recovery.checkpoint import Checkpoint
from timerlog.recovery.replay import Contradiction, Replayer
from timerlog.settings import StoreSettings
from timerlog.tables.apply import Applier
from timerlog.tables.tables import Tables, remove_derived_files

WORK: Final = "repair.new"
_SMALLEST_BYTES: Final = 4096
_ROWS: Final = 1 << 20
_RESERVED_BYTES: Final = RECORD_HEAD_BYTES + 8
#: A segment header with one wrong bit is put right; with more, it is written anew from what the others say.
_HEADER_BITS: Final = SEGMENT_HEADER_BYTES * 8


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One place that cannot be saved, and what lay there."""

    file: str
    offset: int
    size_bytes: int
    reason: str
    #: The message numbers that no record holds any more: the first, and the one behind the last. Equal: none.
    first_id: int = 0
    end_id: int = 0

    @property
    def messages(self) -> int:
        return self.end_id - self.first_id


class RepairReport(msgspec.Struct, kw_only=True):
    """What a repair would do, or did."""

    directory: str
    applied: bool = False
    losses: list[Loss] = msgspec.field(default_factory=list)
    mended: list[str] = msgspec.field(default_factory=list)  #: files that are whole again, and lost nothing
    set_aside: list[str] = msgspec.field(default_factory=list)  #: files that are no part of the log
    messages: int = 0  #: that a start finds afterwards
    lost_messages: int = 0  #: at most so many
    lost_bytes: int = 0
    kept_in: str = ""  #: where the damaged files are

    @property
    def is_needed(self) -> bool:
        return bool(self.losses or self.mended or self.set_aside)


def repair(directory: Path, now_ms: int, *, apply: bool = False) -> RepairReport:
    """Says what can be saved of a damaged directory; with ``apply``, saves it.

    Raises ``NoDataDirectory``, ``ReplicaDirectory``, ``DirectoryLocked``, ``UnsupportedFormat``, ``Unrepairable``,
    ``DiskFull``; then nothing was changed.
    """
    check_data_directory(directory)
    refuse_replica(directory)
    lock = DirectoryLock(directory)
    work = directory / WORK
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o750)
        with full_disk_errors(directory):
            mending = _Mending(directory, work)
            report = mending.run()
            if apply and report.is_needed:
                mending.apply(now_ms)
            return report
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.release()


def fill_record(size_bytes: int, payload: bytes = b"") -> bytes:
    """A FILL record of ``size_bytes`` in all. ``payload`` is there for tests; it is never read."""
    return _record(RecordType.FILL, payload.ljust(size_bytes - RECORD_HEAD_BYTES, b"\0"))


def _record(kind: RecordType, payload: bytes = b"") -> bytes:
    tail = RECORD_HEAD_STRUCT.pack(0, RECORD_HEAD_BYTES + len(payload), kind, 0, 0, 0)[4:] + payload
    return struct.pack("<I", crc32c(tail)) + tail


@dataclass(slots=True)
class _Gap:
    """A damaged part of the log."""

    position: int
    size_bytes: int
    reason: str


@dataclass(slots=True)
class _Mending:
    directory: Path
    work: Path
    paths: dict[int, Path] = field(default_factory=dict)  # base → the file, as it is to be
    aside: list[Path] = field(default_factory=list)  # files that belong nowhere any more
    gaps: list[_Gap] = field(default_factory=list)
    report: RepairReport = field(init=False)
    found: Checkpoint | None = None
    last_ms: int = 0  # of what is left: what was lost may have been given out since

    def __post_init__(self) -> None:
        self.report = RepairReport(directory=str(self.directory))

    def run(self) -> RepairReport:
        disk = FileDisk(self.directory)
        self.paths = {base: self._original(base) for base in disk.segments()}
        self._mend_headers()
        self.found = self._checkpoint(disk)
        self._fill_missing_segments()
        log = MappedLog(self.paths)
        try:
            self._mend_records(log)
            self._try_out(log)
            self.report.set_aside = sorted(path.name for path in self.aside)
        finally:
            log.close()
        return self.report

    def _original(self, base: int) -> Path:
        return segment_path(self.directory, base)

    def _edited(self, base: int) -> Path:
        """A copy of a segment that may be changed."""
        path = self.work / segment_name(base)
        if self.paths.get(base) != path:
            shutil.copyfile(self.paths[base], path)
            self.paths[base] = path
        return path

    # -- headers and whole segments --

    def _mend_headers(self) -> None:
        if not self.paths:
            raise Unrepairable(f"{self.directory} has no segment of the CommitLog left")
        headers = {base: segment_header_of(path) for base, path in self.paths.items()}
        for base, header in headers.items():
            if header is None and (corrected := self._one_bit_off(base)) is not None:
                self._write(base, 0, corrected)
                headers[base] = unpack_segment_header(corrected)
                self.report.mended.append(self.paths[base].name)
        whole = [header for header in headers.values() if header is not None]
        if not whole:
            raise Unrepairable("no segment has a header that can be read or put right")
        for base in [base for base in headers if base % whole[0].segment_bytes]:
            self.aside.append(self.paths.pop(base))  # no segment has such a name
            del headers[base]
        for base, header in headers.items():
            if header is None and not (base == max(headers) and self._is_only_begun(base, whole[0])):
                self._write(base, 0, pack_segment_header(base, whole[0].segment_bytes, whole[0].log_id))
                self.report.mended.append(self.paths[base].name)
            elif header is None:  # its creation was interrupted: a start drops it
                self.paths.pop(base)

    def _one_bit_off(self, base: int) -> bytes | None:
        with self.paths[base].open("rb") as file:
            content = bytearray(file.read(SEGMENT_HEADER_BYTES).ljust(SEGMENT_HEADER_BYTES, b"\0"))
        for bit in range(_HEADER_BITS):
            content[bit // 8] ^= 1 << bit % 8
            header = unpack_segment_header(bytes(content))
            if header is not None and header.base == base:
                return bytes(content)
            content[bit // 8] ^= 1 << bit % 8
        return None

    def _is_only_begun(self, base: int, first: SegmentHeader) -> bool:
        """Whether nothing was written behind the header of a segment, and the log does not go on there."""
        if any(self.paths[base].read_bytes()[SEGMENT_HEADER_BYTES:]):
            return False
        before = base - first.segment_bytes
        if before not in self.paths or self._is_foreign(before, first):
            return True
        log = MappedLog({before: self.paths[before]})
        try:
            stop, reason = log.reader.verify(before + SEGMENT_HEADER_BYTES)
            return reason != END_RECORD and log.reader.marked_behind(stop) <= stop
        finally:
            log.close()

    def _checkpoint(self, disk: FileDisk) -> Checkpoint | None:
        """What the last checkpoint says, if it is of this log."""
        header = segment_header_of(self.paths[min(self.paths)])
        found = checkpoints.load(disk)
        return found if found is not None and header is not None and found.log_id == header.log_id else None

    def _fill_missing_segments(self) -> None:
        header = segment_header_of(self.paths[min(self.paths)])
        assert header is not None, "all headers were mended"
        size_bytes = header.segment_bytes
        for base in [base for base in self.paths if self._is_foreign(base, header)]:
            self.aside.append(self.paths.pop(base))
        if not self.paths:
            raise Unrepairable(
                "no segment has the name that its header says: files were renamed, or belong to other logs"
            )
        for base in range(min(self.paths), max(self.paths), size_bytes):
            if base not in self.paths:
                self._make_segment(base, header)
        self._drop_headless_start(size_bytes)

    def _is_foreign(self, base: int, first: SegmentHeader) -> bool:
        wanted = SegmentHeader(base, first.segment_bytes, first.log_id)
        return segment_header_of(self.paths[base]) != wanted

    def _make_segment(self, base: int, first: SegmentHeader) -> None:
        """In the place of a missing one: one record that means nothing."""
        path = self.work / segment_name(base)
        with path.open("wb") as file:
            file.write(pack_segment_header(base, first.segment_bytes, first.log_id))
            file.truncate(first.segment_bytes)
        self.paths[base] = path
        self._write_fill(base, SEGMENT_HEADER_BYTES, first.segment_bytes, self._id_after_file(base))
        size_bytes = first.segment_bytes - SEGMENT_HEADER_BYTES
        self.gaps.append(_Gap(base + SEGMENT_HEADER_BYTES, size_bytes, "the file is missing"))

    def _id_after_file(self, base: int) -> int:
        later = {at: path for at, path in self.paths.items() if at > base}
        log = MappedLog(later)
        try:
            return self._id_behind(log, min(later) + SEGMENT_HEADER_BYTES)
        finally:
            log.close()

    def _drop_headless_start(self, segment_bytes: int) -> None:
        """A log whose start is missing begins at the first segment that says all that held at its beginning."""
        for base in sorted(self.paths):
            log = MappedLog({base: self.paths[base]})
            begins = base == 0 or log.first_type() == RecordType.BASE
            log.close()
            if begins:
                break
            self.aside.append(self.paths.pop(base))
        if not self.paths:
            raise Unrepairable(
                "the start of the CommitLog is missing, and no later segment can be read without it"
            )
        first = min(self.paths)
        expected = min(self.found.segments, default=first) if self.found is not None else first
        for base in range(
            min(expected, *(int(path.stem) for path in self.aside), first), first, segment_bytes
        ):
            self.gaps.append(_Gap(base, segment_bytes, "the start of the log is missing"))

    # -- records --

    def _mend_records(self, log: MappedLog) -> None:
        durable = self.found.durable_position if self.found is not None else 0
        for base in log.bases:
            position = base + SEGMENT_HEADER_BYTES
            while True:
                position, reason = log.reader.verify(position)
                is_last = base == log.bases[-1]
                if reason == END_RECORD and not is_last:
                    break
                if is_last and log.reader.marked_behind(position) <= position:
                    if position < durable:
                        self._cut(log, position, durable, "the log is missing from here on")
                    break  # a torn tail, if anything: a start cuts it off
                end = self._next_sound(log, position)
                if is_last and end == base + log.reader.sizes[base]:
                    self._cut(log, position, max(durable, end), REASONS[reason])
                    break
                self._fill(log, position, end, REASONS[reason], self._id_behind(log, end))
                position = end
                if end == base + log.reader.sizes[base]:
                    break

    def _id_behind(self, log: MappedLog, position: int) -> int:
        """The number of the first message behind a gap, or the best that is known of it."""
        return log.message_behind(position) or (self.found.base.next_id if self.found is not None else 0)

    def _next_sound(self, log: MappedLog, position: int) -> int:
        """Where the first record begins behind damage that is certainly one."""
        base = position // log.segment_bytes * log.segment_bytes
        end = base + log.reader.sizes[base]
        if position + RECORD_HEAD_BYTES > end:
            return end
        size_bytes = int.from_bytes(log.bytes_at(position + 4, 4), "little")
        following = position + padded(size_bytes)
        if size_bytes >= RECORD_HEAD_BYTES and following < end and log.is_record(following):
            return following
        named = [
            at for at in log.reader.marks_behind(position, end) if position < at < end and log.is_record(at)
        ]
        return min(named, default=end)

    def _fill(self, log: MappedLog, position: int, end: int, reason: str, next_id: int = 0) -> None:
        base = position // log.segment_bytes * log.segment_bytes
        at_end = end == base + log.reader.sizes[base]
        self._write_fill(base, position - base, end - base, next_id, at_end=at_end)
        log.remap(base, self.paths[base])
        self.gaps.append(_Gap(position, end - position, reason))

    def _write_fill(self, base: int, start: int, end: int, next_id: int = 0, *, at_end: bool = True) -> None:
        """Records that mean nothing from ``start`` to ``end`` of a segment, and that the message numbers below
        ``next_id`` are given already; ``at_end``: then the segment's END."""
        assert start % 8 == 0, "records begin at multiples of 8"
        content, last = b"", _record(RecordType.END) if at_end else b""
        room = padded(end - start - 7) - len(last)
        if next_id and room >= _RESERVED_BYTES + RECORD_HEAD_BYTES:
            content = _record(RecordType.RESERVED, struct.pack("<Q", next_id))
        if room - len(content) >= RECORD_HEAD_BYTES:
            content += fill_record(room - len(content))
        assert at_end or len(content) == end - start, "what is sound behind a gap stays as it is"
        # An END may have less than a record behind it, up to the end of its segment.
        self._write(base, start, (content + last).ljust(end - start, b"\0"))

    def _cut(self, log: MappedLog, position: int, durable: int, reason: str) -> None:
        """Nothing that is whole lies behind: the log ends here from now on, and numbers go on behind the lost ones."""
        assert position <= durable, "what is cut off was there once"
        base = position // log.segment_bytes * log.segment_bytes
        next_id = self.found.base.next_id if self.found is not None else 0
        reserved = _record(RecordType.RESERVED, struct.pack("<Q", next_id)) if next_id else b""
        if log.is_record(position):  # END: the log went on in a segment that is missing
            base += log.segment_bytes
            header = pack_segment_header(base, log.segment_bytes, log.log_id)
            self.paths[base] = self.work / segment_name(base)
            self.paths[base].write_bytes((header + reserved).ljust(_SMALLEST_BYTES, b"\0"))
        else:
            room = log.reader.sizes[base] - (position - base)
            self._write(
                base, position - base, (reserved if room >= len(reserved) else b"").ljust(room, b"\0")
            )
        log.remap(base, self.paths[base])
        self.gaps.append(_Gap(position, durable - position, reason))

    def _write(self, base: int, offset: int, content: bytes) -> None:
        with self._edited(base).open("r+b") as file:
            file.seek(offset)
            file.write(content)

    # -- whether it is enough --

    def _try_out(self, log: MappedLog) -> None:
        """Replays the log in memory; records that make no sense any more are filled, too."""
        while True:
            tables = Tables(directory=None, log_id=log.log_id, settings=StoreSettings())
            try:
                self._tell(log, tables, self._replay(log, tables))
                return
            except Contradiction as error:
                self._give_up_record(log, error)
            finally:
                tables.close()

    def _replay(self, log: MappedLog, tables: Tables) -> int:
        """The last tick that the log knows."""
        applier = Applier(tables, StoreSettings(), first_position=log.bases[0])
        replayer = Replayer(log.addresses, tables, applier, keeps_keys=False)
        for base in log.bases:
            stop, reason = log.reader.verify(base + SEGMENT_HEADER_BYTES)
            position = base + SEGMENT_HEADER_BYTES
            while position < stop:
                try:
                    replayer.apply(position, stop)
                    break
                except Contradiction as error:
                    if not self.gaps:
                        raise Unrepairable(str(error)) from error  # nothing is lost that would explain it
                    position = self._give_up_record(log, error)
            if reason != END_RECORD:
                break
        if not rebuild.topics(tables.native):
            raise Unrepairable("a topic names a message that the log does not hold")
        return applier.tick_ms

    def _give_up_record(self, log: MappedLog, error: Contradiction) -> int:
        size_bytes = int.from_bytes(log.bytes_at(error.position + 4, 4), "little")
        end = error.position + padded(size_bytes)
        # A message's number stays its own, though it is lost: the sender was told it.
        is_message = log.bytes_at(error.position, RECORD_HEAD_BYTES)[8] == RecordType.MESSAGE
        next_id = log.message_behind(error.position) + 1 if is_message else 0
        self._fill(log, error.position, end, "makes no sense without what is lost", next_id)
        return error.position if is_message else end

    def _tell(self, log: MappedLog, tables: Tables, tick_ms: int) -> None:
        """What is lost: of each gap, the message numbers around it that nothing is known of."""
        parts = [np.zeros(0, np.int64)]
        for start, stop in tables.spans(tables.messages.start, tables.next_id, _ROWS):
            parts.append(np.flatnonzero(tables.rows["state"][start:stop]) + start)
        known = np.concatenate(parts)
        positions = tables.rows["position"][known].astype(np.int64)
        self.report.messages = len(known)
        self.last_ms = int(tables.rows["created_ms"][known].max(initial=tick_ms))
        next_id = max(tables.next_id, self.found.base.next_id if self.found is not None else 0)
        for gap in sorted(self.gaps, key=lambda gap: gap.position):
            before = known[positions < gap.position]
            behind = known[positions >= gap.position]
            first_id = int(before.max(initial=0)) + 1
            end_id = max(first_id, int(behind.min(initial=next_id)))
            base = gap.position // log.segment_bytes * log.segment_bytes
            self.report.losses.append(
                Loss(
                    file=f"{LOG_FOLDER}/{segment_name(base)}",
                    offset=gap.position - base,
                    size_bytes=gap.size_bytes,
                    reason=gap.reason,
                    first_id=first_id,
                    end_id=end_id,
                )
            )
        self.report.lost_messages = self._count_lost(tables)
        named = sum(loss.messages for loss in self.report.losses)
        assert self.report.lost_messages <= named, "a number that is lost is named, and counts once"
        self.report.lost_bytes = sum(gap.size_bytes for gap in self.gaps)

    def _count_lost(self, tables: Tables) -> int:
        """The numbers that losses name, each once; not those that were never given to a message of this log."""
        count = counted_to = 0
        for loss in sorted(self.report.losses, key=lambda loss: loss.first_id):
            spans = tables.spans(max(loss.first_id, counted_to), loss.end_id, _ROWS)
            count += sum(stop - start for start, stop in spans)
            counted_to = max(counted_to, loss.end_id)
        return count

    # -- doing it --

    def apply(self, now_ms: int) -> None:
        """Puts the mended files in the place of the damaged ones, which are kept."""
        moment = datetime.fromtimestamp(now_ms / 1000, UTC)
        kept = self.directory / f"damaged-{moment:%Y%m%dT%H%M%S}"
        (kept / LOG_FOLDER).mkdir(parents=True, mode=0o750)
        changed = {base: path for base, path in self.paths.items() if path.parent == self.work}
        if self.gaps:
            mark = timeline.pack_mark(self.last_ms or now_ms)
            write_durably(self.directory / timeline.NAME, mark)
        for path in {*(self._original(base) for base in changed), *self.aside}:
            if path.exists():
                os.link(path, kept / LOG_FOLDER / path.name)
        if (self.directory / checkpoints.NAME).exists():
            os.link(self.directory / checkpoints.NAME, kept / checkpoints.NAME)
        for folder in (kept / LOG_FOLDER, kept, self.directory):
            sync_directory(folder)
        # First of all what is derived: it must not be believed any more, wherever this is interrupted.
        remove_derived_files(self.directory)
        sync_directory(self.directory)
        for base, path in changed.items():
            with path.open("r+b") as file:
                os.fsync(file.fileno())
            path.chmod(0o640)
            path.replace(self._original(base))
        for path in set(self.aside) - {self._original(base) for base in changed}:
            path.unlink()
        sync_directory(self.directory / LOG_FOLDER)
        self.report.applied, self.report.kept_in = True, str(kept)
