"""A log that is there already, of which a cluster's log is to be made: a backup, a stopped broker's, or a replica's.

It is read as a start would read it, but all of it, and nothing in it is changed: where it ends, whether all records are
whole, and whether they make sense to this version, which is tried out on tables of their own. Then its bytes are had
in batches of whole records. The log is never in memory as a whole.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from tickwheel_native import crc32c, rebuild
from tickwheel_native import log as native_log
from timerlog.commitlog.reader import padded
from timerlog.commitlog.segments import read_segment_header
from timerlog.errors import BadDirectory, BadSettings, DamagedLog, DamagedReplica, DiskFull
from timerlog.files.disk import FileDisk, check_data_directory
from timerlog.files.lock import DirectoryLock
from timerlog.files.replica_mark import ReplicaMark, mark_replica, read_mark
from timerlog.layout import RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES, RecordType
from timerlog.maintenance import backup as backups
from timerlog.recovery import timeline
from timerlog.recovery.opening import Recovery, needed
from timerlog.recovery.replay import Replayer
from timerlog.recovery.timeline import Mark
from timerlog.replication.genesis import SHARED, Genesis, Upload, genesis_of, pack_genesis, unpack_genesis
from timerlog.replication.record import MAX_BODY_BYTES, Range
from timerlog.settings import StoreSettings
from timerlog.tables.answers import RememberedAnswers
from timerlog.tables.apply import Applier
from timerlog.tables.tables import Tables

#: Of a batch, unless one record alone is larger: of the shared log it is one record.
BATCH_BYTES: Final = MAX_BODY_BYTES
_PIECE_BYTES: Final = 8 * 1024 * 1024
_ROWS: Final = 1 << 20


class SourceKind(Enum):
    """What a directory is."""

    BROKER = "broker"
    BACKUP = "backup"
    REPLICA = "replica"


@dataclass(slots=True)
class _Place:
    """What the directory says of itself. ``mark``: of a log that has forgotten what it told."""

    kind: SourceKind
    disk: FileDisk
    settings: StoreSettings
    replica: ReplicaMark | None = None
    mark: Mark | None = None


class Source:
    """Use ``open_source``. ``kind``: of its directory; ``settings``: with which it was read."""

    def __init__(self, place: _Place, recovery: Recovery, on_read: Callable[[int], object]) -> None:
        """Reads all of it. Raises ``DamagedLog``, ``UnsupportedFormat``, ``BadSettings``, ``DiskFull``."""
        self.kind = place.kind
        self.settings = msgspec.structs.replace(place.settings, segment_bytes=recovery.segment_bytes)
        self._place, self.log_id = place, recovery.log_id
        self._addresses, self._counts = recovery.addresses, native_log.new_counts()
        last = len(recovery.pieces) - 1
        #: From the first record of each segment to behind the last, which is an END where the log goes on.
        self.pieces = [
            (start, stop if number == last else stop + RECORD_HEAD_BYTES)
            for number, (start, stop) in enumerate(recovery.pieces)
        ]
        assert self.first % recovery.segment_bytes == SEGMENT_HEADER_BYTES, "all of the log is read"
        self.messages = recovery.counts().get(RecordType.MESSAGE, 0)
        self._last_ms = self._try_out(recovery, on_read)
        self.chain = self._checksum()

    @property
    def first(self) -> int:
        """Where its first record stands."""
        return self.pieces[0][0]

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.pieces[-1][1]

    @property
    def size_bytes(self) -> int:
        return sum(stop - start for start, stop in self.pieces)

    def left_bytes(self, position: int) -> int:
        """How much of it lies from a position on."""
        return sum(max(0, stop - max(start, position)) for start, stop in self.pieces)

    def upload_as(self, cluster: str, now_ms: int) -> Upload:
        """How the log of a cluster begins with it. A broker that goes on as a cluster goes on with its log; a cluster
        made of anything else has a log of its own, and another timeline."""
        mark, log_id = self._place.mark, self.log_id
        if self.kind is not SourceKind.BROKER:
            since_ms = self._last_ms if mark is None else mark.since_ms
            mark, log_id = timeline.new_mark(since_ms or now_ms), int.from_bytes(os.urandom(8))
        genesis = genesis_of(cluster, 0, log_id, self.settings)
        if mark is not None:
            genesis = msgspec.structs.replace(genesis, timeline=mark.timeline, since_ms=mark.since_ms)
        return Upload(genesis=genesis, first=self.first, end=self.end, chain=self.chain)

    def can_go_on_as(self, found: Upload, wanted: Upload) -> bool:
        """Whether an upload that was begun is one of this log, with these settings."""
        if found.genesis.log_number == self.log_id and self.kind is SourceKind.BACKUP:
            return False  # it was the broker's own, which must not go on beside the cluster
        names = ("log_id", "timeline", "since_ms")
        same = {name: getattr(found.genesis, name) for name in names}
        return found == msgspec.structs.replace(
            wanted, genesis=msgspec.structs.replace(wanted.genesis, **same)
        )

    def give_away(self, genesis: Genesis) -> None:
        """No broker of its own starts on the directory any more, if the cluster goes on with its log: two pasts would
        come of it. Raises ``DiskFull``."""
        if self.kind is SourceKind.BROKER and genesis.log_number == self.log_id:
            content = pack_genesis(genesis).decode()
            mark = ReplicaMark(genesis.cluster, genesis.shard, genesis.log_id, content)
            mark_replica(self._place.disk, mark)

    def batches(self, position: int) -> Iterator[Range]:
        """The bytes from a position on, at which a record begins; each batch in one segment, and of whole records."""
        assert self.first <= position <= self.end, "what is had from a log lies in it"
        for start, stop in self.pieces:
            at = max(start, position)
            while at < stop:
                end = self._batch_end(at, stop)
                yield at, bytes(self._addresses.view(at, end - at))
                at = end

    def _batch_end(self, at: int, stop: int) -> int:
        if stop - at <= BATCH_BYTES:
            return stop
        end, _ = native_log.verify(self._addresses.pointer, at, at + BATCH_BYTES, self._counts)
        if end == at:
            end += padded(int.from_bytes(self._addresses.view(at + 4, 4), "little"))
        return int(end)

    def _checksum(self) -> int:
        """Of all of it, as the rule of replication counts it."""
        chain = 0
        for start, stop in self.pieces:
            for at in range(start, stop, _PIECE_BYTES):
                chain = crc32c(self._addresses.view(at, min(_PIECE_BYTES, stop - at)), chain)
        return chain

    def _try_out(self, recovery: Recovery, on_read: Callable[[int], object]) -> int:
        """Replays it, as each node will; returns the last moment that it knows, in epoch ms."""
        with _own_tables(recovery.log_id, self.settings) as tables:
            applier = Applier(tables, self.settings, first_position=recovery.first_base)
            replayer = Replayer(recovery.addresses, tables, applier, keeps_keys=False)
            for start, stop in recovery.pieces:
                replayer.apply(start, stop)
                on_read(stop - start)
            if not rebuild.topics(tables.native):
                raise DamagedLog("a topic names a message that the log does not hold")
            created = [
                int(tables.rows["created_ms"][start:stop].max(initial=0))
                for start, stop in tables.spans(int(tables.native.first_id), tables.next_id, _ROWS)
            ]
            return max([applier.tick_ms, *created])


@contextmanager
def open_source(
    directory: Path, settings: StoreSettings, on_read: Callable[[int], object] = lambda read_bytes: None
) -> Iterator[Source]:
    """Reads the log in a directory, and keeps brokers and nodes out of it meanwhile. ``settings``: what the cluster is
    to have; 0 as ``segment_bytes`` is whatever the log has. ``on_read`` is told how much was read.

    Raises ``NoDataDirectory``, ``BadDirectory``, ``DirectoryLocked``, ``DirectoryReadOnly``, ``DamagedLog``,
    ``BadBackup``, ``UnsupportedFormat``, ``BadSettings``, ``DiskFull``.
    """
    with ExitStack() as undo:
        place = _look_at(directory, settings, undo)
        headers = {base: read_segment_header(place.disk, base) for base in place.disk.segments()}
        if not headers:
            raise BadDirectory(f"{directory} holds no log yet: make the cluster without it")
        try:
            if not any(headers.values()):
                raise DamagedLog("no segment of the CommitLog has a whole header")
            recovery = Recovery(
                directory=None,
                disk=place.disk,
                settings=settings,
                headers=needed(place.disk, headers),
                undo=undo,
            )
            recovery.refuse_damage()
            if settings.segment_bytes not in (0, recovery.segment_bytes):
                raise BadSettings(
                    f"segment_bytes is {settings.segment_bytes} here and {recovery.segment_bytes} in {directory}: a "
                    "log keeps the size of its segments"
                )
            source = Source(place, recovery, on_read)
        except DamagedLog as error:
            if place.kind is SourceKind.REPLICA and type(error) is not DamagedReplica:
                raise DamagedReplica(str(error)) from error
            raise
        yield source


def kept_settings(directory: Path, settings: StoreSettings, chosen: Collection[str]) -> StoreSettings:
    """As they were in the cluster whose node had the directory, if it was one, but for those that were ``chosen``, by
    the names of the broker's settings. Raises ``DamagedLog``, ``UnsupportedFormat``."""
    mark = read_mark(directory)
    if mark is None or not mark.genesis:
        return settings
    kept = unpack_genesis(mark.genesis.encode()).settings_for(StoreSettings())
    names = [name for name in SHARED if not {name, name.removesuffix("_ms")}.intersection(chosen)]
    return msgspec.structs.replace(settings, **{name: getattr(kept, name) for name in names})


