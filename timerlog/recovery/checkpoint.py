"""The checkpoint: up to which position the derived tables hold everything, so that a start need not read the whole log.

The tables change in place, and the operating system writes their pages whenever it likes. So they can be trusted

* after a clean shutdown, which syncs them and says so here, with their checksums, or
* within the same boot of the machine: a killed process loses nothing that it had written, and because every change
  is handed to the log *before* it is made in a table, replaying from here makes the tables right again.

After a power loss neither holds, and the tables are rebuilt from the log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tickwheel_native import crc32c
from timerlog.commitlog.log import CommitLog
from timerlog.errors import DECODE_ERRORS, DiskFull, UnsupportedFormat
from timerlog.files.disk import Disk
from timerlog.files.held_space import Reserve, Spare, allocate_lent
from timerlog.files.window import PAGE_BYTES
from timerlog.layout import FORMAT_VERSION, NEWEST_RECORD
from timerlog.tables.base_record import Base, capture
from timerlog.tables.tables import Tables

NAME: Final = "checkpoint"
#: So much more in the log, or so long after the last one, and there is another.
EVERY_BYTES: Final = 16 * 1024 * 1024
EVERY_MS: Final = 10_000
MAGIC: Final = b"TWCHECK1"
#: Of the checkpoint alone: one that an older version wrote is not used, and the log is read instead.
VERSION: Final = 3
#: The newest type of record that all programs know which read this version.
_RECORDS_OF_VERSION: Final = 26


class Place(msgspec.Struct, frozen=True, array_like=True):
    """How far a replica has followed: what ``timerlog.replication.rule.State`` says of its log up to ``end``, and which
    record of the replicated log said so."""

    end: int
    offset: int
    term: int
    node: int
    seq: int
    chain: int


def version_for(newest_record: int) -> int:
    """The version of a checkpoint of a log that has had records up to a type: of programs that do not know it, none
    reads the checkpoint. Behind ``VERSION`` that is the type itself."""
    return newest_record if newest_record > _RECORDS_OF_VERSION else VERSION


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT_VERSION
    version: int = VERSION
    log_id: int
    position: int  #: the tables hold every record before it
    durable_position: int
    clean: bool
    boot_id: str
    base: Base
    segments: dict[int, int] = {}  #: base → size in bytes; files only grow, so a shorter one was damaged
    tables: dict[str, int] = {}  #: file name → size in bytes, of the derived files
    sums: dict[str, int] = {}  #: of a clean one: file name → checksum, of the derived files
    #: Message ids from, to below which all messages are gone: see ``timerlog.tables.empty_rows``.
    empty: list[tuple[int, int]] = []
    #: Of a replica. An owner has none: what it appended last may not count.
    place: Place | msgspec.UnsetType = msgspec.UNSET


def boot_id() -> str:
    """Names this boot of the machine; empty where the system does not tell (then only clean checkpoints count)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pack(checkpoint: Checkpoint) -> bytes:
    """The file's content."""
    body = msgspec.msgpack.encode(checkpoint)
    return MAGIC + struct.pack("<I", crc32c(body)) + body


class _Versions(msgspec.Struct, frozen=True):
    """What can be understood of any version's checkpoint."""

    format: int
    version: int


def load(disk: Disk) -> Checkpoint | None:
    """The last checkpoint; None when there is none or it is damaged (it is never needed, only useful). Raises
    ``UnsupportedFormat`` for one that a newer version wrote."""
    data = disk.read(NAME)
    if data is None or data[:8] != MAGIC or len(data) < 12:
        return None
    body = data[12:]
    if crc32c(body) != struct.unpack("<I", data[8:12])[0]:
        return None
    try:
        found = msgspec.msgpack.decode(body, type=_Versions)
        newest = version_for(NEWEST_RECORD)
        if found.format > FORMAT_VERSION or found.version > newest:
            raise UnsupportedFormat(
                f"the checkpoint has format {found.format}.{found.version}; this version reads up to "
                f"{FORMAT_VERSION}.{newest}"
            )
        if found.format != FORMAT_VERSION or found.version < VERSION:
            return None
        return msgspec.msgpack.decode(body, type=Checkpoint)
    except DECODE_ERRORS:
        return None


