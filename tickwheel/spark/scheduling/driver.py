"""Bulk scheduling, the driver's side: plans a job, lets Spark write it, hands it to the broker."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tickwheel.client.admin.pipeline import AdoptResult, JobRefused
from tickwheel.client.url import default_url
from tickwheel.protocol.errors import BadJob, NotConnected, RequestTimeout, TickwheelError
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
from tickwheel.spark.scheduling.options import Options
from tickwheel.spark.scheduling.rejects import write_rejects
from tickwheel.spark.scheduling.renaming import renamed
from tickwheel.spark.scheduling.report import KEPT_SAMPLES, TaskReport, merged
from tickwheel.spark.scheduling.result import INSIDE, TAKEN, Rejected, ScheduleResult
from tickwheel.spark.scheduling.tasks import Task, Work, failed
from tickwheel.spark.scheduling.ways import Broker, find_way
from tickwheel.spark.storage import storage_at
from tickwheel.spark.writing.columns import SINK_COLUMNS
from tickwheel.spark.writing.reasons import CORRUPT
from timerlog.bulk.write import Manifest, Plan, Segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_JOB: Final = re.compile(r"[0-9a-f]{32}")
_log = logging.getLogger("tickwheel.spark")


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
        # Workers may have another environment than the driver: its broker is theirs. What only it needs stays with it.
        url = self._options.url or default_url()
        options = replace(self._options, url=url, progress=None, rename={})
        return Work(options, plan, self._way.directory, self._run, self._way.flights)

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
