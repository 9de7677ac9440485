"""Bulk scheduling, the side that takes in: segments that ``timerlog.bulk.write`` has written become a part of the log.

All of a job or nothing, while everything else goes on. A generator of small steps, as for purging:

1. What the job says is checked, and every record of it, checksum included; rows are filled in, and not visible yet. A
   thread does that for the next segment, while
2. the keys of a segment go into the index. Those that are in it already are the job's rejects; too many end the job.
3. Rejected records are overwritten with FILL, headers say where the segments will lie; then all of it is on the disk.
   Before that, all machines that follow the log get the files: what is rejected later is told with ADOPTED.
4. One record, ADOPTED, and the segments have their names in the log. From here on a start reads them like any other.
5. When that is on the disk, the rows become visible and their timers go onto the wheel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tickwheel_native import bulk, lib, memory, rebuild
from timerlog.background import InThread, Join, Pace, Stage, WaitDurable, WriteBack
from timerlog.bulk.job import AdoptJob, AdoptReport, Keyed, Pause, Reject, Rejects, Steps
from timerlog.bulk.job_files import JobFiles, clear_away
from timerlog.bulk.write import Segment
from timerlog.commitlog.records import AdoptedRecord
from timerlog.commitlog.segments import ADOPTING, ADOPTING_FORMAT
from timerlog.engine.state import Engine
from timerlog.errors import BadJob, DiskFull, TooManyRejects
from timerlog.files.disk import Disk
from timerlog.files.small_files import seal
from timerlog.layout import (
    KEY_PARTITIONS,
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    TRANSACTION_ID_BYTES,
    MessageState,
)
from timerlog.tables.reach import Reach
from timerlog.wheel.timers import MESSAGE_TIMER

FOREIGN: Final = lib.TW_FOREIGN
STEP_MESSAGES: Final = 8_192
SAMPLES: Final = 100
_ROUNDS: Final = 3
_ADOPTED_ROOM_BYTES: Final = 512
"""More than an ADOPTED record takes, with its head and the END behind it."""
_PARTITIONS_A_STEP: Final = 8
#: Of a job whose files were staged: so many messages with its keys may be sent until it is a part of the log.
_MOST_LATE: Final = 20_000
_WHY: Final = {
    lib.TW_BULK_BAD_RECORD: "a record is damaged",
    lib.TW_BULK_BAD_ID: "a message has a number that is not its own",
    lib.TW_BULK_BAD_MESSAGE: "a message cannot be stored",
    lib.TW_BULK_TAKEN_ID: "a message has a number that is in use",
}


class Adopter:
    """Call ``step`` again and again while it is not idle; ``start`` gives it a job."""

    def __init__(self, engine: Engine, disk: Disk, is_purging: Callable[[], bool]) -> None:
        """``is_purging``: whether a purge is running, which may be giving back pages that a job's rows lie on."""
        self._engine, self._disk, self._is_purging = engine, disk, is_purging
        self._jobs: deque[AdoptJob] = deque()
        self._job: AdoptJob | None = None
        self._steps: Steps | None = None
        self._adoption: _Adoption | None = None
        self._finished: AdoptJob | None = None

    @property
    def is_idle(self) -> bool:
        return self._steps is None and not self._jobs

    @property
    def is_committing(self) -> bool:
        """Whether the log holds messages that the tables do not show yet: no checkpoint may be made meanwhile."""
        return self._adoption is not None and self._adoption.is_committed

    def start(self, directory: Path, max_rejects: int, job_id: bytes | None = None) -> AdoptJob:
        """Takes the job in this directory in, after those that wait. ``job.error`` says why it was not. With its
        number, one that was taken in before is known also when its directory is gone."""
        assert job_id is None or len(job_id) == TRANSACTION_ID_BYTES, "a job's number has 16 bytes"
        job = AdoptJob(directory, max_rejects, job_id)
        self._jobs.append(job)
        return job

    @property
    def is_waiting(self) -> bool:
        """Whether a job waits for the purge that is running."""
        return self._steps is None and bool(self._jobs) and self._is_purging()

    def step(self, now_ms: int) -> Pause:
        """A little of the work. Raises what goes wrong once the job counts: then the tables do not say what the log
        says, and only another start makes that good."""
        if self._steps is None:
            if not self._jobs or self.is_waiting:
                return None
            self._job = self._jobs.popleft()
            self._adoption = _Adoption(self._engine, self._disk, self._job)
            self._steps = self._adoption.steps()
        assert self._job is not None
        assert self._adoption is not None
        self._adoption.now_ms = now_ms
        try:
            return next(self._steps)
        except StopIteration:
            self._finish(None)
        except Exception as error:
            if self.is_committing:
                raise
            self._finish(error)
        return None

    def _finish(self, error: Exception | None) -> None:
        assert self._job is not None
        assert self._adoption is not None
        assert not self.is_committing, "a job that counts is over when all of it is visible"
        self._adoption.close()
        self._job.error, self._job.is_done = error, True
        self._finished = self._job
        self._job = self._steps = self._adoption = None

    def take_finished(self) -> AdoptJob | None:
        """The job that the last step has ended, once."""
        job, self._finished = self._finished, None
        return job

    def took(self, taken_s: float) -> None:
        """How long the last step took: the size of the next ones follows from it. Without a call they stay
        large."""
        if self._adoption is not None:
            self._adoption.pace.took(taken_s)

    def take_back(self) -> None:
        """Before a clean checkpoint: a job that does not count yet leaves nothing in the tables. No thread is at it."""
        if self._adoption is not None and not self.is_committing:
            deque(self._adoption.forget_all(), 0)

    def close(self) -> None:
        if self._adoption is not None:
            self._adoption.close()


