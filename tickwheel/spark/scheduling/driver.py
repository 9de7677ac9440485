"""Bulk scheduling, the driver's side: plans a job, lets Spark write it, hands it to the broker."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tickwheel.arrow.errors import SourceError
from tickwheel.client.admin.pipeline import AdoptResult, JobRefused
from tickwheel.client.url import default_url
from tickwheel.protocol.errors import BadJob, NotConnected, RequestTimeout, TickwheelError
from tickwheel.protocol.limits import is_valid_name
from tickwheel.spark.action import Attempt, run_action
from tickwheel.spark.errors import (
    RowsRefused,
    ScheduleFailed,
    ScheduleUncertain,
    SparkError,
    StagingError,
    StorageError,
    plain_text,
    spark_errors,
    understood,
)
from tickwheel.spark.scheduling.rejects import write_rejects
from tickwheel.spark.scheduling.renaming import check_renames, renamed
from tickwheel.spark.scheduling.report import KEPT_SAMPLES, TaskReport, merged
from tickwheel.spark.scheduling.result import (
    BY_FLIGHT,
    IN_PLACE,
    INSIDE,
    TAKEN,
    Rejected,
    ScheduleResult,
    Staged,
)
from tickwheel.spark.scheduling.tasks import RUN_BYTES, Task, Work, failed
from tickwheel.spark.scheduling.ways import Broker, find_way
from tickwheel.spark.storage import storage_at
from tickwheel.spark.writing.columns import SINK_COLUMNS, check_columns
from tickwheel.spark.writing.reasons import CORRUPT
from tickwheel.spark.writing.zones import zone_of
from timerlog.bulk.write import Manifest, Plan, Segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_JOB: Final = re.compile(r"[0-9a-f]{32}")
_LEAST_RUN_BYTES: Final = 64 * 1024
_log = logging.getLogger("tickwheel.spark")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """See ``schedule``. ``are_texts``: the columns come from a file that has only texts. ``tz``: the zone of times
    without one. ``rename``: names of columns, and what messages call them. ``staged``: how files come to the broker;
    None: it is tried. The files of token and CA are on each machine that has tasks; None: what is in the environment
    there."""

    url: str | None = None
    topic: str | None = None
    max_rejects: int = 0
    job: str | None = None
    rejects: str | None = None
    staging: str | None = None
    run_bytes: int = RUN_BYTES
    progress: Progress | None = None
    are_texts: bool = False
    tz: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    staged: Staged | None = None
    token_file: str | None = None
    ca_file: str | None = None

    def check(self) -> None:
        """Raises ``SourceError``, ``StorageError``."""
        if self.topic is not None and not is_valid_name(self.topic):
            raise SourceError(f"{self.topic!r} cannot be the name of a topic.")
        if self.max_rejects < 0:
            raise SourceError(f"max_rejects is {self.max_rejects}: use 0 or more.")
        if self.run_bytes < _LEAST_RUN_BYTES:
            raise SourceError(f"run_bytes is {self.run_bytes}: use at least {_LEAST_RUN_BYTES:,}.")
        if self.job is not None and not self.job.strip():
            raise SourceError("The job has an empty name.", advice="Leave it out, or name it.")
        if self.staged not in (None, BY_FLIGHT, IN_PLACE):
            raise SourceError(f"staged is {self.staged!r}: use 'flight', 'in place', or leave it out.")
        if self.staged == BY_FLIGHT and self.staging is not None:
            raise SourceError(
                "staging names a directory, and files are to go by Arrow Flight.",
                advice="Give one of them, or none.",
            )
        if self.tz is not None:
            zone_of(self.tz)
        check_renames(self.rename)
        if self.rejects is not None:
            storage_at(self.rejects).reach()

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """``columns``: names and types, before they are renamed. Raises ``SourceError``."""
        check_columns(
            renamed(columns, self.rename), self.topic, are_texts=self.are_texts, has_zone=self.tz is not None
        )


def job_id(name: str | None) -> str:
    """The number by which the broker knows a job: itself, or a digest of any other name; without a name a new one."""
    if name is None:
        return uuid.uuid4().hex
    if _JOB.fullmatch(name):
        return name
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def schedule_frame(frame: DataFrame, options: Options, job: Job | None = None) -> ScheduleResult:
    """See ``tickwheel.spark.schedule``. ``job``: as it was begun with these options; else it begins here."""
    options.check()
    columns = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    named = {name: kind for name, kind in columns.items() if not (options.are_texts and name == CORRUPT)}
    options.check_columns(named)
    frame = frame.toDF(*renamed(columns, options.rename)) if options.rename else frame
    if job is not None:
        return job.run(frame)
    with begun(options) as own:
        return own.run(frame)


@contextmanager
def begun(options: Options) -> Iterator[Job]:
    """A job that is planned: what broker, token and network have against it is said before Spark starts. What was
    written for it goes if it is not run to its end. Raises ``SourceError``, ``StagingError`` and what the broker
    says."""
    job = Job(options)
    try:
        yield job
    except ScheduleUncertain:
        raise  # the broker may be at it, or come back to it
    except BaseException:
        job.discard()
        raise


class Job:
    """One run of a job."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._id = job_id(options.job)
        self._run = secrets.token_hex(16)
        self._is_discarded = False
        self._broker = Broker(options.url, options.token_file, options.ca_file)
        self._planned, self._way = find_way(
            self._broker,
            self._topics,
            job=self._id,
            run=self._run,
            staging=options.staging,
            wanted=options.staged,
        )

    @property
    def repeated(self) -> ScheduleResult | None:
        """What became of it, if it was taken in before: then nothing is left to do."""
        return None if self._planned.adopted is None else self._repeated(self._planned.adopted)

    def discard(self) -> None:
        """Removes what the run has written, once: where nobody answers, it is waited for."""
        if self._planned.adopted is None and not self._is_discarded:
            self._is_discarded = True
            self._way.discard()

    def run(self, frame: DataFrame) -> ScheduleResult:
        """Lets Spark write the rows, and hands them in. Raises ``SparkError``."""
        if self._planned.adopted is not None:
            return self._repeated(self._planned.adopted)
        plan = msgspec.convert(self._planned.plan, Plan)
        self._tell(f"job {self._id}: tasks write to {self._way.text}")
        try:
            return self._write_and_adopt(frame, plan)
        except ScheduleUncertain:
            raise
        except TickwheelError as error:
            self.discard()
            # Another run of this job may have won meanwhile: its end cleared the directory away under this one.
            known = self._known() if error.code in (StagingError.code, BadJob.code) else None
            if known is None:
                raise
            return self._repeated(known)

    @property
    def _topics(self) -> list[str]:
        return [self._options.topic] if self._options.topic is not None else []

    def _known(self) -> AdoptResult | None:
        with self._broker.client() as client:
            return client.plan_job(self._topics, job=self._id).adopted

    def _tell(self, text: str) -> None:
        if self._options.progress is not None:
            self._options.progress(text)

    def _repeated(self, known: AdoptResult) -> ScheduleResult:
        # The table of rejects is that of the run that did it.
        return ScheduleResult(self._id, messages=known.messages, rejected=known.rejected, repeated=True)

    def _work(self, plan: Plan) -> Work:
        options = self._options
        return Work(
            # Workers may have another environment than the driver: its broker is theirs.
            url=options.url or default_url(),
            topic=options.topic,
            plan=plan,
            directory=self._way.directory,
            run=self._run,
            run_bytes=options.run_bytes,
            tz=options.tz,
            flights=self._way.flights,
            token_file=options.token_file,
            ca_file=options.ca_file,
        )

    def _write_and_adopt(self, frame: DataFrame, plan: Plan) -> ScheduleResult:
        options, started_s = self._options, time.perf_counter()
        work = self._work(plan)
        report = merged(collected(frame, work))
        segments = report.segments
        result = ScheduleResult(
            self._id,
            rejected=sum(report.counts.values()),
            counts=report.counts,
            samples=report.samples,
            rows=report.rows,
            files=len(segments),
            written_bytes=sum(segment.bytes for segment in segments),
            write_s=time.perf_counter() - started_s,
            staged=report.staged,
        )
        if result.rejected > options.max_rejects:
            raise self._refused(result)
        started_s = time.perf_counter()
        try:
            self._way.write_manifest(Manifest(plan=plan, segments=segments))
        except SparkError:
            raise
        except TickwheelError as error:
            raise failed(error) from error
        count = result.rows - result.rejected
        self._tell(f"messages: {count:,}, files: {result.files:,}; the broker takes them in")
        try:
            found = self._adopt(options.max_rejects - result.rejected)
        except JobRefused as error:
            raise self._refused(with_duplicates(result, error.result, segments)) from None
        if found.repeated:
            return self._repeated(found)
        result = replace(with_duplicates(result, found, segments), messages=found.messages)
        return self._finished(replace(result, adopt_s=time.perf_counter() - started_s))

    def _adopt(self, max_rejects: int) -> AdoptResult:
        try:
            return self._way.adopt(max_rejects)
        except (NotConnected, RequestTimeout) as error:
            raise ScheduleUncertain(
                f"The broker did not say whether it took in the job {self._id}: {error.message}"
            ) from error

    def _refused(self, result: ScheduleResult) -> RowsRefused:
        result = self._finished(result)
        error = RowsRefused(
            f"{result.rejected:,} of {result.rows:,} rows cannot be scheduled, and {self._options.max_rejects:,} may "
            f"fail, so nothing was: {'; '.join(line for line in result.summary() if not line.startswith(' '))}."
        )
        error.result = result
        return error

    def _finished(self, result: ScheduleResult) -> ScheduleResult:
        if self._options.rejects is None:
            return result
        try:
            return replace(result, rejects=write_rejects(result, storage_at(self._options.rejects)))
        except (OSError, StorageError) as error:
            # What became of the job is more important than the table about it.
            _log.error("the table of rejects cannot be written to %s: %s", self._options.rejects, error)
            return result