def _look_at(directory: Path, settings: StoreSettings, undo: ExitStack) -> _Place:
    if (directory / backups.NAME).exists():
        created_ms = backups.check_backup(directory).created_ms
        disk = FileDisk(directory, read_only=True)
        return _Place(SourceKind.BACKUP, disk, settings, mark=timeline.new_mark(created_ms))
    check_data_directory(directory)
    lock = DirectoryLock(directory)
    undo.callback(lock.release)
    disk = FileDisk(directory, read_only=True)
    replica = read_mark(directory)
    if replica is not None:
        return _Place(SourceKind.REPLICA, disk, settings, replica)
    return _Place(SourceKind.BROKER, disk, settings, mark=timeline.read_mark(disk))


@contextmanager
def _own_tables(log_id: int, settings: StoreSettings) -> Iterator[Tables]:
    """Tables in files that are gone afterwards. Raises ``DiskFull``."""
    with tempfile.TemporaryDirectory(prefix="tickwheel-") as name:
        (Path(name) / "topics").mkdir()
        try:
            with closing(Tables(directory=Path(name), log_id=log_id, settings=settings)) as tables:
                tables.answers = RememberedAnswers(settings.segment_bytes)
                yield tables
        except DiskFull as error:
            if type(error) is not DiskFull:
                raise
            words = f"{error}: the log is tried out in {name}; TMPDIR names a directory with more room"
            raise DiskFull(words) from error
