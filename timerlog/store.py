"""The store: a data directory as one object, and how its parts are wired.

Each part does one thing, and has in its constructor what it uses; what they share is the ``Engine``, its state. This
module opens a directory, assembles the parts, syncs and closes. Synchronous, for one thread, and without a clock:
callers pass the time.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from timerlog.background import InThread, WaitDurable
from timerlog.bulk.adopt import Adopter
from timerlog.bulk.job import AdoptReport
from timerlog.bulk.plan import Plans
from timerlog.commitlog.durability import SyncTicket
from timerlog.commitlog.healing import Healer
from timerlog.engine.change import Change
from timerlog.engine.commit import Commit
from timerlog.engine.dead_letters import DeadLetters
from timerlog.engine.deliver import Deliver
from timerlog.engine.groups import Groups, Holders
from timerlog.engine.look import Look
from timerlog.engine.prepared import Prepared
from timerlog.engine.produce import Ingested, Produce, Stop
from timerlog.engine.replay_dead import ReplayDead
from timerlog.engine.select import Select
from timerlog.engine.settle import Settle
from timerlog.engine.space import Space
from timerlog.engine.state import Engine, LogWriter
from timerlog.engine.topics import Topics
from timerlog.engine.transaction import Transactions
from timerlog.errors import DirectoryGone, DirectoryReadOnly, DiskFull
from timerlog.files.disk import Disk, FileDisk
from timerlog.files.held_space import Spare
from timerlog.files.lock import DirectoryLock
from timerlog.files.replica_mark import refuse_replica
from timerlog.purge.drop import Dropper, DropTicket, FreeTicket
from timerlog.purge.purger import Purger, PurgeReport
from timerlog.recovery import timeline
from timerlog.recovery.checkpoint import Checkpoints
from timerlog.recovery.opening import Opened, RecoveryReport, open_directory
from timerlog.services.batches import DueBatch, ReadyBatch
from timerlog.services.dequeue_get import DequeueGet
from timerlog.services.dequeue_get_message import DequeueGetMessage
from timerlog.services.dequeue_put_message import DequeuePutMessage
from timerlog.services.enqueue_get import EnqueueGet
from timerlog.services.enqueue_put import EnqueuePut
from timerlog.services.fill_wheel import FillWheel
from timerlog.settings import StoreSettings
from timerlog.tables.base_record import capture
from timerlog.wheel.wheel import TimerWheel

MIB = 1024 * 1024
#: Of a new directory: the wheel, the key index, what is kept of the log for control records, and small files.
LEAST_BYTES = 5 * MIB


def too_full(directory: Path, error: DiskFull) -> DiskFull:
    """The same error, which says how much room a start needs; as it is where the disk is in order."""
    if type(error) is not DiskFull:
        return error
    free_mib = shutil.disk_usage(directory).free / MIB
    return DiskFull(
        f"{error}: {free_mib:.1f} MiB are free for {directory}, and a start needs {LEAST_BYTES // MIB} MiB "
        "beside what the directory has"
    )


class Store:
    """Use ``Store.open``."""

    @classmethod
    def open(cls, directory: Path, settings: StoreSettings, now_ms: int) -> Store:
        """Opens or creates a data directory and recovers what a crash left.

        Raises ``DirectoryLocked``, ``DirectoryReadOnly``, ``ReplicaDirectory``, ``DamagedLog``, ``UnsupportedFormat``,
        ``DiskFull``, ``NoAddressSpace``.
        """
        lock = DirectoryLock(directory)
        try:
            refuse_replica(directory)
            store = cls._open(directory, FileDisk(directory), settings, now_ms, int.from_bytes(os.urandom(8)))
        except PermissionError as error:
            lock.release()
            raise DirectoryReadOnly(f"{error.filename} cannot be written") from error
        except DiskFull as error:
            lock.release()
            raise too_full(directory, error) from error.__cause__
        except BaseException:
            lock.release()
            raise
        store._lock = lock
        return store

    @classmethod
    def _open(
        cls, directory: Path | None, disk: Disk, settings: StoreSettings, now_ms: int, log_id: int
    ) -> Store:
        return cls.of(open_directory(directory, disk, settings, now_ms, log_id), disk, settings, now_ms)

    @classmethod
    def of(
        cls,
        opened: Opened,
        disk: Disk,
        settings: StoreSettings,
        now_ms: int,
        healer: Healer | None = None,
    ) -> Store:
        """A store of what was opened, which it closes, also when this fails. ``healer``: where the log is a copy."""
        try:
            # What was due before its first tick is due at it: the wheel stands one tick before.
            wheel = TimerWheel(opened.tables.directory, opened.first_tick_ms(now_ms) - 1, opened.reserve)
            try:
                return cls(
                    opened=opened, wheel=wheel, disk=disk, settings=settings, now_ms=now_ms, healer=healer
                )
            except BaseException:
                wheel.close()
                raise
        except BaseException:
            opened.tables.close()
            opened.log.close()
            raise

    def __init__(
        self,
        *,
        opened: Opened,
        wheel: TimerWheel,
        disk: Disk,
        settings: StoreSettings,
        now_ms: int,
        healer: Healer | None = None,
    ) -> None:
        self._lock: DirectoryLock | None = None
        self._genesis, self._mark = opened.genesis, opened.mark
        self.disk, self.settings, self.recovery = disk, settings, opened.report
        self.log, self.tables, self.applier, self.wheel = opened.log, opened.tables, opened.applier, wheel
        assert self.log.log_id == self.tables.log_id, "the tables are those of the log"
        self.spare, self.reserve = Spare(disk), opened.reserve
        self.log.lender, self.log.spare = self.reserve, self.spare
        self.tables.native.max_body_bytes = settings.max_body_bytes
        self.tables.native.max_frame_bytes = settings.max_frame_bytes
        engine = Engine(
            settings=settings,
            log=self.log,
            tables=self.tables,
            applier=self.applier,
            wheel=wheel,
            reserve=self.reserve,
            spare=self.spare,
            healer=healer,
        )
        self._engine = engine
        self.writer = writer = LogWriter(engine)
        self.changes = engine.changes
        self.checkpoints = Checkpoints(
            disk=disk,
            log=self.log,
            tables=self.tables,
            tick_ms=self._tick_ms,
            reserve=self.reserve,
            spare=self.spare,
            now_ms=now_ms,
        )
        self.fill_wheel = FillWheel(engine, writer)
        self.fill_wheel.fill()
        self.space = space = Space(engine, lambda: self.checkpoints.size_bytes)

        self._make_calls(engine, writer, space)
        self._make_services(engine, writer)

        self.log.base_payload = self._base_payload
        self.log.complete_roll()
        self._begin_timeline(now_ms)
        self.checkpoints.begin_changes()
        self.tables.native.is_live = 1

    def _make_calls(self, engine: Engine, writer: LogWriter, space: Space) -> None:
        """What requests call."""
        self.topics = topics = Topics(engine, writer, space)
        self.groups = groups = Groups(engine, writer, space, topics)
        self.holders = holders = Holders(engine.tables, groups)
        self.produce = produce = Produce(engine, space)
        self.deliver = Deliver(engine, writer, topics, groups)
        self.commit = commit = Commit(engine, writer, space, produce)
        self.dead_letters = dead = DeadLetters(engine, topics, commit)
        self.settle = settle = Settle(
            engine=engine, writer=writer, topics=topics, groups=groups, holders=holders, dead_letters=dead
        )
        self.change = change = Change(
            engine=engine, writer=writer, groups=groups, commit=commit, settle=settle
        )
        self.select = select = Select(engine, topics)
        self.replay_dead = ReplayDead(
            engine=engine,
            writer=writer,
            topics=topics,
            groups=groups,
            produce=produce,
            commit=commit,
            settle=settle,
            change=change,
            select=select,
        )
        self.prepared = Prepared(
            engine=engine,
            writer=writer,
            topics=topics,
            groups=groups,
            produce=produce,
            commit=commit,
            change=change,
            select=select,
        )
        self.transactions = Transactions(
            engine=engine, produce=produce, commit=commit, settle=settle, change=change
        )
        self.look = Look(engine, topics, groups)
        self.bulk = Plans(engine, writer, topics)

    def _make_services(self, engine: Engine, writer: LogWriter) -> None:
        """What goes on beside requests."""
        self.enqueue_get = EnqueueGet(engine)
        self.enqueue_put = EnqueuePut(self.wheel)
        self.dequeue_get = DequeueGet(self.wheel)
        self.dequeue_get_message = DequeueGetMessage(engine)
        self.dequeue_put_message = DequeuePutMessage(engine, writer, self.settle)

        self.dropper = Dropper(
            log=self.log,
            tables=self.tables,
            checkpoints=self.checkpoints,
            disk=self.disk,
            reserve=self.reserve,
            spare=self.spare,
        )
        self.purger = Purger(engine, self.dropper, lambda: not self.adopter.is_idle)
        self.adopter = Adopter(engine, self.disk, lambda: self.purger.is_running)

    def _begin_timeline(self, now_ms: int) -> None:
        """Before anything is given out, if a part of the log was lost. In a log that several machines share the next
        group commit makes it durable, as all that is given out."""
        is_shared = self.log.durability.is_shared
        mark = self._mark if is_shared else timeline.read_mark(self.disk)
        if mark is None:
            return
        position = self.log.appended_position
        if timeline.begin(
            mark, self.tables, self.applier, self.writer.append, position=position, now_ms=now_ms
        ):
            self._engine.enqueued_id = self.tables.next_id
            self.tables.native.rows_allocated = self.tables.next_id
        assert self.tables.timeline == mark.timeline, "what is given out from here on is of the new timeline"
        assert self.tables.next_id <= self.tables.messages.capacity, "each id below the next one has a row"
        if not is_shared:
            self.sync()
            self.disk.remove(timeline.NAME)

    @property
    def timeline(self) -> str:
        """As clients are told it: what they were given in another one means nothing in this one."""
        return f"{self.tables.timeline or self.log.log_id:016x}"

    # -- durability --

    def begin_sync(self) -> SyncTicket | None:
        """Hands what is staged to the operating system and says what to sync; None when nothing is new."""
        return self.log.begin_sync()

    def finish_sync(self, ticket: SyncTicket) -> int:
        """Takes note that ``ticket.run`` returned; returns the durable position."""
        assert ticket.next_id <= self.tables.next_id, "what is durable was accepted before"
        self._engine.durable_next_id = max(self._engine.durable_next_id, ticket.next_id)
        return self.log.finish_sync(ticket)

    def hand_over(self) -> int:
        """Hands what is staged to the operating system and lets EnqueueGet take it before it is synced: for brokers
        that were told to trade durability for speed. Returns the position reached."""
        position = self.log.flush()
        self._engine.durable_next_id = self.tables.next_id
        return position

    def sync(self) -> int:
        """Begins, runs and finishes a group commit in this thread."""
        ticket = self.begin_sync()
        if ticket is not None:
            ticket.run()
            self.finish_sync(ticket)
        return self.log.durable_position

    # -- keeping house --

    def housekeeping(self, now_ms: int) -> None:
        """To be called about once a second."""
        self.log.flush()
        self.wheel.free_space()
        self.space.settle_reserve()
        if self.dropper.is_dropping or self.adopter.is_committing:
            return  # the one writes a checkpoint itself, with the other the tables do not say yet what the log says
        if self.checkpoints.keep(now_ms, table_is_gone=self._engine.table_is_gone):
            self._engine.table_is_gone = False

    def check_directory(self) -> None:
        """Raises ``DirectoryGone`` when the directory, or the segment that is written, was deleted or replaced: what
        is written then is lost at the end of the process. Cheap."""
        if self._lock is not None:
            self._lock.check()
        if self.log.is_deleted():
            raise DirectoryGone("the segment of the CommitLog that is being written was deleted")

    def _tick_ms(self) -> int:
        return min(self.applier.tick_ms, self.wheel.tick_ms)

    def _base_payload(self) -> bytes:
        return msgspec.msgpack.encode(capture(self.tables, self.applier.tick_ms, self._genesis))

    # -- in one go --

    def adopt(
        self, directory: Path, max_rejects: int, now_ms: int, job_id: bytes | None = None
    ) -> AdoptReport:
        """Takes a job in, in one go and in this thread; then its directory is gone. Raises ``BadJob``, ``DiskFull``."""
        assert not self.log.durability.is_shared, "nobody is here who gives other machines the files"
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

    def purge(self, now_ms: int, *, dry_run: bool = False) -> PurgeReport:
        """Purges all that can go, in one go and in this thread. Raises ``DiskFull``, ``DamagedLog``."""
        assert not self.log.durability.is_shared, "nobody is here who ships to other machines what is written"
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

    def close(self, *, clean: bool = True) -> None:
        """Syncs everything and closes the files. ``clean=False`` leaves them as a killed process would."""
        try:
            if clean:
                self.adopter.take_back()
                self.sync()
            if clean and not self.adopter.is_committing:
                self.tables.sync()
                # The last sync left a MARK behind it: what the checkpoint covers must be there after a power loss.
                self.log.sync_all(
                    self.log.durable_position // self.log.segment_bytes * self.log.segment_bytes
                )
                with suppress(DiskFull):  # then the next start replays the end of the log
                    self.checkpoints.save(clean=True, durable=True)
        finally:
            self.dropper.close()
            self.adopter.close()
            self.wheel.close()
            self.tables.close()
            self.log.close()
            if self._lock is not None:
                self._lock.release()

    def forked(self) -> None:
        """For a child of the process that opened the store: the lock stays the parent's, and ends with it also while
        the child lives."""
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
