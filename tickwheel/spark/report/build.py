"""Runs a report's queries and keeps their answers: the only place where Spark is asked to work.

Journeys, cells and messages are each made once and kept by the executors while the tables are made of them. What comes
to the driver is limited: a table that has more rows than ``MAX_ROWS`` is cut, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import functions as F

from tickwheel.spark.report.options import STEPS_MS, ReportOptions, Step, choose_step
from tickwheel.spark.report.queries import attempts, forecast, latency, slowest
from tickwheel.spark.report.queries.journeys import journeys
from tickwheel.spark.report.queries.reading import Frames, read_frames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Rows of one table that are taken to the driver.
MAX_ROWS: Final = 100_000
#: Bytes of the logs for which there is one partition. Spark's 200, whatever there is, cost ten times the work itself
#: for logs of a few hundred megabytes: what is kept is not merged as the results of other queries are.
_PARTITION_BYTES: Final = 32 * 1024 * 1024
_PARTITIONS: Final = "spark.sql.shuffle.partitions"

#: Is told what is done next.
Tell: TypeAlias = Callable[[str], None]


@dataclass(slots=True)
class Answers:
    """A report's tables as Arrow tables, ``cut``: the names of those that have more rows than are here; and single
    figures, ``later``: first deliveries that were later than the target, if there is one. Times are epoch
    milliseconds."""

    options: ReportOptions
    now_ms: int
    step: Step
    totals: dict[str, int]
    later: int | None = None
    tables: dict[str, Any] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A table as plain values."""
        rows: list[dict[str, Any]] = self.tables[name].to_pylist()
        return rows


def build(spark: SparkSession, options: ReportOptions, tell: Tell) -> Answers:
    """Raises ``SourceError`` when a directory cannot be read; what happens in tasks is raised as Spark does it."""
    tell("looking at the directories")
    frames = read_frames(spark, options)
    with _partitions(spark, max(2, frames.log_bytes // _PARTITION_BYTES)):
        return _Building(frames, options, tell).answers()


@contextmanager
def _partitions(spark: SparkSession, number: int) -> Iterator[None]:
    """So many partitions, and afterwards as many as the session had."""
    before = spark.conf.get(_PARTITIONS)
    spark.conf.set(_PARTITIONS, str(number))
    try:
        yield
    finally:
        spark.conf.set(_PARTITIONS, before or "200")


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """In the executors' memory, or on their disks where that is too small."""
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


def _span_ms(samples: DataFrame) -> int:
    (row,) = samples.agg(F.min("happened_ms").alias("first"), F.max("happened_ms").alias("last")).collect()
    return 0 if row["first"] is None else int(row["last"] - row["first"])


def _totals(all_journeys: DataFrame, messages: DataFrame) -> dict[str, int]:
    """What is there in all, whatever the period."""
    (journey,) = all_journeys.agg(
        F.coalesce(F.sum("deliveries"), F.lit(0)).alias("deliveries"),
        F.count_if((F.col("deliveries") > 0) & F.col("lateness_ms").isNull()).alias("lateness_unknown"),
    ).collect()
    (message,) = messages.agg(
        F.count_if(F.col("is_first")).alias("messages"),
        F.count_if(F.col("is_first") & (F.col("state") == "cancelled")).alias("cancelled"),
        F.count_if(F.col("state") == "acked").alias("acked"),
        F.count_if(F.col("state") == "dead").alias("dead"),
    ).collect()
    return {name: int(value) for row in (message, journey) for name, value in row.asDict().items()}


@dataclass(frozen=True, slots=True)
class _Building:
    """One report in the making."""

    frames: Frames
    options: ReportOptions
    tell: Tell

    def answers(self) -> Answers:
        frames, options = self.frames, self.options
        who = slowest.identified(journeys(frames.events), frames.identities, options.tenant)
        with _kept(who) as all_journeys, _kept(frames.messages) as messages:
            samples = latency.samples(all_journeys, options.period)
            self.tell("following the messages through the logs")
            step = options.step or choose_step(_span_ms(samples))
            with _kept(latency.cells(samples, STEPS_MS[step])) as cells:
                self.tell("counting")
                answers = Answers(options, frames.now_ms, step, _totals(all_journeys, messages))
                if options.target_p99_ms is not None:
                    (row,) = cells.agg(latency.later_than(options.target_p99_ms).alias("later")).collect()
                    answers.later = int(row["later"])
                self._add_latency(answers, cells)
                self._add_others(answers, all_journeys, messages)
        return answers

    def _add_latency(self, answers: Answers, cells: DataFrame) -> None:
        def add(name: str, *by: str, order: str = "count") -> None:
            table = latency.percentiles(cells, by).orderBy(F.desc(order), *by, F.desc("measure"))
            self._add(answers, name, table)

        add("latency")
        add("latency_by_topic", "topic")
        add("latency_by_group", "topic", "group")
        add("latency_by_priority", "priority")
        add("latency_by_time", "time_ms", order="time_ms")
        self._add(answers, "distribution", latency.distribution(cells))

    def _add_others(self, answers: Answers, all_journeys: DataFrame, messages: DataFrame) -> None:
        frames, period, top = self.frames, self.options.period, self.options.top
        of_tenants = latency.samples(all_journeys.withColumn("topic", F.col("tenant")), period)
        tenants = latency.percentiles(
            latency.cells(of_tenants, STEPS_MS["day"]).withColumnRenamed("topic", "tenant"), ["tenant"]
        )
        self._add(answers, "attempts", attempts.attempts(all_journeys, period))
        self._add(answers, "nacks", attempts.nacks_by_reason(frames.nacks, all_journeys, period))
        self._add(answers, "slowest_keys", slowest.slowest_keys(all_journeys, period, top))
        self._add(answers, "slowest_tenants", slowest.slowest_tenants(tenants, top))
        self._add(answers, "due_by_topic", forecast.by_topic(messages, answers.now_ms))
        self._add(answers, "due_by_hour", forecast.by_hour(messages, answers.now_ms))
        self._add(answers, "dead_letters", attempts.letters_by_reason(frames.letters, period, MAX_ROWS))
        self._add(answers, "herds", forecast.herds(messages, period, top))

    def _add(self, answers: Answers, name: str, frame: DataFrame) -> None:
        self.tell(f"making the table {name}")
        table = frame.limit(MAX_ROWS + 1).toArrow()
        if table.num_rows > MAX_ROWS:
            answers.cut.add(name)
        answers.tables[name] = table.slice(0, MAX_ROWS)
