"""Offline verification of a data directory: read every record of the CommitLog, change nothing.

Unlike a start, which trusts what lies before the checkpoint, this reads everything. It says where the log is damaged,
and whether what stands there is a torn tail (a start will cut it) or damage (a start will refuse).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from native import lib
from timerlog import checkpoint as checkpoints
from timerlog.disk import Disk, FileDisk
from timerlog.errors import NoDataDirectory
from timerlog.layout import SEGMENT_HEADER_BYTES, RecordType
from timerlog.log import ADDRESS_SPACE_BYTES, SegmentHeader, reserve_log_address_space
from timerlog.recovery import END_RECORD, REASONS, ZEROS, LogReader, is_unused, read_segment_header


class Damage(msgspec.Struct, frozen=True):
    file: str
    offset: int
    reason: str
    torn_tail: bool  #: nothing behind it was ever synced: a start cuts it off


class InspectReport(msgspec.Struct, kw_only=True):
    """What a data directory holds. ``ok``: a start would find everything that was acknowledged."""

    directory: str
    ok: bool = True
    segments: int = 0
    log_bytes: int = 0
    messages: int = 0
    records_by_type: dict[str, int] = msgspec.field(default_factory=dict)
    damage: list[Damage] = msgspec.field(default_factory=list)
    torn_tail_bytes: int = 0
    checkpoint: dict[str, int | bool] | None = None
    disk_bytes: int = 0


def inspect_directory(directory: Path) -> InspectReport:
    """Reads a whole data directory. Raises ``BadDirectory`` when it is not one, ``UnsupportedFormat`` for a newer one.

    Safe on a directory that a broker is using: records that it is writing meanwhile may show as a torn tail.
    """
    if not (directory / "commitlog").is_dir():
        raise NoDataDirectory(f"{directory} is not a data directory: it has no commitlog/")
    disk = FileDisk(directory)
    report = InspectReport(directory=str(directory))
    base = reserve_log_address_space()
    try:
        _Inspection(disk, base, report).run()
    finally:
        lib.tw_release(base, ADDRESS_SPACE_BYTES)
    report.disk_bytes = sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
    found = checkpoints.load(disk)
    if found is not None:
        report.checkpoint = {
            "position": found.position,
            "next_id": found.base.next_id,
            "clean": found.clean,
            "would_be_used": checkpoints.is_trustworthy(found),
        }
    return report


class _Inspection:
    def __init__(self, disk: Disk, base: object, report: InspectReport) -> None:
        self.disk, self.base, self.report = disk, base, report

    def run(self) -> None:
        headers = {
            segment: read_segment_header(self.disk, self.base, segment) for segment in self.disk.segments()
        }
        whole = {segment: header for segment, header in headers.items() if header is not None}
        self.report.segments = len(headers)
        if not headers:
            return
        for segment in headers.keys() - whole.keys():
            # The creation of the newest segment may have been interrupted: then it is unused.
            unused = segment == max(headers) and is_unused(self.disk, self.base, segment)
            self._damage(segment, 0, "damaged header", torn_tail=unused)
        if whole:
            self._read(whole)

    def _read(self, headers: dict[int, SegmentHeader]) -> None:
        segment_bytes = next(iter(headers.values())).segment_bytes
        files = {segment: self.disk.open_segment(segment, create=False) for segment in headers}
        try:
            for segment, file in files.items():
                file.map_into(self.base, segment, segment_bytes)
            sizes = {segment: min(file.size_bytes, segment_bytes) for segment, file in files.items()}
            self._verify(LogReader(self.base, segment_bytes, sizes))
        finally:
            for file in files.values():
                file.close()

    def _verify(self, reader: LogReader) -> None:
        for segment in sorted(reader.sizes):
            stop, reason = reader.verify(segment + SEGMENT_HEADER_BYTES)
            self.report.log_bytes += stop - segment
            last = segment == max(reader.sizes)
            if reason == END_RECORD or (last and reason == ZEROS and not reader.garbage_behind(stop)):
                continue
            torn = reader.marked_behind(stop) <= stop
            if torn:
                self.report.torn_tail_bytes = reader.garbage_behind(stop)
            self._damage(segment, stop - segment, REASONS[reason], torn_tail=torn)
        counts = {number: int(count) for number, count in enumerate(reader.counts) if count}
        names = {int(record): record.name.lower() for record in RecordType}
        self.report.records_by_type = {
            names.get(number, str(number)): count for number, count in counts.items()
        }
        self.report.messages = counts.get(RecordType.MESSAGE, 0)

    def _damage(self, segment: int, offset: int, reason: str, *, torn_tail: bool) -> None:
        self.report.damage.append(Damage(f"commitlog/{segment:020d}.log", offset, reason, torn_tail))
        self.report.ok = self.report.ok and torn_tail
