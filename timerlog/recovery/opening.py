"""Opening a data directory: find where the log ends, bring the tables up to that point, derive the rest.

The log is read from the checkpoint on, or from its start when there is no checkpoint to trust. Where the first record
that is not whole starts, one of two things holds. Either nothing behind it was ever synced: the tail was torn, and is
cut off. Or a MARK behind it says that the log was on disk beyond that point: then it was damaged later, and the
store refuses to open, because cutting there would drop acknowledged messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from timerlog.commitlog.addresses import LogAddresses
from timerlog.commitlog.durability import Durability, OnDisk
from timerlog.commitlog.log import CONTROL_RESERVE_BYTES, CommitLog
from timerlog.commitlog.reader import END_RECORD, LogReader, damaged_at
from timerlog.commitlog.segments import (
    ADOPTING,
    ADOPTING_FORMAT,
    SegmentHeader,
    is_unused,
    read_segment_header,
)
from timerlog.errors import BadSettings, DamagedLog
from timerlog.files.checksums import are_as_they_were
from timerlog.files.disk import Disk, segment_name
from timerlog.files.held_space import Reserve
from timerlog.files.small_files import unseal
from timerlog.files.window import PAGE_BYTES
from timerlog.layout import (
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    MessageState,
    RecordType,
)
from timerlog.recovery import checkpoint as checkpoints
from timerlog.recovery.checkpoint import Checkpoint, Place
from timerlog.recovery.derived import derive
from timerlog.recovery.replay import Replayer
from timerlog.recovery.timeline import Mark
from timerlog.settings import StoreSettings
from timerlog.tables.answers import RememberedAnswers
from timerlog.tables.apply import Applier
from timerlog.tables.tables import Tables, refuse_newer_tables, remove_derived_files

_FIRST_BYTES: Final = 64 * 1024
_ROWS: Final = 1 << 20


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
    #: Of a replica: what each segment begins with besides.
    genesis: bytes | msgspec.UnsetType = msgspec.UNSET
    #: Of a replica: the timeline that its log is to have.
    mark: Mark | None = None

    def first_tick_ms(self, now_ms: int) -> int:
        """Where the wheel begins: what was due while no broker ran becomes due in the order of its times. A log of
        which nothing was ever due knows no tick; it begins with the earliest of its messages."""
        return min(self.applier.tick_ms or self._earliest_ms(now_ms), now_ms)

    def _earliest_ms(self, now_ms: int) -> int:
        earliest_ms = now_ms
        for start, stop in self.tables.spans(int(self.tables.native.first_id), self.tables.next_id, _ROWS):
            rows = self.tables.rows[start:stop]
            waiting = rows["state"] == MessageState.SCHEDULED
            earliest_ms = int(rows["deliver_at_ms"].min(initial=earliest_ms, where=waiting))
        return max(1, earliest_ms)


def open_directory(
    directory: Path | None, disk: Disk, settings: StoreSettings, now_ms: int, new_log_id: int
) -> Opened:
    """Opens or creates the store's files. Raises ``DamagedLog``, ``DiskFull``, ``UnsupportedFormat``."""
    with ExitStack() as undo:  # what to close when opening fails half-way
        headers = {segment: read_segment_header(disk, segment) for segment in disk.segments()}
        if any(headers.values()):
            recovery = Recovery(
                directory=directory,
                disk=disk,
                settings=settings,
                headers=without_purged(disk, headers),
                undo=undo,
            )
            recovery.refuse_damage()
            opened = recovery.catch_up(recovery.end)
            derive(opened.tables, keys_are_kept=recovery.keys_are_kept)
        elif not _is_only_begun(disk, list(headers)):
            raise DamagedLog("no segment of the CommitLog has a whole header")
        else:
            opened = create(directory, disk, settings, new_log_id, now_ms, undo)
        undo.pop_all()
        return opened


def _is_only_begun(disk: Disk, headless: list[int]) -> bool:
    """Whether there is no log yet: at most the first segment, whose creation was interrupted. A checkpoint is only made
    of a log that is there."""
    if not headless:
        return True
    return len(headless) == 1 and checkpoints.load(disk) is None and is_unused(disk, headless[0])


