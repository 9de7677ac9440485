"""The work of one task: batches in, segments on the broker's disk, a report out. Without Spark; the broker is a small
interface.

Files are called after the attempt that writes them. So an attempt that fails, or is run twice, never meets the files of
another; what it leaves behind counts for nothing, because the driver takes only the reports of attempts that won.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow.compute as pc

from tickwheel import sync
from tickwheel.arrow.errors import DataError
from tickwheel.arrow.jobs import Run
from tickwheel.arrow.network import Flights
from tickwheel.protocol.bodies.bulk import MAX_RESERVED_IDS
from tickwheel.protocol.errors import TickwheelError
from tickwheel.spark.errors import ScheduleFailed
from tickwheel.spark.scheduling.options import Options
from tickwheel.spark.scheduling.places import ByFlight, InPlace, Place, is_marked, is_seen
from tickwheel.spark.scheduling.report import TaskReport
from tickwheel.spark.scheduling.result import BY_FLIGHT
from tickwheel.spark.scheduling.runs import Gathered
from tickwheel.spark.writing.columns import Checked, checked
from timerlog.bulk.write import Plan, TopicPlan, write_segments


class Broker(Protocol):
    """What a task asks the broker for."""

    def reserve_ids(self, count: int) -> int:
        """The first of so many message numbers."""

    def topics(self, names: Sequence[str]) -> dict[str, TopicPlan]:
        """What has to be known of topics."""


@dataclass(frozen=True, slots=True)
class Work:
    """What all tasks of a job know. ``directory``: where its files go; None: nowhere that a task sees. ``run``: of this
    call, so that two of one job never write the same files. ``flights``: where files are put by tasks that do not see
    the directory. The other files are on each machine that has tasks."""

    options: Options
    plan: Plan
    directory: Path | None
    run: str
    flights: Flights | None = None

    def place(self) -> Place:
        """Where a task writes, found out where it runs."""
        if self.flights is None:
            assert self.directory is not None, "tasks need a place"
            return InPlace(self.directory)
        if (
            self.directory is not None
            and is_marked(self.directory, self.run)
            and is_seen(self.directory, has_flight=True)
        ):
            return InPlace(self.directory)
        return ByFlight(Run(self.flights, self.plan.job, self.run))

    def broker(self, place: Place) -> Broker:
        """Whom a task asks: who puts files needs to reach no other port."""
        return FlightBroker(self) if place.staged == BY_FLIGHT else RemoteBroker(self)


@dataclass(slots=True)
class RemoteBroker:
    """Through a connection for each request: there are few, and between them a task is busy for long."""

    work: Work

    def reserve_ids(self, count: int) -> int:
        """See ``Broker``."""
        with self._client() as client:
            return client.reserve_ids(count)

    def topics(self, names: Sequence[str]) -> dict[str, TopicPlan]:
        """See ``Broker``."""
        with self._client() as client:
            found = client.plan_job(list(names), job=self.work.plan.job)
        return msgspec.convert(found.plan, Plan).topics

    def _client(self) -> sync.Client:
        options = self.work.options
        return sync.Client(options.url, token_file=options.token_file, ca_file=options.ca_file)


@dataclass(slots=True)
class FlightBroker:
    """The same through `tickwheel flight`."""

    work: Work

    def reserve_ids(self, count: int) -> int:
        """See ``Broker``."""
        return self._run.reserve_ids(count)

    def topics(self, names: Sequence[str]) -> dict[str, TopicPlan]:
        """See ``Broker``."""
        return msgspec.convert(self._run.plan(names).plan, Plan).topics

    @property
    def _run(self) -> Run:
        assert self.work.flights is not None
        return Run(self.work.flights, self.work.plan.job, self.work.run)


@dataclass(slots=True)
class Task:
    """One attempt."""

    work: Work
    broker: Broker
    attempt: int
    partition: int
    place: Place | None = None
    report: TaskReport = field(default_factory=TaskReport)
    _gathered: Gathered = field(default_factory=Gathered)
    _topics: dict[str, TopicPlan] = field(default_factory=dict)
    _runs: int = 0

    @property
    def name(self) -> str:
        """With which its files begin."""
        return f"{self.work.run}-{self.attempt}"

    def run(self, batches: Iterable[Any]) -> TaskReport:
        """Raises ``SparkError``; then nothing is left of it that counts."""
        self._topics.update(self.work.plan.topics)
        place = self.work.place() if self.place is None else self.place
        self.report.staged = place.staged
        try:
            with place:
                for batch in batches:
                    self._add(batch)
                    if (
                        self._gathered.bytes >= self.work.options.run_bytes
                        or self._gathered.rows >= MAX_RESERVED_IDS // 2
                    ):
                        self._flush(place)
                self._flush(place)
                place.wait()
        except BaseException as error:
            place.remove(self.name)
            typed = _typed(error, place)
            if typed is None:
                raise
            raise typed from error
        return self.report

    def _add(self, batch: Any) -> None:
        options = self.work.options
        found = checked(batch, options.topic, options.zone)
        self._check_sizes(found)
        self._gathered.add(found)
        self.report.refuse(batch, found, self.partition, options.topic)
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

    def _flush(self, place: Place) -> None:
        if not self._gathered.rows:
            return
        plan = msgspec.structs.replace(self.work.plan, topics=self._topics)
        topics, columns = self._gathered.take(plan)
        name = f"{self.name}-{self._runs}"
        self._runs += 1
        segments = write_segments(
            plan=plan,
            topics=topics,
            columns=columns,
            reserve=self.broker.reserve_ids,
            directory=place.directory,
            name=name,
            syncs=place.syncs,
        )
        self.report.segments += segments
        place.written(segments)


def _typed(error: BaseException, place: Place) -> DataError | None:
    """As an error whose code can be told from Spark's text; None: it stays what it is."""
    if isinstance(error, DataError):
        return None
    if isinstance(error, TickwheelError):
        return failed(error)
    return place.explained(error) if isinstance(error, OSError) else None


def failed(error: TickwheelError) -> ScheduleFailed:
    """What the broker said, as an error of the job."""
    found = ScheduleFailed(error.message, advice=error.advice)
    found.code = error.code
    return found
