"""Purging: disk space comes back by whole segments, the oldest first.

What is not needed any more is forgotten. What is still needed of the oldest segment is written once more at the head of
the log, with all that is known of it (MOVED); then the segment is deleted, as in a log-structured file system
(M. Rosenblum and J. Ousterhout, "The Design and Implementation of a Log-Structured File System", SOSP 1991).
Everything happens in small steps, so that a caller can do other work between them, and a crash between any two of them
loses nothing and doubles nothing:

1. MOVED records for what is needed and a PURGED record for the rest of a part of the segment; applied to the tables.
2. When all parts are done: wait until the log is on the disk up to here.
3. ``timerlog.purge.drop``: the segment is deleted, and the tables give back the pages on which nothing is left.

Of a log that several machines have, its owner does 1, writes a TRIM record, and waits for that in 2. All machines do 3,
each by itself, when they have read the TRIM.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from tickwheel_native import log as native_log
from tickwheel_native import purge, rebuild
from timerlog.background import WaitDurable
from timerlog.commitlog.healing import Scrub
from timerlog.commitlog.log import ALLOCATION_STEP_BYTES
from timerlog.commitlog.records import Purged
from timerlog.engine.state import Engine
from timerlog.errors import BeingHealed, DamagedLog, DiskFull
from timerlog.layout import (
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordType,
    UInt64Array,
)
from timerlog.purge.drop import Dropper, Pause, Steps
from timerlog.tables.empty_rows import Look

STEP_BYTES: Final = 256 * 1024
STEP_MESSAGES: Final = 1_024
_SURVEY_ROWS: Final = 16_384
#: A survey looks at every message: not more often than this.
SURVEY_MS: Final = 5_000
_SURVEYED_ROWS_A_MS: Final = 100
#: What the log may grow by besides what is moved: the end of a segment, the start of the next one, control records.
_MORE_THAN_MOVED_BYTES: Final = 2 * 1024 * 1024


class PurgeReport(msgspec.Struct, kw_only=True):
    """What a purge did, or would do. ``freed_bytes``: of the log, without what moved messages take again."""

    segments: int = 0
    freed_bytes: int = 0
    purged_messages: int = 0
    moved_messages: int = 0
    moved_bytes: int = 0
    damaged_messages: int = 0
    kept_messages: int = 0  #: in segments that stay


@dataclass(slots=True)
class Job:
    """One run over the log. ``force``: whatever can be purged is, also when little would be won."""

    force: bool = False
    dry_run: bool = False
    report: PurgeReport = field(default_factory=PurgeReport)
    is_done: bool = False
    error: Exception | None = None


@dataclass(slots=True)
class Survey:
    """What the segments hold, oldest first."""

    bases: list[int]
    bytes_used: UInt64Array
    live: UInt64Array
    live_bytes: UInt64Array
    dead: UInt64Array

    @property
    def dead_bytes(self) -> npt.NDArray[np.int64]:
        return self.bytes_used.astype(np.int64) - self.live_bytes.astype(np.int64)

    def messages_from(self, index: int) -> int:
        """How many messages lie in the segments from one on."""
        return int(self.live[index:].sum() + self.dead[index:].sum())


class Purger:
    """Call ``step`` again and again; ``start`` asks for a run now."""

    def __init__(self, engine: Engine, dropper: Dropper, is_adopting: Callable[[], bool]) -> None:
        """``is_adopting``: whether a bulk job is being taken in. Its rows are being filled in, and look as if they were
        gone."""
        self._engine, self._dropper, self._is_adopting = engine, dropper, is_adopting
        self._log, self._native = engine.log, engine.native
        self._jobs: deque[Job] = deque()
        self._job: Job | None = None
        self._steps: Steps | None = None
        self._now_ms = 0
        self._began_ms = 0
        self._next_survey_ms = 0
        self._last_position = 0
        self._dead = np.empty(STEP_MESSAGES, np.uint64)
        self._damaged = np.empty(STEP_MESSAGES, np.uint64)
        #: Where the last record ends that this purger wrote.
        self._written = 0
        self._surveyed_rows = 0
        #: What was needed of the log when it was looked through last; None: it was not, yet.
        self.live_bytes: int | None = None

    def start(self, *, dry_run: bool = False) -> Job:
        """A purge of all that can go now; it is done when ``is_done``. One that has not begun serves all who ask."""
        for job in self._jobs:
            if job.dry_run == dry_run:
                return job
        job = Job(force=True, dry_run=dry_run)
        self._jobs.append(job)
        return job

    @property
    def is_running(self) -> bool:
        return self._steps is not None

    def is_idle(self, now_ms: int) -> bool:
        """Whether ``step`` would do nothing. After the clock went back, there is something to do."""
        if self._steps is None and self._is_adopting():
            return True
        waits = self._now_ms <= now_ms < self._next_survey_ms
        return self._steps is None and not self._jobs and waits

    def step(self, now_ms: int) -> Pause:
        """A little of the work, well under a millisecond or two. Raises ``DiskFull``, ``DamagedLog``: this run is over,
        and another one begins later; so it is after ``BeingHealed``."""
        self._now_ms = now_ms
        if self.is_idle(now_ms):
            return None
        if self._steps is None:
            self._job = self._jobs.popleft() if self._jobs else Job()
            self._began_ms = now_ms
            self._steps = self._run(self._job)
        job = self._job
        assert job is not None
        try:
            return next(self._steps)
        except StopIteration:
            self._finish(job, None)
            return None
        except Exception as error:
            self._finish(job, error)
            if job.force and isinstance(error, DiskFull | DamagedLog):
                return None  # the job says it
            raise

    def _finish(self, job: Job, error: Exception | None) -> None:
        job.is_done, job.error, self._steps, self._job = True, error, None, None
        # Not from its end: the survey knows nothing of what came due while the run went on.
        self._next_survey_ms = self._began_ms + SURVEY_MS
        if error is None and not job.report.segments:
            self._next_survey_ms += self._surveyed_rows // _SURVEYED_ROWS_A_MS

    # -- one run --

    def _run(self, job: Job) -> Steps:
        yield from self._drop_trimmed()
        survey, self._surveyed_rows = Survey([], *(np.zeros(0, np.uint64) for _ in range(4))), 0
        yield from self._survey(survey)
        self.live_bytes = int(survey.live_bytes.sum())
        count, with_current = self._choose(survey, force=job.force)
        if job.dry_run:
            self._forecast(job.report, survey, count)
            return
        self._engine.spare.cover(self._log.disk_bytes())
        if with_current and not self._roll(is_alone=count == 1):
            count -= 1  # the others can go all the same
        job.report.kept_messages = survey.messages_from(count)
        assert 0 <= count < len(self._log.segments), "the segment that is written stays"
        if count:
            yield from self._clean(survey, count, job.report)
        yield from self._dropper.give_back(self._written)
        yield from self._dropper.shrink_keys()

    def _roll(self, *, is_alone: bool) -> bool:
        """Whether the log goes on in a new segment, so that the current one can go. The spare is for more than that,
        unless no other segment can give space back."""
        log = self._log
        try:
            with log.spending(self._engine.spare if is_alone else None):
                log.roll()
        except DiskFull:
            return False
        self._written = log.appended_position
        return True

    def _survey(self, survey: Survey) -> Steps:
        """Adds up what is live in each segment, some rows at a time."""
        log = self._log
        survey.bases = log.segments
        count = len(survey.bases)
        whole_bytes = survey.bases[-1] - survey.bases[0]
        assert whole_bytes == (count - 1) * log.segment_bytes, "segments follow each other"
        survey.live, survey.live_bytes, survey.dead = (np.zeros(count, np.uint64) for _ in range(3))
        current, sizes = survey.bases[-1], log.sizes()
        first_id, end_id = int(self._native.first_id), self._engine.tables.next_id
        look = Look(first_id)
        for at, stop in self._engine.tables.spans(first_id, end_id, _SURVEY_ROWS):
            look.piece(rebuild.used(self._native, at, stop))
            purge.survey(
                store=self._native,
                from_id=at,
                end_id=stop,
                now_ms=self._now_ms,
                first=survey.bases[0],
                segment_bytes=log.segment_bytes,
                live=survey.live,
                live_bytes=survey.live_bytes,
                dead=survey.dead,
            )
            self._surveyed_rows += stop - at
            yield None
        self._engine.tables.empty.put(look.found(end_id))
        used = [sizes[base] for base in survey.bases[:-1]] + [max(0, log.appended_position - current)]
        survey.bytes_used = np.array(used, np.uint64)

    def _choose(self, survey: Survey, *, force: bool) -> tuple[int, bool]:
        """How many segments to purge, and whether the current one, which is still written, is among them."""
        dead_bytes, closed = survey.dead_bytes, len(survey.bases) - 1
        log = self._log
        quiet = log.appended_position == self._last_position
        is_current = log.segments[-1] == survey.bases[-1]
        self._last_position = log.appended_position
        if force:
            wanted = np.flatnonzero(
                (survey.dead > 0) | (2 * dead_bytes >= survey.bytes_used.astype(np.int64))
            )
            count = min(int(wanted[-1]) + 1, closed) if len(wanted) else 0
            quiet = True
        else:
            count = 0
            while count < closed and self._is_worth_it(survey, count):
                count += 1
        with_current = is_current and count == closed and quiet and self._current_can_go(survey, force)
        count = self._up_to_base(survey.bases, count + with_current, with_current)
        return count, with_current and count == closed + 1

    def _is_worth_it(self, survey: Survey, index: int) -> bool:
        """At least half of the segment is dead, or so much of the log that rewriting it all would free as much."""
        dead_bytes = survey.dead_bytes[index:]
        if 2 * int(dead_bytes[0]) >= int(survey.bytes_used[index]):
            return True
        least = max(int(survey.live_bytes[index:].sum()), 2 * self._log.segment_bytes)
        return int(dead_bytes.sum()) > least

    def _current_can_go(self, survey: Survey, force: bool) -> bool:
        """A new segment takes disk space as well: it must be worth it."""
        used, live = int(survey.bytes_used[-1]), int(survey.live_bytes[-1])
        if force:
            return bool(survey.dead[-1]) and 2 * live <= used
        return 4 * live <= used and self._log.sizes()[survey.bases[-1]] > ALLOCATION_STEP_BYTES

    def _up_to_base(self, bases: list[int], count: int, with_current: bool) -> int:
        """A segment can be dropped only when the next one can be understood alone; that after the current one will."""
        log = self._log
        if count == len(bases) and with_current:
            return count
        while count and not log.begins_with_base(bases[count]):
            count -= 1
        return count

    def _forecast(self, report: PurgeReport, survey: Survey, count: int) -> None:
        sizes = self._log.sizes()
        report.segments = count
        report.moved_messages = int(survey.live[:count].sum())
        report.moved_bytes = int(survey.live_bytes[:count].sum())
        report.purged_messages = int(survey.dead[:count].sum())
        report.kept_messages = survey.messages_from(count)
        report.freed_bytes = sum(sizes[base] for base in survey.bases[:count]) - report.moved_bytes

    # -- segments --

    def _clean(self, survey: Survey, count: int, report: PurgeReport) -> Steps:
        """Several segments go together only when one between them has no BASE record: an older version wrote it."""
        together: list[int] = []
        for base, live_bytes in zip(survey.bases[:count], survey.live_bytes.tolist(), strict=False):
            together.append(base)
            yield from self._clean_segment(base, live_bytes, report)
            if self._log.begins_with_base(base + self._log.segment_bytes):
                yield from self._drop(together, report)
                yield from self._dropper.give_back(self._written)
                together = []

    def _clean_segment(self, base: int, live_bytes: int, report: PurgeReport) -> Steps:
        end = base + self._log.sizes()[base]
        end = min(end, base + self._log.segment_bytes)
        at = base + SEGMENT_HEADER_BYTES
        yield from self._check(base)
        # Spent on a segment that stays in the end, the spare would be gone for nothing.
        is_enough = self._engine.spare.can_lend(live_bytes + _MORE_THAN_MOVED_BYTES)
        spare = self._engine.spare if is_enough else None
        while at < end:
            with self._log.spending(spare):
                at = self._clean_part(at, end, report)
            yield None

    def _check(self, base: int) -> Steps:
        """Of a log that is a copy: what is damaged here must not be lost with the segment. Raises ``BeingHealed``."""
        healer = self._engine.healer
        if healer is None:
            return
        scrub = Scrub(self._log, healer, base, base + self._log.segment_bytes)
        while scrub.checked_step():
            yield None

    def _clean_part(self, start: int, end: int, report: PurgeReport) -> int:
        """Moves or forgets what a part of a segment holds; returns where the next part starts."""
        log = self._log
        log.flush()
        moved_from = log.appended_position
        plan = self._plan(start, end)
        if plan.stop < 0 and plan.position == start:  # what comes before it is moved first
            raise DamagedLog(f"the segment at {start} is damaged near {plan.position}: it cannot be purged")
        if plan.stop == purge.NEED_DISK and plan.position == start:
            log.make_message_room(plan.need + STEP_BYTES)
            moved_from = log.appended_position
            plan = self._plan(start, end)
            if plan.stop and plan.position == start:
                raise DiskFull("there is no room to move a message to")
        assert start < plan.position <= end, "a part has an end, and lies in its segment"
        assert log.appended_position == moved_from + plan.moved_bytes, "what is moved was staged"
        if plan.moved:
            log.touched()
            self._apply_moved(moved_from, log.flush())
        dead, damaged = self._dead[: plan.dead], self._damaged[: plan.damaged].copy()
        if not self._engine.are_lost(damaged).all():
            raise BeingHealed(f"{len(damaged)} messages are damaged here, and fetched again")
        if len(damaged):
            log.append(RecordType.DAMAGED, 0, damaged.tobytes())
            log.flush()
            self._engine.applier.end(RecordType.DAMAGED, damaged)
            dead = np.concatenate([dead, damaged])
        if len(dead):
            self._forget(start, plan.position, dead)
        if plan.moved or len(dead):
            self._written = log.appended_position
        report.moved_messages += plan.moved
        report.moved_bytes += plan.moved_bytes
        report.damaged_messages += len(damaged)
        report.freed_bytes -= plan.moved_bytes
        report.purged_messages += len(dead)
        return plan.position

    def _plan(self, start: int, end: int) -> purge.Plan:
        limit = min(start + STEP_BYTES, end)
        return purge.plan(
            store=self._native,
            start=start,
            limit=limit,
            end=end,
            now_ms=self._now_ms,
            capacity=STEP_MESSAGES,
            dead=self._dead,
            damaged=self._damaged,
        )

    def _apply_moved(self, start: int, end: int) -> None:
        replayed = native_log.replay(self._native, start, end)
        if replayed.result:
            raise DamagedLog(f"what was moved to {replayed.position} does not make sense")
        assert replayed.position == end, "all that was moved is applied"

    def _forget(self, start: int, end: int, dead: UInt64Array) -> None:
        """Writes and applies a PURGED record."""
        dead = np.ascontiguousarray(dead)
        assert len(np.unique(dead)) == len(dead), "a message is forgotten once"
        purged = self._counted(start, end, dead)
        payload = msgspec.msgpack.encode(purged)
        self._log.ensure_room(len(payload) + 2 * RECORD_HEAD_BYTES)
        self._dropper.reclaim.note(dead)
        self._log.append(RecordType.PURGED, 0, payload)
        self._log.flush()
        self._engine.applier.purged(purged)
        assert not self._engine.tables.rows["state"][dead].any(), "what is purged is gone"

    def _counted(self, start: int, end: int, dead: UInt64Array) -> Purged:
        native = self._native
        topics = np.zeros((native.topics_capacity, 2), np.uint64)
        groups = np.zeros((native.groups_capacity, 3), np.uint64)
        purge.count(native, dead, topics, groups)
        assert topics[:, 0].sum() <= len(dead), "a message counts in one topic"
        of_topics = []
        for topic_id in np.flatnonzero(topics[:, 0]).tolist():
            topic, (messages, cancelled) = native.topics[topic_id], topics[topic_id].tolist()
            assert topic.purged_messages + messages <= topic.messages, "what is purged was sent"
            of_topics.append((topic_id, topic.purged_messages + messages, topic.purged_cancelled + cancelled))
        of_groups = []
        for group_id in np.flatnonzero(groups.any(axis=1)).tolist():
            group, (acked, gone, deliveries) = native.groups[group_id], groups[group_id].tolist()
            assert group.purged_acked + acked <= group.acked, "an ack that is purged was counted"
            assert group.purged_dead + gone <= group.dead, "what is purged as dead was counted"
            assert group.purged_deliveries + deliveries <= group.deliveries, "what is purged was delivered"
            of_groups.append(
                (
                    group_id,
                    group.purged_acked + acked,
                    group.purged_dead + gone,
                    group.purged_deliveries + deliveries,
                )
            )
        return Purged(start, end, of_topics, of_groups)

    def _drop(self, bases: list[int], report: PurgeReport) -> Steps:
        """Deletes segments to which nothing refers any more. Where others have the log too, they are told: what this
        machine says counts once it is durable, and everybody drops them then."""
        log = self._log
        yield from self._dropper.raise_first()
        if log.durability.is_shared:
            self._say_trim(bases[-1] + log.segment_bytes)
        while log.durable_position < self._written:
            yield WaitDurable(self._written)
        assert bases == log.segments[: len(bases)], "the oldest segments go first"
        sizes = log.sizes()
        yield from self._dropper.drop(bases)
        report.segments += len(bases)
        report.freed_bytes += sum(sizes[base] for base in bases)

    def _say_trim(self, end: int) -> None:
        self._log.append(RecordType.TRIM, 0, struct.pack("<Q", end))
        self._log.flush()
        self._engine.applier.trim(end)
        self._written = self._log.appended_position

    def _drop_trimmed(self) -> Steps:
        """What was trimmed by an owner before this one, or by a run that did not come to its end."""
        bases = self._dropper.segments_before(self._engine.applier.trimmed)
        if bases:
            while self._log.durable_position < self._written:
                yield WaitDurable(self._written)
            yield from self._dropper.drop(bases)
