"""Opening a data directory: find where the log ends, bring the tables up to that point, derive the rest.

The log is read from the checkpoint on, or from its start when there is no checkpoint to trust. Where the first record
that is not whole starts, one of two things holds. Either nothing behind it was ever synced: the tail was torn, and is
cut off. Or a MARK behind it says that the log was on disk beyond that point: then it was damaged later, and the
store refuses to open, because cutting there would drop acknowledged messages.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tickwheel_native import memory, rebuild
from timerlog.commitlog.log import CONTROL_RESERVE_BYTES, CommitLog
from timerlog.commitlog.reader import END_RECORD, LogReader, damaged_at
from timerlog.commitlog.segments import (
    ADDRESS_SPACE_BYTES,
    ADOPTING,
    ADOPTING_FORMAT,
    SegmentHeader,
    is_unused,
    read_segment_header,
    reserve_log_address_space,
)
from timerlog.errors import DamagedLog
from timerlog.files.checksums import are_as_they_were
from timerlog.files.disk import Disk, segment_name
from timerlog.files.held_space import Reserve
from timerlog.files.small_files import unseal
from timerlog.layout import (
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordType,
)
from timerlog.recovery import checkpoint as checkpoints
from timerlog.recovery.checkpoint import Checkpoint
from timerlog.recovery.replay import Replayer
from timerlog.settings import StoreSettings
from timerlog.tables.answers import RememberedAnswers
from timerlog.tables.apply import Applier
from timerlog.tables.tables import Tables, refuse_newer_tables, remove_derived_files

_FIRST_BYTES: Final = 64 * 1024


class RecoveryReport(msgspec.Struct, kw_only=True):
    """What opening a directory found and did."""

    is_new: bool = False
    from_checkpoint: bool = False
    was_clean: bool = False
    replayed_bytes: int = 0
    replayed_records: int = 0
    torn_tail_bytes: int = 0
    torn_tail_position: int | None = None
    end_position: int = 0


@dataclass(slots=True)
class Opened:
    """A log and tables that agree with each other."""

    log: CommitLog
    tables: Tables
    applier: Applier
    report: RecoveryReport
    reserve: Reserve


def open_directory(
    directory: Path | None, disk: Disk, settings: StoreSettings, now_ms: int, new_log_id: int
) -> Opened:
    """Opens or creates the store's files. Raises ``DamagedLog``, ``DiskFull``, ``UnsupportedFormat``."""
    with ExitStack() as undo:  # what to close when opening fails half-way
        base = reserve_log_address_space()
        undo.callback(memory.release, base, ADDRESS_SPACE_BYTES)
        headers = {segment: read_segment_header(disk, base, segment) for segment in disk.segments()}
        if any(headers.values()):
            opened = _Recovery(directory, disk, settings, base, _without_purged(disk, headers), undo).run()
        elif len(headers) > 1 or not all(is_unused(disk, base, segment) for segment in headers):
            raise DamagedLog("no segment of the CommitLog has a whole header")
        else:
            opened = _create(directory, disk, settings, base, new_log_id, now_ms, undo)
        undo.pop_all()
        return opened


def _without_purged(disk: Disk, headers: dict[int, SegmentHeader | None]) -> dict[int, SegmentHeader | None]:
    """Deletes segments that a purge was done with when it was interrupted: a checkpoint without them is on the disk
    only when nothing refers to them any more."""
    found = checkpoints.load(disk)
    log_ids = {header.log_id for header in headers.values() if header is not None}
    if found is None or log_ids != {found.log_id} or not found.segments:
        return headers
    first = min(found.segments)
    if headers.get(first) is None:
        raise DamagedLog(f"segment {segment_name(first)} is missing, or its header is damaged")
    for base in [base for base in headers if base < first]:
        disk.remove_segment(base)
    return {base: header for base, header in headers.items() if base >= first}


def _create(
    directory: Path | None,
    disk: Disk,
    settings: StoreSettings,
    base: Any,
    log_id: int,
    now_ms: int,
    undo: ExitStack,
) -> Opened:
    if directory is not None:
        remove_derived_files(directory)
        (directory / "topics").mkdir(mode=0o750, exist_ok=True)
    reserve = Reserve(disk, settings.disk_reserve_bytes)
    tables = Tables(directory, log_id, settings, reserve)
    undo.callback(tables.close)
    tables.answers = RememberedAnswers(settings.segment_bytes)
    log = CommitLog(disk, tables.native, settings.segment_bytes, log_id, base)
    undo.callback(log.close_files)
    log.prepare(settings.max_frame_bytes)
    # On a small disk it need not be whole: it grows.
    log.create_segment(0, SEGMENT_HEADER_BYTES + CONTROL_RESERVE_BYTES + _FIRST_BYTES)
    log.start_at(SEGMENT_HEADER_BYTES)
    report = RecoveryReport(is_new=True, end_position=SEGMENT_HEADER_BYTES)
    return Opened(log, tables, Applier(tables, settings, tick_ms=now_ms), report, reserve)