def with_duplicates(
    result: ScheduleResult, found: AdoptResult, segments: Sequence[Segment]
) -> ScheduleResult:
    """What the tasks refused, and what the broker rejected on top."""
    taken = found.rejected - found.inside
    counts = result.counts | {code: n for code, n in ((INSIDE, found.inside), (TAKEN, taken)) if n}
    samples = [
        Rejected(
            reason=INSIDE if _is_inside(earlier_id, segments) else TAKEN,
            key=key,
            topic=topic,
            earlier_id=earlier_id,
        )
        for key, topic, earlier_id in found.samples
    ]
    return replace(
        result,
        rejected=result.rejected + found.rejected,
        counts=counts,
        samples=result.samples + samples[: max(0, KEPT_SAMPLES - len(result.samples))],
    )


def _is_inside(message_id: int, segments: Sequence[Segment]) -> bool:
    return any(one.first_id <= message_id < one.end_id for one in segments)


def collected(frame: DataFrame, work: Work) -> list[TaskReport]:
    """Runs the tasks. Raises ``SparkError``."""

    def task(batches: Iterable[Any], attempt: Attempt) -> list[TaskReport]:
        place = work.place()
        return [Task(work, work.broker(place), attempt.number, attempt.partition, place).run(batches)]

    wanted = frame.select([name for name in frame.columns if name in SINK_COLUMNS or name == CORRUPT])
    try:
        return run_action(wanted, task, TaskReport)
    except spark_errors() as error:
        raise understood(error) or _unknown(error) from None


def _unknown(error: Exception) -> ScheduleFailed:
    """What went wrong outside of our own code: in the DataFrame, as a rule. Behind the text come stacks."""
    text = plain_text(error)
    lines = [line.strip() for line in text.split("\n\tat ")[0].splitlines() if line.strip()]
    what = lines[-1] if lines and "Traceback" in text else " ".join(lines[:2])
    return ScheduleFailed(f"Spark could not run the job, so nothing of it was scheduled: {what}")