def is_trustworthy(checkpoint: Checkpoint) -> bool:
    return checkpoint.clean or (checkpoint.boot_id != "" and checkpoint.boot_id == boot_id())


class Checkpoints:
    """When a running store makes one, and what it says."""

    def __init__(
        self,
        *,
        disk: Disk,
        log: CommitLog,
        tables: Tables,
        tick_ms: Callable[[], int],
        reserve: Reserve,
        spare: Spare,
        now_ms: int,
    ) -> None:
        """``tick_ms``: the last tick that the tables hold."""
        self._disk, self._log, self._tables, self._tick_ms = disk, log, tables, tick_ms
        #: Of a replica: how far it has followed.
        self.place: Place | msgspec.UnsetType = msgspec.UNSET
        #: Of a replica: the segments before it go, also after a start.
        self.trimmed = 0
        self._lenders = (reserve, spare)
        #: The size of the last one: of everything small.
        self.size_bytes = 0
        #: What the last one covers, and when it was made.
        self._position = 0
        self._made_ms = now_ms

    def begin_changes(self) -> None:
        """From here on the tables change: a clean checkpoint must be gone from the disk before that."""
        try:
            self.save(clean=False, durable=True)
        except DiskFull:
            # One that is not clean may stay; without any, a start reads the whole log. That of a follower must go when
            # it becomes the owner: it says that all that the tables hold counts.
            found = load(self._disk)
            becomes_owner = self.place is msgspec.UNSET
            if found is not None and (found.clean or (becomes_owner and found.place is not msgspec.UNSET)):
                self._disk.remove(NAME)

    def keep(self, now_ms: int, *, table_is_gone: bool) -> bool:
        """Makes one if it is time; whether there is a new one. ``table_is_gone``: of those that the last one names."""
        grown = self._log.appended_position - self._position
        assert grown >= 0, "a log does not become shorter"
        is_old = now_ms - self._made_ms > EVERY_MS or table_is_gone
        if not (grown > EVERY_BYTES or (grown and is_old)):
            return False
        try:
            self.save(clean=False, durable=False)
        except DiskFull:
            return False  # a start would replay a little more
        self._position, self._made_ms = self._log.appended_position, now_ms
        return True

    def age_ms(self, now_ms: int) -> int:
        """How old the last one is; 0 if nothing has changed since."""
        has_changed = self._log.appended_position > self._position
        return max(0, now_ms - self._made_ms) if has_changed else 0

    def make(self, *, clean: bool = False) -> Checkpoint:
        """What one would say now."""
        tables, position = self._tables, self._log.flush()
        base = capture(tables, self._tick_ms())
        assert position >= self._log.durable_position, "a checkpoint covers all that is durable"
        assert base.newest_record <= NEWEST_RECORD, "this version knows all records that it has applied"
        is_behind = self.place is not msgspec.UNSET and self.place.end > position
        assert not is_behind, "a replica has followed no further than its log reaches"
        last = (position - 1) // self._log.segment_bytes * self._log.segment_bytes
        segments = {base: size for base, size in self._log.sizes().items() if base >= self.trimmed}
        assert last in segments, "a checkpoint names the segment in which it ends"
        return Checkpoint(
            version=version_for(base.newest_record),
            log_id=tables.log_id,
            position=position,
            durable_position=self._log.durable_position,
            clean=clean,
            boot_id=boot_id(),
            base=base,
            segments=segments,
            tables=tables.sizes(),
            sums=tables.sums() if clean else {},
            empty=tables.empty.stretches,
            place=self.place,
        )

    def make_room(self) -> None:
        """Prepares for writing one, also on a full disk. Raises ``DiskFull``."""
        self._prepare(len(pack(self.make())) + PAGE_BYTES)

    def save(self, *, clean: bool, durable: bool) -> None:
        """Raises ``DiskFull``."""
        content = pack(self.make(clean=clean))
        self._prepare(len(content))
        self._disk.replace(NAME, content, durable=durable)

    def _prepare(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

        def prepare() -> None:
            self._disk.prepare(NAME, size_bytes)

        try:
            prepare()
        except DiskFull:
            allocate_lent(self._lenders, size_bytes, prepare)