def without_purged(disk: Disk, headers: dict[int, SegmentHeader | None]) -> dict[int, SegmentHeader | None]:
    """Deletes the segments that ``needed`` leaves out. Raises ``DamagedLog``."""
    left = needed(disk, headers)
    for base in headers.keys() - left.keys():
        disk.remove_segment(base)
    return left


def needed(disk: Disk, headers: dict[int, SegmentHeader | None]) -> dict[int, SegmentHeader | None]:
    """Without the segments that a purge was done with when it was interrupted: a checkpoint without them is on the disk
    only when nothing refers to them any more. Raises ``DamagedLog``."""
    found = checkpoints.load(disk)
    log_ids = {header.log_id for header in headers.values() if header is not None}
    if found is None or log_ids != {found.log_id} or not found.segments:
        return headers
    first = min(found.segments)
    if headers.get(first) is None:
        raise DamagedLog(f"segment {segment_name(first)} is missing, or its header is damaged")
    return {base: header for base, header in headers.items() if base >= first}


def create(
    directory: Path | None,
    disk: Disk,
    settings: StoreSettings,
    log_id: int,
    now_ms: int,
    undo: ExitStack,
    *,
    first: int = 0,
    durability: Durability | None = None,
) -> Opened:
    """A new log, whose first segment begins at position ``first``. Raises ``BadSettings``, ``DiskFull``."""
    if settings.segment_bytes % PAGE_BYTES:
        raise BadSettings(f"segment_bytes {settings.segment_bytes} is no multiple of {PAGE_BYTES}")
    addresses = LogAddresses(first, first + settings.segment_bytes)
    undo.callback(addresses.release)
    if directory is not None:
        remove_derived_files(directory)
        (directory / "topics").mkdir(mode=0o750, exist_ok=True)
    reserve = Reserve(disk, settings.disk_reserve_bytes)
    tables = Tables(directory=directory, log_id=log_id, settings=settings, lender=reserve)
    undo.callback(tables.close)
    tables.answers = RememberedAnswers(settings.segment_bytes)
    log = CommitLog(disk, tables.native, settings.segment_bytes, log_id, addresses, durability or OnDisk())
    undo.callback(log.close_files)
    log.prepare(settings.max_frame_bytes)
    log.create_segment(first, SEGMENT_HEADER_BYTES + CONTROL_RESERVE_BYTES + _FIRST_BYTES)
    log.start_at(first + SEGMENT_HEADER_BYTES)
    report = RecoveryReport(is_new=True, end_position=first + SEGMENT_HEADER_BYTES)
    applier = Applier(tables, settings, tick_ms=now_ms, first_position=first)
    return Opened(log, tables, applier, report, reserve)


