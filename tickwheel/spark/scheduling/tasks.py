"""The work of one task: batches in, segments on the disk, a report out. Without Spark; the broker is a small interface.

Files are called after the attempt that writes them. So an attempt that fails, or is run twice, never meets the files of
another; what it leaves behind counts for nothing, because the driver takes only the reports of attempts that won.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pyarrow.compute as pc

from tickwheel import sync
from tickwheel.arrow.errors import DataError
from tickwheel.protocol.bodies.bulk import MAX_RESERVED_IDS
from tickwheel.protocol.errors import TickwheelError
from tickwheel.spark.errors import ScheduleFailed, StagingError
from tickwheel.spark.scheduling.report import TaskReport
from tickwheel.spark.scheduling.runs import Gathered
from tickwheel.spark.writing.columns import Checked, checked
from tickwheel.spark.writing.zones import zone_of
from timerlog.bulk.write import Plan, Syncs, TopicPlan, write_segments

RUN_BYTES: Final = 128 * 1024 * 1024
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Broker(Protocol):
    """What a task asks the broker for."""

    def reserve_ids(self, count: int) -> int:
        """The first of so many message numbers."""

    def topics(self, names: Sequence[str]) -> dict[str, TopicPlan]:
        """What has to be known of topics."""


@dataclass(frozen=True, slots=True)
class Work:
    """What all tasks of a job know. ``run``: of this call, so that two of one job never write the same files.
    ``tz``: of times without a zone."""

    url: str | None
    topic: str | None
    plan: Plan
    directory: Path
    run: str
    run_bytes: int = RUN_BYTES
    tz: str | None = None

    @property
    def zone(self) -> ZoneInfo | None:
        """That of ``tz``."""
        return None if self.tz is None else zone_of(self.tz)


@dataclass(slots=True)
class RemoteBroker:
    """Through a connection for each request: there are few, and between them a task is busy for long."""

    work: Work

    def reserve_ids(self, count: int) -> int:
        """See ``Broker``."""
        with sync.Client(self.work.url) as client:
            return client.reserve_ids(count)

    def topics(self, names: Sequence[str]) -> dict[str, TopicPlan]:
        """See ``Broker``."""
        with sync.Client(self.work.url) as client:
            found = client.plan_job(list(names), job=self.work.plan.job)
        return msgspec.convert(found.plan, Plan).topics


@dataclass(slots=True)
class Task:
    """One attempt."""

    work: Work
    broker: Broker
    attempt: int
    partition: int
    report: TaskReport = field(default_factory=TaskReport)
    _gathered: Gathered = field(default_factory=Gathered)
    _topics: dict[str, TopicPlan] = field(default_factory=dict)
    _runs: int = 0

    @property
    def name(self) -> str:
        """With which its files begin."""
        return f"{self.work.run}-{self.attempt}"

    def run(self, batches: Iterable[Any]) -> TaskReport:
        """Raises ``SparkError``; then nothing is left of it."""
        self._topics.update(self.work.plan.topics)
        try:
            with Syncs() as syncs:
                for batch in batches:
                    self._add(batch)
                    if (
                        self._gathered.bytes >= self.work.run_bytes
                        or self._gathered.rows >= MAX_RESERVED_IDS // 2
                    ):
                        self._flush(syncs)
                self._flush(syncs)
                syncs.wait()
        except BaseException as error:
            self._remove_files()
            typed = _typed(error, self.work.directory)
            if typed is None:
                raise
            raise typed from error
        return self.report

    def _add(self, batch: Any) -> None:
        found = checked(batch, self.work.topic, self.work.zone)
        self._check_sizes(found)
        self._gathered.add(found)
        self.report.refuse(batch, found, self.partition, self.work.topic)
        self.report.rows += batch.num_rows

    def _check_sizes(self, found: Checked) -> None:
        """The limits are the broker's and the topic's, so the plan is needed first."""
        if found.headers is not None:
            headers_bytes = np.asarray(pc.binary_length(found.headers).fill_null(0), np.int64)
            found.refuse("headers_too_large", headers_bytes > self.work.plan.max_headers_bytes)
        used = np.unique(found.topic_of[found.reasons == 0])
        unknown = [name for number in used.tolist() if (name := found.topics[number]) not in self._topics]
        if unknown:
            self._topics.update(self.broker.topics(unknown))
        limits = np.zeros(len(found.topics), np.int64)
        limits[used] = [self._topics[found.topics[number]].max_body_bytes for number in used.tolist()]
        lengths = np.asarray(pc.binary_length(found.body).fill_null(0), np.int64)
        found.refuse("body_too_large", lengths > limits[found.topic_of])

    def _flush(self, syncs: Syncs) -> None:
        if not self._gathered.rows:
            return
        plan = msgspec.structs.replace(self.work.plan, topics=self._topics)
        topics, columns = self._gathered.take(plan)
        name = f"{self.name}-{self._runs}"
        self._runs += 1
        self.report.segments += write_segments(
            plan, topics, columns, self.broker.reserve_ids, self.work.directory, name, syncs
        )

    def _remove_files(self) -> None:
        """The others of the job go with its directory, sooner or later; so this may fail."""
        with suppress(OSError):
            for path in self.work.directory.glob(f"{self.name}-*"):
                path.unlink()


def _typed(error: BaseException, directory: Path) -> DataError | None:
    """As an error whose code can be told from Spark's text; None: it stays what it is."""
    if isinstance(error, DataError):
        return None
    if isinstance(error, TickwheelError):
        return failed(error)
    if isinstance(error, OSError) and error.errno in _FULL:
        full = ScheduleFailed(f"The disk of {directory} is full.", advice="Free space on the broker's disk.")
        full.code = "disk_full"
        return full
    if isinstance(error, OSError):
        return StagingError(f"A task cannot write to {directory}: {error.strerror or error}.")
    return None


def failed(error: TickwheelError) -> ScheduleFailed:
    """What the broker said, as an error of the job."""
    found = ScheduleFailed(error.message, advice=error.advice)
    found.code = error.code
    return found
