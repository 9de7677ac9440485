"""Offline verification of a data directory: read every record of the CommitLog, change nothing.

Unlike a start, which trusts what lies before the checkpoint, this reads everything. It says where the log is damaged,
and whether what stands there is a torn tail (a start will cut it) or damage (a start will refuse).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from timerlog.commitlog.addresses import LogAddresses
from timerlog.commitlog.reader import END_OF_RANGE, END_RECORD, REASONS, ZEROS, LogReader
from timerlog.commitlog.segments import SegmentHeader, is_unused, read_segment_header
from timerlog.files.checksums import table_sum
from timerlog.files.disk import LOG_FOLDER, Disk, FileDisk, check_data_directory, segment_name
from timerlog.layout import FORMAT_VERSION, KEYS_MAGIC, SEGMENT_HEADER_BYTES, RecordType
from timerlog.recovery import checkpoint as checkpoints
from timerlog.recovery.checkpoint import Checkpoint

#: How often segments may be purged while they are being opened.
_ATTEMPTS: Final = 10


class Damage(msgspec.Struct, frozen=True):
    file: str
    offset: int
    reason: str
    torn_tail: bool  #: nothing behind it was ever synced: a start cuts it off


class InspectedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the directory. ``state``: whole, damaged, torn (a start mends it), or derived (a start that does not
    trust it makes it again)."""

    file: str
    kind: str
    size_bytes: int
    format: int | None = None  #: None: this kind has none, or it cannot be read
    state: str = "whole"


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
    format: int = FORMAT_VERSION  #: of the log
    files: list[InspectedFile] = msgspec.field(default_factory=list)


def inspect_directory(directory: Path) -> InspectReport:
    """Reads a whole data directory. Raises ``BadDirectory`` when it is not one, ``UnsupportedFormat`` for a newer one.

    Safe on a directory that a broker is using: records that it is writing meanwhile may show as a torn tail.
    """
    check_data_directory(directory)
    disk = FileDisk(directory)
    report = _read_log(directory, disk)
    states = (_state_of(path) for path in directory.rglob("*"))
    report.disk_bytes = sum(state.st_blocks * 512 for state in states if state is not None)
    found = checkpoints.load(disk)
    report.files = list(_files(directory, report, found))
    if found is not None:
        report.checkpoint = {
            "position": found.position,
            "next_id": found.base.next_id,
            "clean": found.clean,
            "would_be_used": checkpoints.is_trustworthy(found),
        }
    return report


def _read_log(directory: Path, disk: Disk) -> InspectReport:
    """Begins anew when a purge has just taken a segment away that was about to be read."""
    for attempt in range(_ATTEMPTS):
        report = InspectReport(directory=str(directory))
        try:
            _Inspection(disk, report).run()
            break
        except FileNotFoundError:
            if attempt == _ATTEMPTS - 1:
                raise
    return report