class Recovery:
    """From the files of a log to a running state, in steps: look where it ends (nothing is changed yet), catch up, and
    derive the rest."""

    def __init__(
        self,
        *,
        directory: Path | None,
        disk: Disk,
        settings: StoreSettings,
        headers: dict[int, SegmentHeader | None],
        undo: ExitStack,
        durability: Durability | None = None,
        is_replica: bool = False,
    ) -> None:
        """Opens the segments and reads what is new in them. Raises ``DamagedLog``, ``UnsupportedFormat``,
        ``NoAddressSpace``."""
        self._directory, self._disk, self._settings = directory, disk, settings
        self._undo, self._durability, self._is_replica = undo, durability or OnDisk(), is_replica
        self._reserve = Reserve(disk, settings.disk_reserve_bytes)
        self._headless = [segment for segment, header in headers.items() if header is None]
        self._headers = {segment: header for segment, header in headers.items() if header is not None}
        first = next(iter(self._headers.values()))
        self.segment_bytes, self.log_id = first.segment_bytes, first.log_id
        self.report = RecoveryReport()
        self._check_headers()
        self._files = {segment: disk.open_segment(segment, create=False) for segment in self._headers}
        for file in self._files.values():
            undo.callback(file.close)
        sizes = {segment: min(file.size_bytes, self.segment_bytes) for segment, file in self._files.items()}
        self._trusted = self._trusted_checkpoint(sizes)
        self.addresses = LogAddresses(min(sizes), max(sizes) + self.segment_bytes)
        undo.callback(self.addresses.release)
        for segment, file in self._files.items():
            file.map_into(self.addresses.pointer, segment, self.segment_bytes)
        self._reader = LogReader(self.addresses, self.segment_bytes, sizes)
        #: The segment that the last END leads to, if the log ends with one.
        self._led_to: int | None = None
        #: What is to be replayed, a piece of each segment: from its first record to behind the last one, without END.
        self.pieces = list(self._whole_pieces())

    def _whole_pieces(self) -> Iterator[tuple[int, int]]:
        position = self._first_record() if self._trusted is None else self._trusted.position
        while True:
            stop, reason = self._reader.verify(position)
            yield position, stop
            following = position // self.segment_bytes * self.segment_bytes + self.segment_bytes
            self._led_to = following if reason == END_RECORD else None
            if reason != END_RECORD or following not in self._reader.sizes:
                return
            position = following + SEGMENT_HEADER_BYTES

    @property
    def first_base(self) -> int:
        """Where the first segment begins."""
        return min(self._headers)

    @property
    def end(self) -> int:
        """Where the last whole record ends."""
        return self.pieces[-1][1]

    @property
    def place(self) -> Place | None:
        """Of a replica: how far the tables have followed; None when they are made anew."""
        return self._trusted.place or None if self._trusted is not None else None

    def refuse_damage(self) -> None:
        """Decides between a torn tail, which will be cut, and damage. Raises ``DamagedLog``."""
        # Whatever a checkpoint is worth for the tables: what it calls durable was on the disk.
        found = checkpoints.load(self._disk)
        known = found.durable_position if found is not None and found.log_id == self.log_id else 0
        durable = max(self._reader.marked_behind(self.end), known)
        if durable > self.end:
            raise damaged_at(self.end, self.segment_bytes, f"the log was on disk up to position {durable}")
        for segment in self._headless:
            if segment == self._led_to:
                # An END is written when the header of the next segment is on the disk: this one was whole.
                raise DamagedLog(
                    f"segment {segment_name(segment)} has a damaged header, and the log goes on there"
                )

    def counts(self) -> dict[int, int]:
        """How many records of each type the pieces have."""
        return self._reader.record_counts()

    def catch_up(self, end: int) -> Opened:
        """Opens the tables and brings them up to ``end``; what lies behind it is cut off. What ``derive`` makes is not
        there yet. Raises ``DamagedLog``, ``DiskFull``."""
        assert self.pieces[0][0] <= end <= self.end, "what is not read, or not whole, does not count"
        trusted = self._trusted
        tables = self._open_tables(trusted)
        self._undo.callback(tables.close)
        tables.answers = RememberedAnswers(self.segment_bytes)
        log = CommitLog(
            self._disk, tables.native, self.segment_bytes, self.log_id, self.addresses, self._durability
        )
        log.prepare(self._settings.max_frame_bytes)
        for segment, file in self._files.items():
            log.attach(segment, file)
        applier = Applier(tables, self._settings, first_position=min(self._headers))
        if trusted is not None:
            applier.base(trusted.base)
        # Made anew, the index is as empty as the tables. Otherwise it may hold keys that the log never had.
        replayer = Replayer(self.addresses, tables, applier, keeps_keys=trusted is None)
        for start, stop in self.pieces:
            if start < end:
                replayer.apply(start, min(stop, end))
                self.report.replayed_bytes += min(stop, end) - start
        self.report.replayed_records = sum(self._reader.counts)
        self._cut(log, end)
        synced = self.pieces[0][0]
        if trusted is not None:
            synced = min(synced, trusted.durable_position)
        log.sync_all(synced // self.segment_bytes * self.segment_bytes)
        log.start_at(end)
        assert log.appended_position == end, "what is appended next follows what was read"
        self.report.end_position = end
        return Opened(log, tables, applier, self.report, self._reserve)

    @property
    def keys_are_kept(self) -> bool:
        """Whether the key index holds all keys after ``catch_up``, and no others."""
        is_as_it_was = self.report.was_clean and not self.report.replayed_bytes
        return is_as_it_was or not self.report.from_checkpoint

    def _check_headers(self) -> None:
        for segment, header in self._headers.items():
            if header != SegmentHeader(segment, self.segment_bytes, self.log_id):
                raise DamagedLog(f"segment {segment_name(segment)} belongs to another log")
        bases = sorted({*self._headers, *self._being_adopted()})
        if bases != list(range(bases[0], bases[-1] + 1, self.segment_bytes)):
            raise DamagedLog("a segment is missing from the middle of the CommitLog")
        for segment in self._headless:
            if segment < bases[-1] or not is_unused(self._disk, segment):
                raise DamagedLog(f"segment {segment_name(segment)} has a damaged header")

    def _being_adopted(self) -> list[int]:
        """Segments that were being taken into the log: some may be there and others not. If the log does not lead to
        them, they are no part of it, and are dropped like everything behind its end."""
        noted = self._disk.read(ADOPTING)
        if noted is None:
            return []
        body = unseal(noted, ADOPTING_FORMAT, "the list of segments that are being taken in")
        if body is None:  # if one of them is missing, it counts as a missing segment
            return []
        first = min(self._headers)
        return [base for base in msgspec.json.decode(body, type=list[int]) if base > first]

    def _trusted_checkpoint(self, sizes: dict[int, int]) -> Checkpoint | None:
        found = checkpoints.load(self._disk)
        if found is None or found.log_id != self.log_id or not checkpoints.is_trustworthy(found):
            return None
        for base, count in found.segments.items():
            if sizes.get(base, 0) < min(count, self.segment_bytes):
                raise DamagedLog(
                    f"segment {segment_name(base)} is missing or shorter than the {count} bytes it had"
                )
        if self._is_replica and (found.place is msgspec.UNSET or found.place.end != found.position):
            return None  # the tables hold what may not count
        if not self._tables_are_whole(found):
            return None
        self.report.from_checkpoint = True
        self.report.was_clean = found.clean
        return found

    def _tables_are_whole(self, found: Checkpoint) -> bool:
        """Whether no derived file is missing or was cut; otherwise all are made again."""
        directory = self._directory
        if directory is None:
            return False
        paths = {directory / name: count for name, count in found.tables.items()}
        if not all(path.is_file() and path.stat().st_size >= count for path, count in paths.items()):
            return False
        # While a broker runs, its tables are as safe as its memory; from a clean stop on, checksums watch over them.
        return not found.clean or are_as_they_were(directory, found.tables, found.sums)

    def _open_tables(self, trusted: Checkpoint | None) -> Tables:
        if self._directory is not None:
            if trusted is None:
                # A clean checkpoint that is not trusted says that they are damaged, whatever they say.
                found = checkpoints.load(self._disk)
                if found is None or not found.clean:
                    refuse_newer_tables(self._directory)
                remove_derived_files(self._directory)
            (self._directory / "topics").mkdir(mode=0o750, exist_ok=True)
        known: dict[str, Any] = {}
        if trusted is not None:
            known = {"gaps": trusted.base.gaps, "first_id": trusted.base.first_id, "empty": trusted.empty}
        return Tables(
            directory=self._directory,
            log_id=self.log_id,
            settings=self._settings,
            lender=self._reserve,
            **known,
        )

    def _first_record(self) -> int:
        first = min(self._headers) + SEGMENT_HEADER_BYTES
        is_long_enough = self._reader.sizes[min(self._headers)] >= SEGMENT_HEADER_BYTES + RECORD_HEAD_BYTES
        kind = self.addresses.view(first + 8, 1)[0] if is_long_enough else 0
        if min(self._headers) > 0 and kind != RecordType.BASE:
            raise DamagedLog(
                f"the start of the CommitLog, before {segment_name(min(self._headers))}, is missing"
            )
        return first

    def _cut(self, log: CommitLog, end: int) -> None:
        """Cuts off what follows the end."""
        segment = end // self.segment_bytes * self.segment_bytes
        later = [base for base in self._reader.sizes if base > segment]
        assert all(base >= end for base in self._headless), "what is dropped lies behind the end"
        for base in [*later, *self._headless]:
            log.drop(base)
        garbage_bytes = self._reader.garbage_behind(end)
        if garbage_bytes or later:
            self.report.torn_tail_position = end
            self.report.torn_tail_bytes = garbage_bytes
            log.cut(end)
