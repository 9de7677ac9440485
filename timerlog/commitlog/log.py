"""The CommitLog: the one truth, in append-only segments.

A position is a byte's offset in the whole log; segment ``n`` holds positions ``n * segment_bytes`` and up, and starts
with a 64-byte header. Records are staged in memory, handed to the operating system by ``flush`` and durable once a
``SyncTicket`` has run: many appends share one fdatasync (group commit; D. DeWitt et al., "Implementation Techniques for
Main Memory Database Systems", SIGMOD 1984). After a write or a sync that failed the log accepts nothing more: what the
system keeps of it then is not known (A. Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020).

Disk blocks are allocated *before* a message is accepted. The last part of what is allocated is kept for acks and other
control records, so that these go on when the disk is full; purging may spend the spare then.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tickwheel_native import Buffer
from tickwheel_native import log as native_log
from tickwheel_native import store as native_store
from timerlog.commitlog.addresses import LogAddresses
from timerlog.commitlog.durability import Durability, Link, OnDisk, SyncTicket
from timerlog.commitlog.segments import pack_segment_header
from timerlog.errors import BadSettings, DiskFull, LogFailed, StoreError
from timerlog.files.disk import Disk, SegmentFile
from timerlog.files.held_space import Lender, Spare, allocate_lent
from timerlog.layout import (
    MAX_BATCH,
    MESSAGE_HEAD_BYTES,
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordType,
)

ALLOCATION_STEP_BYTES: Final = 16 * 1024 * 1024
"""A segment grows by as much as it has, and by this at most."""
_FIRST_STEP_BYTES: Final = 1024 * 1024
CONTROL_RESERVE_BYTES: Final = 1024 * 1024
_MARK: Final = struct.Struct("<Q")  # the durable position
#: On a full disk not every sync is marked.
_MARK_STEP_BYTES: Final = 4096


#: What the heads of a frame's messages take at most.
_HEADS_BYTES: Final = MAX_BATCH * (MESSAGE_HEAD_BYTES + 8)


def _growth_bytes(size_bytes: int) -> int:
    """By how much a segment file of this length grows."""
    return max(_FIRST_STEP_BYTES, min(size_bytes, ALLOCATION_STEP_BYTES))


def largest_frame_bytes(segment_bytes: int) -> int:
    """The largest frame whose messages fit into a segment; below 0 for one in which nothing has room."""
    return segment_bytes - _HEADS_BYTES - CONTROL_RESERVE_BYTES - 128


@dataclass(slots=True)
class CommitLog:
    """Appends, flushes and syncs. Created by ``timerlog.recovery.opening``, which finds where the log ends.

    ``native`` is the ``tw_store`` that the C functions share; this class owns its log and staging fields.
    """

    disk: Disk
    native: Any
    segment_bytes: int
    log_id: int
    addresses: LogAddresses
    durability: Durability = field(default_factory=OnDisk)
    durable_position: int = 0
    syncs: int = 0
    #: What the BASE record of a new segment says.
    base_payload: Callable[[], bytes] | None = None
    _segments: dict[int, SegmentFile] = field(default_factory=dict)
    _staging: Any = None
    _dirty: bool = False
    _failed: LogFailed | None = None
    #: Gives disk space when the disk is full.
    lender: Lender | None = None
    #: Grows with the log.
    spare: Spare | None = None
    _is_lent: bool = False
    _marked_position: int = 0
    _ticket_position: int = 0

    # -- opening --

    def prepare(self, max_frame_bytes: int) -> None:
        """Allocates the staging buffer, big enough for the largest frame."""
        largest = largest_frame_bytes(self.segment_bytes)
        if max_frame_bytes > largest:
            raise BadSettings(
                f"segment_bytes {self.segment_bytes} is too small for max_frame_bytes {max_frame_bytes}: use at least "
                f"{self.segment_bytes + max_frame_bytes - largest}, or lower max_frame_bytes to {max(0, largest)} "
                "(an existing directory keeps its segment size)"
            )
        staging = np.empty(max_frame_bytes + _HEADS_BYTES, np.uint8)
        self._staging = staging.data
        native_store.use_staging(self.native, staging)
        native_log.read_from(self.native, self.addresses.pointer)

    def attach(self, base: int, file: SegmentFile) -> None:
        """Makes an existing segment readable."""
        assert base % self.segment_bytes == 0, "a segment begins at a multiple of its size"
        self._segments[base] = file
        file.map_into(self.addresses.pointer, base, self.segment_bytes)

    def start_at(self, position: int) -> None:
        """Continues appending at a position inside the last attached segment."""
        assert position % 8 == 0, "records begin at multiples of 8"
        assert position // self.segment_bytes * self.segment_bytes == max(self._segments)
        assert position % self.segment_bytes >= SEGMENT_HEADER_BYTES, "no record lies in a segment's header"
        assert self.durable_position <= position, "what is known to count is not written again"
        assert not self.native.staging_bytes, "what is staged is written before the log begins elsewhere"
        self.native.staging_position = position
        self.native.staging_bytes = 0
        self.native.log_readable = position
        self.durable_position = self._ticket_position = position
        self._set_limits()

    def create_segment(self, base: int, bytes_needed: int = 0) -> SegmentFile:
        """Creates a segment file with its header. It begins with a step of growth of the file before it, or with
        ``bytes_needed`` where the disk has no more. On ``DiskFull`` nothing is left behind. On ``LogFailed`` a file
        with a part of its header may be: the next start drops it."""
        self._check_failed()
        self._reach(base + self.segment_bytes)
        file = self.disk.open_segment(base, create=True)
        before = self._segments.get(base - self.segment_bytes)
        step_bytes = _growth_bytes(0 if before is None else before.size_bytes)
        wanted = min(self.segment_bytes, max(step_bytes, bytes_needed))
        try:
            self._allocate(file, wanted, bytes_needed or wanted)
            self._write(file, 0, pack_segment_header(base, self.segment_bytes, self.log_id))
            self._sync_created(file)
        except BaseException as error:
            file.close()
            if isinstance(error, DiskFull):
                self.disk.remove_segment(base)
            raise
        self.attach(base, file)
        return file

    def _reach(self, end: int) -> None:
        """Gives the log addresses up to ``end``. Raises ``NoAddressSpace``, ``LogAtItsEnd``: then nothing has
        changed."""
        first = min(self._segments, default=end - self.segment_bytes)
        self.addresses.reach(first, end, self._map_segments)
        native_log.read_from(self.native, self.addresses.pointer)

    def _map_segments(self, pointer: Any) -> None:
        for base, file in self._segments.items():
            file.map_into(pointer, base, self.segment_bytes)

    def _sync_created(self, file: SegmentFile) -> None:
        try:
            self.durability.created(self.disk, file)
        except OSError as error:
            self._failed = LogFailed(f"syncing a new segment failed: {error.strerror}")
            raise self._failed from error

    # -- positions --

    @property
    def appended_position(self) -> int:
        return int(self.native.staging_position + self.native.staging_bytes)

    @property
    def telling_position(self) -> int:
        """The state as it is now follows from the log up to here: behind it lie at most marks."""
        return self.appended_position if self._dirty else self._ticket_position

    @property
    def room_bytes(self) -> int:
        """What can be appended before the log must grow."""
        return max(0, int(self.native.segment_end) - self.appended_position)

    @property
    def segments(self) -> list[int]:
        return sorted(self._segments)

    def _current(self) -> tuple[int, SegmentFile]:
        base = int(self.native.staging_position) // self.segment_bytes * self.segment_bytes
        return base, self._segments[base]

    def _set_limits(self) -> None:
        base, file = self._current()
        # An END record must always fit behind the last one.
        end = base + min(self.segment_bytes, file.size_bytes) - RECORD_HEAD_BYTES
        self.native.segment_end = end
        self.native.message_limit = max(base, end - CONTROL_RESERVE_BYTES)

    # -- appending --

    def append(self, record: RecordType, aux: int, payload: Buffer) -> int:
        """Stages one control record; returns its position. Raises ``DiskFull`` when even the reserve is used up."""
        position = native_log.append(self.native, record, aux, payload)
        if position < 0:
            self.flush()
            size_bytes = memoryview(payload).nbytes
            self.make_room(size_bytes + 2 * RECORD_HEAD_BYTES, reserve=0)
            position = native_log.append(self.native, record, aux, payload)
            if position < 0:
                raise StoreError(f"a control record of {size_bytes} bytes does not fit into a segment")
        assert position % 8 == 0, "records begin at multiples of 8"
        assert self.appended_position <= self.native.segment_end, "no record crosses the end of its segment"
        self._dirty = True
        return position

    def touched(self) -> None:
        """Says that C code has staged messages, so the next group commit has work."""
        self._dirty = True

    def ensure_room(self, bytes_needed: int) -> None:
        """After this, control records of so many bytes (heads included) can be appended without an error."""
        staged = int(self.native.staging_bytes)
        if staged + bytes_needed > self.native.staging_capacity:
            self.flush()
        if self.appended_position + bytes_needed > self.native.segment_end:
            self.flush()
            self.make_room(bytes_needed, reserve=0)

    @property
    def largest_record_bytes(self) -> int:
        """What one record can take at most, padding included."""
        whole = self.segment_bytes - SEGMENT_HEADER_BYTES - CONTROL_RESERVE_BYTES - RECORD_HEAD_BYTES - 64
        return min(int(self.native.staging_capacity), whole)

    def make_message_room(self, bytes_needed: int) -> None:
        """After this, so many bytes of messages can be staged at once. Raises ``DiskFull``."""
        self.flush()
        if self.appended_position + bytes_needed > self.native.message_limit:
            self.make_room(bytes_needed)

    def make_room(self, bytes_needed: int, reserve: int = CONTROL_RESERVE_BYTES) -> None:
        """Allocates disk blocks for ``bytes_needed`` more, in this segment or a new one. Raises ``DiskFull``."""
        base, file = self._current()
        # Behind the last record there is always room for an END.
        needed = self.appended_position + bytes_needed + reserve + RECORD_HEAD_BYTES
        if needed <= base + self.segment_bytes:
            wanted = min(
                self.segment_bytes, max(needed - base, file.size_bytes + _growth_bytes(file.size_bytes))
            )
            self._allocate(file, wanted, min(needed - base + 4096, self.segment_bytes))
            self._set_limits()
            return
        self._roll(base, bytes_needed)

    def _allocate(self, file: SegmentFile, wanted_bytes: int, least_bytes: int) -> None:
        """Makes a segment as long as it should be, or at least as long as it must be. Raises ``DiskFull``."""
        for size_bytes in (wanted_bytes, least_bytes):
            with suppress(DiskFull):
                file.allocate(size_bytes)
                self._is_lent = False
                if self.spare is not None and not self.spare.is_at_limit:
                    self.spare.cover(self.disk_bytes())
                return
        missing_bytes = max(0, least_bytes - file.size_bytes)
        allocate_lent((self.lender,), missing_bytes, lambda: file.allocate(least_bytes))
        self._is_lent = True

    @contextmanager
    def spending(self, lender: Lender | None) -> Iterator[None]:
        """Inside, the log grows out of this when the disk is full."""
        usual, self.lender = self.lender, lender
        try:
            yield
        finally:
            self.lender = usual

    def roll(self) -> None:
        """Goes on in a new segment. Raises ``DiskFull``."""
        self.flush()
        self._roll(self._current()[0], 0)

    def following_bases(self, count: int) -> list[int]:
        """Where the next segments will lie."""
        base, _ = self._current()
        return [base + self.segment_bytes * (number + 1) for number in range(count)]

    def adopt(
        self, sources: Sequence[Path], payload: bytes, job: bytes, fills: Sequence[tuple[int, int]] = ()
    ) -> int:
        """Makes files the next segments, whose headers say so already, and goes on behind them; returns where the first
        file lies. ``fills``: see ``Link``. All of it counts as soon as the log is on the disk up to here, and none of
        it before: the ADOPTED record with ``payload`` says it. Raises ``DiskFull``, ``OSError``: then nothing has
        changed."""
        self.ensure_room(len(payload) + 4 * RECORD_HEAD_BYTES)
        self.flush()
        bases = self.following_bases(len(sources))
        self._reach(bases[-1] + 2 * self.segment_bytes)
        linked: list[int] = []
        files: list[SegmentFile] = []
        try:
            for base, source in zip(bases, sources, strict=True):
                self.disk.adopt_segment(base, source)
                linked.append(base)
            self.disk.sync_directory()
            for base in bases:
                files.append(self.disk.open_segment(base, create=False))
            sizes = tuple(source.stat().st_size for source in sources)
            following = bases[-1] + self.segment_bytes + SEGMENT_HEADER_BYTES
            link = Link(following, job, sizes, tuple(fills))
            self._roll(bases[-1], 0, before_end=lambda: self._take_over(bases, files, payload), link=link)
        except (DiskFull, OSError):  # not LogFailed: what was written may count
            for file in files:
                file.close()
            for base in linked:
                self.disk.remove_segment(base)
            raise
        return bases[0]

    def _take_over(self, bases: Sequence[int], files: Sequence[SegmentFile], payload: bytes) -> None:
        for base, file in zip(bases, files, strict=True):
            self.attach(base, file)
        position = native_log.append(self.native, RecordType.ADOPTED, 0, payload)
        assert position >= 0, "what makes a job count has the room that was made for it"

    def _roll(
        self,
        base: int,
        bytes_needed: int,
        before_end: Callable[[], None] = lambda: None,
        link: Link | None = None,
    ) -> None:
        payload = self.base_payload() if self.base_payload is not None else b""
        rest = SEGMENT_HEADER_BYTES + bytes_needed + CONTROL_RESERVE_BYTES + 4 * RECORD_HEAD_BYTES
        if rest + len(payload) > self.segment_bytes or len(payload) + 64 > self.native.staging_capacity:
            payload = b""  # what is asked for must fit; the segment before cannot be purged then
        self._make_room_for_end()
        self.create_segment(base + self.segment_bytes, rest + len(payload))
        before_end()
        self.native.segment_end += RECORD_HEAD_BYTES
        position = native_log.append(self.native, RecordType.END, 0)
        assert position >= 0, "an END fits behind the last record"
        self._dirty = True
        self.flush()
        if link is not None:
            self.durability.linked(link)
        self.native.staging_position = base + self.segment_bytes + SEGMENT_HEADER_BYTES
        assert link is None or link.position == self.native.staging_position, (
            "followers go on where this log does"
        )
        self.native.log_readable = self.native.staging_position
        self._set_limits()
        self._write_base(payload)

    def _make_room_for_end(self) -> None:
        """A file may end right behind its last record: a copy that was cut, or a replica's after a power loss. Raises
        ``DiskFull``."""
        base, file = self._current()
        needed_bytes = self.appended_position + RECORD_HEAD_BYTES - base
        if file.size_bytes < needed_bytes:
            self._allocate(file, min(needed_bytes + 4096, self.segment_bytes), needed_bytes)
            self._set_limits()

    def _write_base(self, payload: bytes) -> None:
        if payload:
            native_log.append(self.native, RecordType.BASE, 0, payload)
            self.flush()
            self._dirty = True

    def complete_roll(self) -> None:
        """After a start: writes the BASE record that a segment should begin with, if a crash came just before it."""
        position = self.appended_position
        if position % self.segment_bytes == SEGMENT_HEADER_BYTES and position > self.segment_bytes:
            payload = self.base_payload() if self.base_payload is not None else b""
            if position + len(payload) + 2 * RECORD_HEAD_BYTES <= self.native.message_limit:
                self._write_base(payload)

    def begins_with_base(self, base: int) -> bool:
        """Whether a segment can be understood without those before it."""
        start = base + SEGMENT_HEADER_BYTES
        if base not in self._segments or start + RECORD_HEAD_BYTES > self.native.staging_position:
            return False
        return self.addresses.view(start + 8, 1)[0] == RecordType.BASE

    def detach(self, base: int) -> SegmentFile:
        """Takes a segment out of the log, for its file to be deleted: nothing may refer to it any more."""
        assert base == min(self._segments), "the oldest segment goes first"
        assert base + self.segment_bytes <= self.native.staging_position, "the segment that is written stays"
        self.addresses.unmap(base, self.segment_bytes)
        return self._segments.pop(base)

    def flush(self) -> int:
        """Hands what is staged to the operating system; returns the position reached."""
        self._check_failed()
        count = int(self.native.staging_bytes)
        if count:
            base, file = self._current()
            position = int(self.native.staging_position)
            data = self._staging[:count]
            assert position - base + count <= file.size_bytes, "what is written has disk blocks"
            self._write(file, position - base, data)
            self.native.staging_position = position + count
            self.native.staging_bytes = 0
            self.native.log_readable = position + count
            self.durability.wrote(file, position, data)
        return int(self.native.staging_position)

    def _write(self, file: SegmentFile, offset: int, data: Buffer) -> None:
        try:
            file.write(offset, data)
        except LogFailed as error:
            self._failed = error
            raise

    def _check_failed(self) -> None:
        if self._failed is not None:
            raise type(self._failed)(str(self._failed))

    # -- as a replica --

    def receive(self, position: int, data: Buffer) -> None:
        """Writes what the log's owner wrote, where it stands in every replica: behind what is there, or at the start of
        the next segment. Raises ``DiskFull``: then nothing was written."""
        self._check_failed()
        base = position // self.segment_bytes * self.segment_bytes
        end = position + memoryview(data).nbytes
        assert position == self.appended_position or base not in self._segments, "a replica has no holes"
        assert position - base >= SEGMENT_HEADER_BYTES, "no record lies in a segment's header"
        assert not self.native.staging_bytes, "a replica writes nothing of its own"
        if base not in self._segments:
            self.create_segment(base, end - base)
        file = self._segments[base]
        if end - base > file.size_bytes:
            wanted = min(end - base + _growth_bytes(file.size_bytes), self.segment_bytes)
            self._allocate(file, wanted, end - base)
        self._write(file, position - base, data)
        self.native.staging_position = self.native.log_readable = end
        self.durable_position = end  # only what counts is received

    def link(self, bases: Sequence[int]) -> None:
        """Takes files that have the names of the next segments into the log, which goes on behind them. Raises
        ``DiskFull``."""
        self._check_failed()
        assert bases[0] == max(self._segments) + self.segment_bytes, "files of a job follow the last segment"
        following = bases[-1] + self.segment_bytes
        self._reach(following + self.segment_bytes)
        for base in bases:
            self.attach(base, self.disk.open_segment(base, create=False))
        self.create_segment(following)
        end = following + SEGMENT_HEADER_BYTES
        self.native.staging_position = self.native.log_readable = end
        self.durable_position = end

    def write_back(self, position: int, data: Buffer) -> None:
        """Writes what stood there once, over what this disk has made of it. Raises ``LogFailed``; the log goes on."""
        assert position + memoryview(data).nbytes <= self.durable_position, "only what counts stays as it is"
        base = position // self.segment_bytes * self.segment_bytes
        self._segments[base].write(position - base, data)

    def own(self) -> None:
        """From here on this process writes the log, behind what it has received."""
        self.start_at(self.appended_position)

    # -- durability --

    def begin_sync(self) -> SyncTicket | None:
        """Flushes and says what to sync; None when nothing was appended since the last ticket."""
        if not self._dirty:
            return None
        position = self.flush()
        assert position >= self._ticket_position, "a log does not become shorter"
        self._dirty = False
        self._ticket_position = position
        return self.durability.ticket(position, int(self.native.next_id))

    def finish_sync(self, ticket: SyncTicket) -> int:
        """Takes note that a ticket has run; returns the durable position. Raises ``LogFailed``.

        The mark that this leaves in the log lets recovery tell a torn tail from damage: whatever lies before a marked
        position was on the disk once.
        """
        assert ticket.position <= self._ticket_position, "a ticket that has run was given out before"
        self.syncs += 1
        self.durable_position = max(self.durable_position, ticket.position)
        assert self.durable_position <= self.appended_position, "only what was appended can be durable"
        is_due = not self._is_lent or self.durable_position >= self._marked_position + _MARK_STEP_BYTES
        if is_due and not self.durability.is_shared:
            self._mark()
        # Before it is told: readers of the files then see at once what was acknowledged.
        self.flush()
        return self.durable_position

    def _mark(self) -> None:
        self._marked_position = self.durable_position
        was_dirty = self._dirty
        with suppress(DiskFull), self.spending(None):  # it helps recovery, but nothing depends on it
            self.append(RecordType.MARK, 0, _MARK.pack(self.durable_position))
        self._dirty = was_dirty

    def drop(self, base: int) -> None:
        """Removes a segment that holds nothing that was ever synced."""
        file = self._segments.pop(base, None)
        if file is not None:
            file.close()
        self.disk.remove_segment(base)
        self.disk.sync_directory()

    def cut(self, end: int) -> None:
        """Forgets what lies behind ``end`` in its segment: a torn tail."""
        base = end // self.segment_bytes * self.segment_bytes
        self._segments[base].cut(end - base)

    def sync_all(self, from_base: int) -> None:
        """Syncs the segments from ``from_base`` on: after a crash, what was read back need not be on disk yet."""
        for base, file in self._segments.items():
            if base >= from_base:
                file.sync()

    def sizes(self) -> dict[int, int]:
        """Base → size in bytes of each segment."""
        return {base: file.size_bytes for base, file in self._segments.items()}

    def disk_bytes(self) -> int:
        return sum(file.size_bytes for file in self._segments.values())

    def is_deleted(self) -> bool:
        """Whether the file of the segment that is being written was deleted."""
        return bool(self._segments) and self._segments[max(self._segments)].is_deleted()

    def close_files(self) -> None:
        for file in self._segments.values():
            file.close()
        self._segments.clear()

    def close(self) -> None:
        self.close_files()
        self.addresses.release()