def _state_of(path: Path) -> os.stat_result | None:
    """None when it is no file, or not there any more: a broker may be using the directory."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state if stat.S_ISREG(state.st_mode) else None


def _files(directory: Path, report: InspectReport, found: Checkpoint | None) -> Iterator[InspectedFile]:
    """Each file, what it is, and what is known of it."""
    hurt = {one.file: "torn" if one.torn_tail else "damaged" for one in report.damage}
    sums = found.sums if found is not None and found.clean else {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if (file_state := _state_of(path)) is None:
            continue
        size_bytes = file_state.st_size
        state = hurt.get(name, "whole")
        try:
            if (name in sums and table_sum(path, size_bytes) != sums[name]) or (
                name == checkpoints.NAME and found is None
            ):
                state = "damaged"
            elif _is_derived(name) and name not in sums:
                state = "derived"
            with path.open("rb") as file:
                head = file.read(16)
        except FileNotFoundError:
            continue
        yield InspectedFile(
            file=name, kind=_kind(name), size_bytes=size_bytes, format=_format(name, head), state=state
        )


def _kind(name: str) -> str:
    folder, _, last = name.rpartition("/")
    if folder == "topics":
        return "arrivals" if last.endswith(".arrivals") else "deliveries"
    return folder.partition("/")[0] or name.partition(".new")[0]


def _is_derived(name: str) -> bool:
    return _kind(name) in (
        "arrivals",
        "deliveries",
        "messages.table",
        "keys.index",
        "timer.log",
        "timer.wheel",
    )


def _format(name: str, head: bytes) -> int | None:
    """What a file says of its own format, where it says it in its first bytes."""
    if head[:6] == KEYS_MAGIC[:6] and head[6:8].isdigit():
        return int(head[6:8])
    if head[:2] == b"TW" and len(head) >= 12 and name != checkpoints.NAME:
        return int.from_bytes(head[8:12], "little")
    if head[:8] == checkpoints.MAGIC:
        return checkpoints.VERSION
    if head.startswith(b'{"format":'):
        return int(head[10:].split(b",")[0])
    return None


class _Inspection:
    def __init__(self, disk: Disk, report: InspectReport) -> None:
        self.disk, self.report = disk, report

    def run(self) -> None:
        headers = {segment: read_segment_header(self.disk, segment) for segment in self.disk.segments()}
        whole = {segment: header for segment, header in headers.items() if header is not None}
        self.report.segments = len(headers)
        if not headers:
            return
        led_to = self._read(whole) if whole else None
        for segment in headers.keys() - whole.keys():
            if segment == led_to and read_segment_header(self.disk, segment) is not None:
                continue  # a broker made it and went on there meanwhile
            # The creation of the newest segment may have been interrupted: then it is unused, and no END leads there.
            is_newest = segment == max(headers) and segment != led_to
            unused = is_newest and is_unused(self.disk, segment)
            self._damage(segment, 0, "damaged header", torn_tail=unused)
        self.report.damage.sort(key=lambda damage: (damage.file, damage.offset))

    def _read(self, headers: dict[int, SegmentHeader]) -> int | None:
        """Returns the segment to which an END of the newest one leads."""
        segment_bytes = next(iter(headers.values())).segment_bytes
        files = {segment: self.disk.open_segment(segment, create=False) for segment in headers}
        with ExitStack() as undo:
            for file in files.values():
                undo.callback(file.close)
            addresses = LogAddresses(min(files), max(files) + segment_bytes)
            undo.callback(addresses.release)
            for segment, file in files.items():
                file.map_into(addresses.pointer, segment, segment_bytes)
            sizes = {segment: min(file.size_bytes, segment_bytes) for segment, file in files.items()}
            return self._verify(LogReader(addresses, segment_bytes, sizes))

    def _verify(self, reader: LogReader) -> int | None:
        led_to = None
        for segment in sorted(reader.sizes):
            stop, reason, torn = self._verify_segment(reader, segment + SEGMENT_HEADER_BYTES)
            led_to = segment + reader.segment_bytes if reason == END_RECORD else None
            self.report.log_bytes += stop - segment
            last = segment == max(reader.sizes)
            garbage_bytes = 0 if reason == END_RECORD else reader.garbage_behind(stop)
            # A copy may end exactly behind its last record: where that file ends, nothing is torn.
            ends = reason in (ZEROS, END_OF_RANGE) and torn and not garbage_bytes
            if reason == END_RECORD or (last and ends):
                continue
            if torn:
                self.report.torn_tail_bytes = garbage_bytes
            self._damage(segment, stop - segment, REASONS[reason], torn_tail=torn)
        counts = reader.record_counts()
        names = {int(record): record.name.lower() for record in RecordType}
        self.report.records_by_type = {
            names.get(number, str(number)): count for number, count in counts.items()
        }
        self.report.messages = counts.get(RecordType.MESSAGE, 0)
        return led_to

    def _verify_segment(self, reader: LogReader, position: int) -> tuple[int, int, bool]:
        """Where its last whole record ends, why there, and whether nothing behind it was ever synced. A broker may be
        writing just there: then more is whole a moment later, and what lies behind was no damage."""
        while True:
            stop, reason = reader.verify(position)
            if reason == END_RECORD or reader.marked_behind(stop) <= stop:
                return stop, reason, True
            if stop == position:
                return stop, reason, False
            position = stop

    def _damage(self, segment: int, offset: int, reason: str, *, torn_tail: bool) -> None:
        self.report.damage.append(Damage(f"{LOG_FOLDER}/{segment_name(segment)}", offset, reason, torn_tail))
        self.report.ok = self.report.ok and torn_tail
