"""The store: a data directory as one object.

It is made of ``Producing`` (sends), ``TimerServices`` (wheel and topics), ``Delivering`` (groups, leases, acks) and
``Control`` (cancel, reschedule, look); this module opens, checkpoints and closes it. Synchronous, for one thread, and
without a clock: callers pass the time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from timerlog.background import InThread, WaitDurable
from timerlog.bulk.adopt import Adopter
from timerlog.bulk.job import AdoptReport
from timerlog.bulk.write import Plan, TopicPlan
from timerlog.commitlog.log import SyncTicket
from timerlog.engine.look import Control
from timerlog.engine.produce import Ingested, Stop
from timerlog.errors import DirectoryGone, DirectoryReadOnly, DiskFull, TooManyOpenFiles
from timerlog.files.disk import Disk, FileDisk
from timerlog.files.held_space import Spare, allocate_lent
from timerlog.files.holes import PAGE_BYTES
from timerlog.files.lock import DirectoryLock
from timerlog.layout import RecordType
from timerlog.purge.purger import DropTicket, FreeTicket, Purger, PurgeReport
from timerlog.recovery import checkpoint as checkpoints
from timerlog.recovery.checkpoint import Checkpoint
from timerlog.recovery.opening import Opened, RecoveryReport, open_directory
from timerlog.services.five_services import DueBatch, ReadyBatch, TimerServices
from timerlog.settings import StoreSettings
from timerlog.tables.apply import Applier
from timerlog.tables.base_record import capture

CHECKPOINT_BYTES = 16 * 1024 * 1024
CHECKPOINT_MS = 10_000
MIB = 1024 * 1024
#: Of a new directory: the wheel, the key index, what is kept of the log for control records, and small files.
LEAST_BYTES = 5 * MIB


class Store(TimerServices, Control):
    """Use ``Store.open``."""

    recovery: RecoveryReport
    purger: Purger
    adopter: Adopter
    _lock: DirectoryLock | None
    _disk: Disk
    _checkpoint_position: int
    _checkpoint_ms: int

    @classmethod
    def open(cls, directory: Path, settings: StoreSettings, now_ms: int) -> Store:
        """Opens or creates a data directory and recovers what a crash left.

        Raises ``DirectoryLocked``, ``DirectoryReadOnly``, ``DamagedLog``, ``UnsupportedFormat``, ``DiskFull``.
        """
        lock = DirectoryLock(directory)
        try:
            store = cls._open(directory, FileDisk(directory), settings, now_ms, int.from_bytes(os.urandom(8)))
        except PermissionError as error:
            lock.release()
            raise DirectoryReadOnly(f"{error.filename} cannot be written") from error
        except TooManyOpenFiles:
            lock.release()
            raise
        except DiskFull as error:
            lock.release()
            free_mib = shutil.disk_usage(directory).free / MIB
            raise DiskFull(
                f"{error}: {free_mib:.1f} MiB are free for {directory}, and a start needs {LEAST_BYTES // MIB} MiB "
                "beside what the directory has"
            ) from error
        except BaseException:
            lock.release()
            raise
        store._lock = lock
        return store

    @classmethod
    def _open(
        cls, directory: Path | None, disk: Disk, settings: StoreSettings, now_ms: int, log_id: int
    ) -> Store:
        opened = open_directory(directory, disk, settings, now_ms, log_id)
        try:
            return cls._assemble(opened, directory, disk, settings, now_ms)
        except BaseException:
            opened.tables.close()
            opened.log.close()
            raise

    @classmethod
    def _assemble(
        cls, opened: Opened, directory: Path | None, disk: Disk, settings: StoreSettings, now_ms: int
    ) -> Store:
        store = cls()
        store._lock = None
        store._disk = disk
        store.settings = settings
        store.log, store.tables, store._applier = opened.log, opened.tables, opened.applier
        store.recovery = opened.report
        store._native = opened.tables.native
        store._native.max_body_bytes = settings.max_body_bytes
        store._native.max_frame_bytes = settings.max_frame_bytes
        store._enqueued_id = store._durable_next_id = opened.tables.next_id
        store._make_scratch()
        store._make_producing()
        store._make_delivering()
        store._make_dead_letters()
        store._make_changing()
        store.spare, store.reserve = Spare(disk), opened.reserve
        store.log.lender = store.reserve
        try:
            store._new_wheel(min(opened.applier.tick_ms or now_ms, now_ms))
            store._begin(now_ms)
        except BaseException:
            if hasattr(store, "wheel"):
                store.wheel.close()
            raise
        return store

    def _begin(self, now_ms: int) -> None:
        self._make_reserving()
        self.purger = Purger(self)
        self.adopter = Adopter(self)
        self.log.base_payload = self._base_payload
        self.log.complete_roll()
        self._checkpoint_position = 0
        self._checkpoint_ms = now_ms
        # From here on the tables change: a clean checkpoint must be gone from the disk before that.
        self._begin_changes()

    # -- durability --

    @property
    def durable_position(self) -> int:
        return self.log.durable_position

    @property
    def appended_position(self) -> int:
        return self.log.appended_position

    @property
    def telling_position(self) -> int:
        return self.log.telling_position

    def begin_sync(self) -> SyncTicket | None:
        """Hands what is staged to the operating system and says what to sync; None when nothing is new."""
        return self.log.begin_sync()

    def finish_sync(self, ticket: SyncTicket) -> int:
        """Takes note that ``ticket.run`` returned; returns the durable position."""
        self._durable_next_id = max(self._durable_next_id, ticket.next_id)
        return self.log.finish_sync(ticket)

    def hand_over(self) -> int:
        """Hands what is staged to the operating system and lets EnqueueGet take it before it is synced: for brokers
        that were told to trade durability for speed. Returns the position reached."""
        position = self.log.flush()
        self._durable_next_id = self.tables.next_id
        return position

    def sync(self) -> int:
        """Begins, runs and finishes a group commit in this thread."""
        ticket = self.begin_sync()
        if ticket is not None:
            ticket.run()
            self.finish_sync(ticket)
        return self.durable_position

    # -- keeping house --

    def housekeeping(self, now_ms: int) -> None:
        """To be called about once a second."""
        self.log.flush()
        self.wheel.free_space()
        self.settle_reserve()
        if self.purger.is_dropping or self.adopter.is_committing:
            return  # the one writes a checkpoint itself, with the other the tables do not say yet what the log says
        grown = self.appended_position - self._checkpoint_position
        is_old = now_ms - self._checkpoint_ms > CHECKPOINT_MS or self._table_is_gone
        if grown > CHECKPOINT_BYTES or (grown and is_old):
            try:
                self._save_checkpoint(clean=False, durable=False)
            except DiskFull:
                return  # a start would replay a little more
            self._checkpoint_position, self._checkpoint_ms = self.appended_position, now_ms
            self._table_is_gone = False

    def check_directory(self) -> None:
        """Raises ``DirectoryGone`` when the directory, or the segment that is written, was deleted or replaced: what
        is written then is lost at the end of the process. Cheap."""
        if self._lock is not None:
            self._lock.check()
        if self.log.is_deleted():
            raise DirectoryGone("the segment of the CommitLog that is being written was deleted")

    def _base_payload(self) -> bytes:
        return msgspec.msgpack.encode(capture(self.tables, self._applier.tick_ms))

    def _checkpoint(self, *, clean: bool) -> Checkpoint:
        tables = self.tables
        return Checkpoint(
            log_id=tables.log_id,
            position=self.log.flush(),
            durable_position=self.durable_position,
            clean=clean,
            boot_id=checkpoints.boot_id(),
            base=capture(tables, min(self._applier.tick_ms, self.wheel.tick_ms)),
            segments=self.log.sizes(),
            tables=tables.sizes(),
            sums=tables.sums() if clean else {},
        )

    def checkpoint_age_ms(self, now_ms: int) -> int:
        """How old the last checkpoint is; 0 if nothing has changed since."""
        has_changed = self.appended_position > self._checkpoint_position
        return max(0, now_ms - self._checkpoint_ms) if has_changed else 0

    # -- bulk scheduling --

    def reserve_ids(self, count: int) -> int:
        """The first of ``count`` message numbers that nobody else is given, once the log is on the disk up to here.
        Raises ``DiskFull``."""
        first_id = self.tables.next_id
        next_id = first_id + count
        with self.reserve.closed():
            self.tables.ensure_rows(next_id)
        self.decided(first_id)
        self._append(RecordType.RESERVED, 0, next_id.to_bytes(8, "little"))
        self._applier.reserved(next_id)
        return first_id

    def plan_bulk(self, job: str, topics: Sequence[str], now_ms: int) -> Plan:
        """What a job for these topics, which are made where they are missing, has to know. Raises ``BadName``,
        ``TooManyTopics``, ``DiskFull``."""
        planned = {name: self._plan_topic(self.open_topic(name, now_ms)) for name in topics}
        log = self.log
        return Plan(
            job=job, log_id=log.log_id, segment_bytes=log.segment_bytes, created_ms=now_ms, topics=planned
        )

    def _plan_topic(self, topic_id: int) -> TopicPlan:
        topic = self._native.topics[topic_id]
        return TopicPlan(
            topic_id=topic_id,
            priority=int(topic.default_priority),
            max_body_bytes=int(topic.max_body_bytes) or self.settings.max_body_bytes,
            shard_of_byte=list(topic.shard_of_byte) if topic.shards else [],
        )

    def adopt(
        self, directory: Path, max_rejects: int, now_ms: int, job_id: bytes | None = None
    ) -> AdoptReport:
        """Takes a job in, in one go and in this thread; then its directory is gone. Raises ``BadJob``, ``DiskFull``."""
        job = self.adopter.start(directory, max_rejects, job_id)
        while not job.is_done:
            match self.adopter.step(now_ms):
                case WaitDurable():
                    self.sync()
                case InThread() as pause:
                    pause.work()
        if job.error is not None:
            raise job.error
        return job.report

    # -- for the purger and the adopter --

    @property
    def enqueued_id(self) -> int:
        """EnqueueGet has taken all messages below."""
        return self._enqueued_id

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def applier(self) -> Applier:
        return self._applier

    def unclean_checkpoint(self) -> Checkpoint:
        return self._checkpoint(clean=False)

    def purge(self, now_ms: int, *, dry_run: bool = False) -> PurgeReport:
        """Purges all that can go, in one go and in this thread. Raises ``DiskFull``, ``DamagedLog``."""
        job = self.purger.start(dry_run=dry_run)
        while not job.is_done:
            match self.purger.step(now_ms):
                case WaitDurable():
                    self.sync()
                case DropTicket() | FreeTicket() as ticket:
                    ticket.run()
        if job.error is not None:
            raise job.error
        return job.report

    def make_checkpoint_room(self) -> None:
        """Prepares for writing a checkpoint, also on a full disk. Raises ``DiskFull``."""
        self._prepare_checkpoint(len(checkpoints.pack(self._checkpoint(clean=False))) + PAGE_BYTES)

    def _prepare_checkpoint(self, size_bytes: int) -> None:
        self._small_bytes = size_bytes

        def prepare() -> None:
            self._disk.prepare(checkpoints.NAME, size_bytes)

        try:
            prepare()
        except DiskFull:
            allocate_lent((self.reserve, self.spare), size_bytes, prepare)

    def _save_checkpoint(self, *, clean: bool, durable: bool) -> None:
        checkpoint = checkpoints.pack(self._checkpoint(clean=clean))
        self._prepare_checkpoint(len(checkpoint))
        self._disk.replace(checkpoints.NAME, checkpoint, durable=durable)

    def _begin_changes(self) -> None:
        try:
            self._save_checkpoint(clean=False, durable=True)
        except DiskFull:
            # One that is not clean may stay; without any, a start reads the whole log.
            found = checkpoints.load(self._disk)
            if found is not None and found.clean:
                self._disk.remove(checkpoints.NAME)

    def close(self, *, clean: bool = True) -> None:
        """Syncs everything and closes the files. ``clean=False`` leaves them as a killed process would."""
        try:
            if clean:
                self.adopter.take_back()
                self.sync()
            if clean and not self.adopter.is_committing:
                self.tables.sync()
                # The last sync left a MARK behind it: what the checkpoint covers must be there after a power loss.
                self.log.sync_all(self.durable_position // self.log.segment_bytes * self.log.segment_bytes)
                with suppress(DiskFull):  # then the next start replays the end of the log
                    self._save_checkpoint(clean=True, durable=True)
        finally:
            self.purger.close()
            self.adopter.close()
            self.wheel.close()
            self.tables.close()
            self.log.close()
            if self._lock is not None:
                self._lock.release()

    def forked(self) -> None:
        """In a child of the process that has it open: the lock is the parent's, who gives it back also while the child
        lives."""
        if self._lock is not None:
            self._lock.release()


__all__ = [
    "DueBatch",
    "Ingested",
    "ReadyBatch",
    "RecoveryReport",
    "Stop",
    "Store",
    "StoreSettings",
    "SyncTicket",
]