class _Adoption:
    def __init__(self, engine: Engine, disk: Disk, job: AdoptJob) -> None:
        self.now_ms = 0
        self.is_committed = False
        self._engine, self._disk, self._job = engine, disk, job
        self._log, self._tables, self._native = engine.log, engine.tables, engine.native
        self._opened: JobFiles | None = None
        self._noted: Rejects | None = None
        self._rejected_ids = np.empty(0, np.uint64)
        self._rejected_before = 0
        #: So many rejects are filled in the files.
        self._filled = 0
        self._is_staged = False
        #: Where records were filled after all nodes had the files, and their checksums.
        self._late_fills: list[tuple[int, int]] = []
        self._racers_from = 0
        self._bases: list[int] = []
        self._failure: Exception | None = None
        self._keyed = Keyed(0)
        self.pace = Pace(STEP_MESSAGES)
        self._left_keys: list[tuple[int, int]] = []
        self._holds_rows = False

    def steps(self) -> Steps:
        if self._is_repeated(self._job.job_id):
            yield from self._clean_up()
            return
        yield self._in_thread(self._open)
        self._raise_failure()
        if not self._is_repeated(self._files.job_id):
            self._check_plan()
            if self._segments:
                yield from self._take_in()
        yield from self._clean_up()

    def _take_in(self) -> Steps:
        Reach(self._tables).need(sum(segment.messages for segment in self._segments))
        self._tables.hold_rows(self._files.id_range[0])
        self._holds_rows = True
        yield self._in_thread(self._files.map)
        try:
            yield from self._prepare()
        except Exception:
            yield Join()
            yield from self.forget_all()
            if self._is_staged:
                yield Stage(self._files.job_id, self._fail)
            raise
        committed = self._log.appended_position
        yield WaitDurable(committed)
        assert self._log.durable_position >= committed, "what becomes visible counts also after a crash"
        yield from self._make_visible()
        self._let_go()
        # To unmap gigabytes takes longer than a delivery may wait.
        yield self._in_thread(self._files.close)

    def _let_go(self) -> None:
        """Nothing looks at the job's own files any more."""
        self._native.adopted_first_id = self._native.adopted_end_id = 0
        bulk.take_in(self._native, memory.NULL)
        if self._holds_rows:
            self._holds_rows = False
            self._tables.let_go_of_rows()

    def close(self) -> None:
        self._let_go()
        if self._opened is not None:
            self._opened.close()

    @property
    def _rejects(self) -> Rejects:
        if self._noted is None:
            self._noted = Rejects(self._segments)
        return self._noted

    # -- what the job says --

    def _in_thread(self, work: Callable[[], None], *, beside: bool = False) -> InThread:
        """An error in the thread is kept for ``_raise_failure``."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._failure = error

        return InThread(run, beside)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if isinstance(failure, OSError):
            raise BadJob(f"the job's files cannot be used: {failure}") from failure
        if failure is not None:
            raise failure

    def _open(self) -> None:
        self._opened = JobFiles(self._job.directory)

    @property
    def _files(self) -> JobFiles:
        assert self._opened is not None
        return self._opened

    @property
    def _segments(self) -> list[Segment]:
        return self._files.segments

    def _is_repeated(self, job_id: bytes | None) -> bool:
        known = self._tables.transactions.get(job_id) if job_id is not None else None
        if known is None:
            return False
        self._job.report = AdoptReport(messages=known[0][0], rejected=known[0][1], repeated=True)
        return True

    def _check_plan(self) -> None:
        plan = self._files.manifest.plan
        if (plan.log_id, plan.segment_bytes) != (self._log.log_id, self._log.segment_bytes):
            raise BadJob("the job was made for another broker")
        if plan.timeline != self._tables.timeline:
            raise BadJob("the job was made before a part of the broker's log was lost, with its plan")
        if self._job.job_id not in (None, self._files.job_id):
            raise BadJob("the manifest is that of another job")
        self._files.check_number(len(self._log.segments))
        self._files.check_names()
        if not self._segments:
            return
        if self._files.id_range[1] > self._tables.next_id:
            raise BadJob("the job has message numbers that were never given to it")

    # -- 1, 2, 3: everything that may fail --

    def _prepare(self) -> Steps:
        self._raise_failure()
        first_id, end_id = self._files.id_range
        assert 0 < first_id < end_id <= self._tables.next_id, "a job has numbers that were given to it"
        bulk.take_in(self._native, self._files.base)
        self._racers_from = self._tables.next_id
        yield from self._refill(0)
        yield self._check(0)
        for number, segment in enumerate(self._segments):
            yield Join()
            self._raise_failure()
            keyed = self._keyed
            if number == 0:
                yield from self._expect_keys(keyed.count / segment.messages)
                yield self._in_thread(self._free_keys)
                self._raise_failure()
            if number + 1 < len(self._segments):
                yield from self._refill(number + 1)
                yield self._check(number + 1)
            yield from self._enter(keyed)
        if self._log.durability.is_shared:
            yield from self._stage()
        yield from self._settle()
        self._commit()

    def _stage(self) -> Steps:
        yield from self._look_for_racers()
        yield self._in_thread(self._fill_rejects)
        self._raise_failure()
        self._is_staged = True
        yield Stage(self._files.job_id, self._fail, tuple(self._files.paths), self._files.segment_bytes)
        self._raise_failure()

    def _fail(self, error: Exception) -> None:
        self._failure = error

    def _settle(self) -> Steps:
        """Meanwhile the log may have gone on in another segment, or others were sent with keys of the job. Then it is
        done again, and at last without giving others the time for it. The record that makes the job count must find
        room in the segment before: where there is none, the log goes on in another segment first."""
        for _ in range(_ROUNDS):
            yield from self._look_for_racers()
            yield self._in_thread(self._settle_files)
            self._raise_failure()
            self._log.ensure_room(_ADOPTED_ROOM_BYTES)
            if self._bases == self._next_bases() and not self._find_all_racers():
                return
        self._find_all_racers()
        self._check_rejects()
        self._log.ensure_room(_ADOPTED_ROOM_BYTES)
        self._settle_files()

    def _next_bases(self) -> list[int]:
        return self._log.following_bases(len(self._segments))

    def _refill(self, number: int) -> Steps:
        """Since the numbers were given, a purge may have given their empty pages back. Not in a thread: the table may
        move meanwhile."""
        segment = self._segments[number]
        for start in range(segment.first_id, segment.end_id, STEP_MESSAGES):
            self._tables.refill_rows(start, min(start + STEP_MESSAGES, segment.end_id))
            yield None

    def _check(self, number: int) -> InThread:
        return self._in_thread(lambda: self._check_segment(number), beside=True)

    def _check_segment(self, number: int) -> None:
        segment, size = self._segments[number], self._files.segment_bytes
        start = FOREIGN + number * size
        at, end = start + SEGMENT_HEADER_BYTES, start + segment.bytes - RECORD_HEAD_BYTES
        table = self._tables.messages
        assert self._holds_rows, "rows that a thread fills in stay where they are"
        assert self._files.is_mapped, "records that are checked have addresses"
        assert table.start <= segment.first_id < segment.end_id <= table.capacity, "its messages have rows"
        found = bulk.check(self._native, at, end, segment.first_id, segment.end_id, segment.messages)
        self._rejected_before += found.filled
        if found.why:
            raise BadJob(f"{segment.file}, offset {found.position - start}: {_WHY[found.why]}")
        if found.position != end or found.next_id != segment.end_id:
            raise BadJob(f"{segment.file} does not hold the {segment.messages} messages that the job says")
        self._keyed = Keyed(segment.messages)
        self._keyed.fill(self._native, segment)
        assert self._keyed.count <= segment.messages - found.filled, "what was rejected before has no key"

    def _expect_keys(self, share: float) -> Steps:
        """Room for all keys at once, if as many messages have one as of the first segment. Where more have,
        ``_enter`` makes a partition larger when it is full."""
        count = int(share * sum(segment.messages for segment in self._segments) / KEY_PARTITIONS)
        for partition in range(KEY_PARTITIONS):
            self._left_keys.append(self._tables.keys.expect(partition, count))
            if partition % _PARTITIONS_A_STEP == 0:
                yield None

    def _free_keys(self) -> None:
        self._tables.keys.free(self._left_keys)

    def _enter(self, keyed: Keyed) -> Steps:
        found = [np.empty(STEP_MESSAGES, np.uint64) for _ in range(2)]
        start = 0
        while start < keyed.count:
            assert self.pace.count <= STEP_MESSAGES, "all that is looked at may be a duplicate"
            entered = bulk.enter(self._native, *keyed.part(start, self.pace.count), *found)
            assert entered.looked_at or entered.need != KEY_PARTITIONS, "a step goes on, or needs room"
            start += entered.looked_at
            self._rejects.add(*(array[: entered.duplicates] for array in found))
            if entered.need != KEY_PARTITIONS:
                self._tables.keys.grow(entered.need)
            yield None

    def _find_racers(self) -> bool:
        """Looks at some of the messages that were sent since the job began: one with a key of the job was first.
        Whether there was such a one."""
        assert self._racers_from <= self._tables.next_id, "what was sent and looked at is not taken back"
        count = min(self._tables.next_id - self._racers_from, STEP_MESSAGES)
        found = [np.empty(count, np.uint64) for _ in range(2)]
        first, end = self._files.id_range
        rejected = bulk.racers(self._native, self._racers_from, first, end, *found)
        self._racers_from += count
        return self._rejects.add_raced(*(array[:rejected].tolist() for array in found))

    def _look_for_racers(self) -> Steps:
        """All that were sent until now. Raises ``TooManyRejects``."""
        end_id = self._tables.next_id
        while self._racers_from < end_id:
            self._find_racers()
            yield None
        self._check_rejects()

    def _find_all_racers(self) -> bool:
        is_new = False
        while self._racers_from < self._tables.next_id:
            is_new |= self._find_racers()
        return is_new

    def _check_rejects(self) -> None:
        report = self._job.report
        report.rejected = len(self._rejects) + self._rejected_before
        report.inside = self._rejects.inside
        report.messages = sum(segment.messages for segment in self._segments) - report.rejected
        assert report.messages >= 0, "a message is rejected once"
        assert 0 <= report.inside <= report.rejected, "what has the key of another one of the job is rejected"
        report.samples = [self._sample(i, earlier) for i, earlier in islice(self._rejects, SAMPLES)]
        if report.rejected > self._job.max_rejects:
            raise TooManyRejects(
                f"{report.rejected} messages have a key that another one has; "
                f"{self._job.max_rejects} may be rejected"
            )

    def _sample(self, message_id: int, earlier_id: int) -> Reject:
        row = self._tables.rows[message_id]
        topics = self._tables.topics
        topic = topics.get(int(row["topic_id"]))
        if topic is not None and topic.record.parent:
            topic = topics.get(topic.record.parent)
        key = self._files.key_at(int(row["position"]) - FOREIGN)
        # One that was deleted meanwhile has no name, and ends the job in the end.
        return Reject(key.decode(errors="replace"), topic.record.name if topic else "", earlier_id)

    def _settle_files(self) -> None:
        """Rejected records mean nothing any more, and the headers say where the segments will lie; on the disk."""
        self._fill_rejects()
        self._bases = self._next_bases()
        self._files.settle(self._bases)
        self._disk.replace(ADOPTING, seal(ADOPTING_FORMAT, self._bases), durable=True)

    def _fill_rejects(self) -> None:
        rows = self._tables.rows[self._rejects.since(self._filled)]
        filled = self._files.fill(rows["position"] - np.uint64(FOREIGN), rows["record_bytes"])
        if self._is_staged:
            self._late_fills += filled
        self._filled, self._rejected_ids = len(self._rejects), self._rejects.sorted_ids()
        assert (self._rejected_ids[1:] > self._rejected_ids[:-1]).all(), "a message is rejected once"

    # -- 4: all or nothing --

    def _commit(self) -> None:
        tables, log = self._tables, self._log
        topic_ids = {topic_id for segment in self._segments for topic_id, _, _ in segment.hours}
        if not topic_ids <= tables.topics.keys():
            raise BadJob("a topic of the job was deleted")
        assert self._filled == len(self._rejects), "what is rejected means nothing in the log"
        assert self._racers_from == tables.next_id, "all that was sent until now was looked at"
        assert self._bases == self._next_bases(), "the job's files lie where their headers say"
        if len(self._late_fills) > _MOST_LATE:
            raise BadJob(
                f"{len(self._late_fills):,} messages with keys of the job were sent while its files went to all "
                "nodes: send the job again"
            )
        job_id, report = self._files.job_id, self._job.report
        rejected = len(self._rejects) + self._rejected_before
        assert report.rejected == rejected, "the log says of a job what came of it"
        record = AdoptedRecord(job_id, len(self._segments), report.messages, report.rejected)
        tables.transactions.add(job_id, [(report.messages, report.rejected)])
        # Also the BASE that follows the job's segments must say that its messages are there.
        first_id = int(self._native.first_id)
        self._native.first_id = min(first_id, self._files.id_range[0])
        try:
            base = log.adopt(self._files.paths, msgspec.msgpack.encode(record), job_id, self._late_fills)
        except BaseException:
            tables.transactions.discard(job_id)
            self._native.first_id = first_id
            raise
        assert base == self._bases[0]
        log.touched()
        self.is_committed = True
        self._native.adopted_first_id, self._native.adopted_end_id = self._files.id_range

    # -- 5: visible --

    def _make_visible(self) -> Steps:
        timer_log = self._engine.wheel.timer_log.region
        timers_from, visible = timer_log.allocated_bytes, 0
        for segment in self._segments:
            start = segment.first_id
            while start < segment.end_id:
                count = min(self.pace.count, segment.end_id - start)
                self._drop_rejected(start, count)
                visible += bulk.adopt(self._native, start, count, self._bases[0])
                yield from self._set_timers(start, count)
                start += count
                yield None
        assert visible == self._job.report.messages, "as many become visible as the log says"
        self._native.first_id = min(int(self._native.first_id), self._files.id_range[0])
        self.is_committed = False
        yield from self._write_back(timers_from)

    def _write_back(self, timers_from: int) -> Steps:
        tables, timer_log = self._tables, self._engine.wheel.timer_log.region
        yield WriteBack(tables.messages.region, *tables.messages.span(*self._files.id_range))
        yield WriteBack(timer_log, timers_from, timer_log.allocated_bytes)
        yield WriteBack(tables.keys.region, 0, tables.keys.region.allocated_bytes)

    def _drop_rejected(self, start: int, count: int) -> None:
        first, end = np.searchsorted(self._rejected_ids, [start, start + count]).tolist()
        ids = np.ascontiguousarray(self._rejected_ids[first:end])
        if len(ids):
            bulk.forget(self._native, ids)

    def _set_timers(self, start: int, count: int) -> Steps:
        """EnqueueGet has passed these numbers long ago, as a rule; what lies before it, it takes itself."""
        end = min(start + count, self._engine.enqueued_id)
        if start >= end:
            return
        due, ids, versions = np.empty(count, np.int64), np.empty(count, np.uint64), np.empty(count, np.uint32)
        found, _ = rebuild.scheduled(self._native, start, end, due, ids, versions)
        while found:
            try:
                self._engine.wheel.advance(self.now_ms)
                self._engine.link(due[:found], ids[:found], versions[:found], MESSAGE_TIMER)
                return
            except DiskFull:
                yield None  # the job counts: its timers are set as soon as there is room

    # -- after it --

    def forget_all(self) -> Steps:
        """The job is over, and nothing of it stays behind."""
        assert not self.is_committed, "what counts is not taken out again"
        if self._opened is None or not self._opened.is_mapped:
            return
        for segment in self._segments:
            for start in range(segment.first_id, segment.end_id, STEP_MESSAGES):
                end = min(start + STEP_MESSAGES, segment.end_id)
                rows = self._tables.rows[start:end]
                own = (rows["state"] == MessageState.NONE) & (rows["position"] >= FOREIGN)
                ids = (np.flatnonzero(own) + start).astype(np.uint64)
                bulk.forget(self._native, ids)
                yield None

    def _clean_up(self) -> Steps:
        """What goes wrong with it changes nothing about the job."""
        yield self._in_thread(self._remove_files)
        self._job.left_behind, self._failure = self._failure, None

    def _remove_files(self) -> None:
        self._disk.remove(ADOPTING)
        clear_away(self._job.directory)