class _Recovery:
    def __init__(
        self,
        directory: Path | None,
        disk: Disk,
        settings: StoreSettings,
        base: Any,
        headers: dict[int, SegmentHeader | None],
        undo: ExitStack,
    ) -> None:
        self.directory, self.disk, self.settings, self.base = directory, disk, settings, base
        self.undo = undo
        self.reserve = Reserve(disk, settings.disk_reserve_bytes)
        self.headless = [segment for segment, header in headers.items() if header is None]
        self.headers = {segment: header for segment, header in headers.items() if header is not None}
        first = next(iter(self.headers.values()))
        self.segment_bytes, self.log_id = first.segment_bytes, first.log_id
        self.sizes: dict[int, int] = {}
        self.report = RecoveryReport()

    def run(self) -> Opened:
        self._check_headers()
        files = {segment: self.disk.open_segment(segment, create=False) for segment in self.headers}
        for file in files.values():
            self.undo.callback(file.close)
        self.sizes = {segment: min(file.size_bytes, self.segment_bytes) for segment, file in files.items()}
        trusted = self._trusted_checkpoint()
        for segment, file in files.items():
            file.map_into(self.base, segment, self.segment_bytes)
        reader = LogReader(self.base, self.segment_bytes, self.sizes)
        # Before anything is changed, also of what is derived: a start that is refused leaves all as it was.
        self._refuse_damage(reader, self._first_record() if trusted is None else trusted.position)
        tables = self._open_tables(trusted)
        self.undo.callback(tables.close)
        tables.answers = RememberedAnswers(self.segment_bytes)
        log = CommitLog(self.disk, tables.native, self.segment_bytes, self.log_id, self.base)
        log.prepare(self.settings.max_frame_bytes)
        for segment, file in files.items():
            log.attach(segment, file)
        applier = Applier(tables, self.settings, first_position=min(self.headers))
        position = self._start(trusted, tables, applier)
        reader.forget_counts()
        end = self._replay(reader, tables, applier, position)
        self._cut(reader, log, end)
        synced = position if trusted is None else min(position, trusted.durable_position)
        log.sync_all(synced // self.segment_bytes * self.segment_bytes)
        log.start_at(end)
        assert log.appended_position == end, "what is appended next follows what was read"
        self._rebuild(tables)
        self.report.end_position = end
        return Opened(log, tables, applier, self.report, self.reserve)

    def _check_headers(self) -> None:
        for segment, header in self.headers.items():
            if (header.base, header.segment_bytes, header.log_id) != (
                segment,
                self.segment_bytes,
                self.log_id,
            ):
                raise DamagedLog(f"segment {segment_name(segment)} belongs to another log")
        bases = sorted({*self.headers, *self._being_adopted()})
        if bases != list(range(bases[0], bases[-1] + 1, self.segment_bytes)):
            raise DamagedLog("a segment is missing from the middle of the CommitLog")
        for segment in self.headless:
            if segment < bases[-1] or not is_unused(self.disk, self.base, segment):
                raise DamagedLog(f"segment {segment_name(segment)} has a damaged header")

    def _being_adopted(self) -> list[int]:
        """Segments that were being taken into the log: some may be there and others not. If the log does not lead to
        them, they are no part of it, and are dropped like everything behind its end."""
        noted = self.disk.read(ADOPTING)
        if noted is None:
            return []
        body = unseal(noted, ADOPTING_FORMAT, "the list of segments that are being taken in")
        if body is None:  # if one of them is missing, it counts as a missing segment
            return []
        first = min(self.headers)
        return [base for base in msgspec.json.decode(body, type=list[int]) if base > first]

    def _trusted_checkpoint(self) -> Checkpoint | None:
        found = checkpoints.load(self.disk)
        if found is None or found.log_id != self.log_id or not checkpoints.is_trustworthy(found):
            return None
        for base, count in found.segments.items():
            if self.sizes.get(base, 0) < min(count, self.segment_bytes):
                raise DamagedLog(
                    f"segment {segment_name(base)} is missing or shorter than the {count} bytes it had"
                )
        if not self._tables_are_whole(found):
            return None
        self.report.from_checkpoint = True
        self.report.was_clean = found.clean
        return found

    def _tables_are_whole(self, found: Checkpoint) -> bool:
        """Whether no derived file is missing or was cut; otherwise all are made again."""
        directory = self.directory
        if directory is None:
            return False
        paths = {directory / name: count for name, count in found.tables.items()}
        if not all(path.is_file() and path.stat().st_size >= count for path, count in paths.items()):
            return False
        # While a broker runs, its tables are as safe as its memory; from a clean stop on, checksums watch over them.
        return not found.clean or are_as_they_were(directory, found.tables, found.sums)

    def _open_tables(self, trusted: Checkpoint | None) -> Tables:
        if self.directory is not None:
            if trusted is None:
                # A clean checkpoint that is not trusted says that they are damaged, whatever they say.
                found = checkpoints.load(self.disk)
                if found is None or not found.clean:
                    refuse_newer_tables(self.directory)
                remove_derived_files(self.directory)
            (self.directory / "topics").mkdir(mode=0o750, exist_ok=True)
        return Tables(self.directory, self.log_id, self.settings, self.reserve)

    def _start(self, trusted: Checkpoint | None, tables: Tables, applier: Applier) -> int:
        if trusted is None:
            return self._first_record()
        applier.base(trusted.base)
        return trusted.position

    def _first_record(self) -> int:
        first = min(self.headers) + SEGMENT_HEADER_BYTES
        is_long_enough = self.sizes[min(self.headers)] >= SEGMENT_HEADER_BYTES + RECORD_HEAD_BYTES
        kind = memory.view(self.base, first + 8, 1)[0] if is_long_enough else 0
        if min(self.headers) > 0 and kind != RecordType.BASE:
            raise DamagedLog(
                f"the start of the CommitLog, before {segment_name(min(self.headers))}, is missing"
            )
        return first

    def _replay(self, reader: LogReader, tables: Tables, applier: Applier, position: int) -> int:
        """Verifies and applies segment after segment; returns where the log ends."""
        replayer = Replayer(self.base, tables, applier)
        while True:
            stop, reason = reader.verify(position)
            replayer.apply(position, stop)
            self.report.replayed_bytes += stop - position
            following = position // self.segment_bytes * self.segment_bytes + self.segment_bytes
            if reason != END_RECORD or following not in reader.sizes:
                self.report.replayed_records = sum(reader.counts)
                return stop
            position = following + SEGMENT_HEADER_BYTES

    def _refuse_damage(self, reader: LogReader, position: int) -> None:
        """Decides between a torn tail, which ``_cut`` will cut, and damage. Raises ``DamagedLog``."""
        while True:
            end, reason = reader.verify(position)
            segment = end // self.segment_bytes * self.segment_bytes
            if reason != END_RECORD or segment + self.segment_bytes not in reader.sizes:
                break
            position = segment + self.segment_bytes + SEGMENT_HEADER_BYTES
        # Whatever a checkpoint is worth for the tables: what it calls durable was on the disk.
        found = checkpoints.load(self.disk)
        known = found.durable_position if found is not None and found.log_id == self.log_id else 0
        durable = max(reader.marked_behind(end), known)
        if durable > end:
            raise damaged_at(end, self.segment_bytes, f"the log was on disk up to position {durable}")

    def _cut(self, reader: LogReader, log: CommitLog, end: int) -> None:
        """Cuts a torn tail."""
        segment = end // self.segment_bytes * self.segment_bytes
        later = [base for base in reader.sizes if base > segment]
        for base in [*later, *self.headless]:
            log.drop(base)
        garbage_bytes = reader.garbage_behind(end)
        if garbage_bytes or later:
            self.report.torn_tail_position = end
            self.report.torn_tail_bytes = garbage_bytes
            log.cut(end)

    def _rebuild(self, tables: Tables) -> None:
        native = tables.native
        if not rebuild.topics(native):
            raise DamagedLog("a topic names a message that the log does not hold")
        for group_id in tables.groups:
            rebuild.group(native, group_id)
            needs_room, at = rebuild.orders(native, group_id, 0)
            while needs_room:
                tables.grow_orders(group_id)
                needs_room, at = rebuild.orders(native, group_id, at)
        if self.report.was_clean and not self.report.replayed_bytes:
            return
        tables.keys.clear()
        result, at, partition = rebuild.keys(native, int(native.first_id), tables.next_id)
        while result == rebuild.NEED_KEYS:
            tables.keys.grow(partition)
            result, at, partition = rebuild.keys(native, at, tables.next_id)
