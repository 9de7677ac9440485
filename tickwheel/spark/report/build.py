"""Runs a report's queries and keeps their answers: the only place where Spark is asked to work.

Journeys, cells and messages are each made once and kept by the executors while the tables are made of them. What comes
to the driver is limited: a table that has more rows than ``MAX_ROWS`` is cut, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from tickwheel.spark.report.options import STEPS_MS, ReportOptions, Step, choose_step
from tickwheel.spark.report.queries import attempts, forecast, herds, latency, letters, slowest
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


@dataclass(slots=True)
class Answers:
    """A report's tables as Arrow tables, ``cut``: the names of those that have more rows than are here; and single
    figures. Times are epoch milliseconds."""

    options: ReportOptions
    now_ms: int
    step: Step
    totals: dict[str, int]
    tables: dict[str, Any] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A table as plain values."""
        rows: list[dict[str, Any]] = self.tables[name].to_pylist()
        return rows


def build(spark: SparkSession, options: ReportOptions) -> Answers:
    """Raises ``SourceError`` when a directory cannot be read; what happens in tasks is raised as Spark does it."""
    frames = read_frames(spark, options)
    with _partitions(spark, max(2, frames.log_bytes // _PARTITION_BYTES)):
        return _answered(frames, options)


@contextmanager
def _partitions(spark: SparkSession, number: int) -> Iterator[None]:
    """So many partitions, and afterwards as many as the session had."""
    before = spark.conf.get(_PARTITIONS)
    spark.conf.set(_PARTITIONS, str(number))
    try:
        yield
    finally:
        spark.conf.set(_PARTITIONS, before or "200")


def _answered(frames: Frames, options: ReportOptions) -> Answers:
    who = slowest.identified(journeys(frames.events), frames.identities, options.tenant)
    with _kept(who) as all_journeys, _kept(frames.messages) as messages:
        samples = latency.samples(all_journeys, options.period)
        span_ms = _span_ms(samples)
        step = options.step or choose_step(span_ms)
        with _kept(latency.cells(samples, STEPS_MS[step])) as cells:
            answers = Answers(options, frames.now_ms, step, _totals(all_journeys, messages))
            _add_latency(answers, cells)
            _add_others(answers, frames, all_journeys, messages)
    return answers


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
        F.count(F.when((F.col("deliveries") > 0) & F.col("lateness_ms").isNull(), True)).alias("lateness_unknown"),
    ).collect()  # fmt: skip
    (message,) = messages.agg(
        F.count(F.when(F.col("is_first"), True)).alias("messages"),
        F.count(F.when(F.col("is_first") & (F.col("state") == "cancelled"), True)).alias("cancelled"),
        F.count(F.when(F.col("state") == "acked", True)).alias("acked"),
        F.count(F.when(F.col("state") == "dead", True)).alias("dead"),
    ).collect()
    return {name: int(value) for row in (message, journey) for name, value in row.asDict().items()}


def _add_latency(answers: Answers, cells: DataFrame) -> None:
    def add(name: str, *by: str, order: str = "count") -> None:
        table = latency.percentiles(cells, by).orderBy(F.desc(order), *by, F.desc("measure"))
        _add(answers, name, table)

    add("latency")
    add("latency_by_topic", "topic")
    add("latency_by_group", "topic", "group")
    add("latency_by_priority", "priority")
    add("latency_by_time", "time_ms", order="time_ms")
    _add(answers, "distribution", latency.distribution(cells))


def _add_others(answers: Answers, frames: Frames, all_journeys: DataFrame, messages: DataFrame) -> None:
    period, top = answers.options.period, answers.options.top
    of_tenants = latency.samples(all_journeys.withColumn("topic", F.col("tenant")), period)
    tenants = latency.percentiles(
        latency.cells(of_tenants, STEPS_MS["day"]).withColumnRenamed("topic", "tenant"), ["tenant"]
    )
    _add(answers, "attempts", attempts.attempts(all_journeys, period))
    _add(answers, "slowest_keys", slowest.slowest_keys(all_journeys, period, top))
    _add(answers, "slowest_tenants", slowest.slowest_tenants(tenants, top))
    _add(answers, "due_by_topic", forecast.by_topic(messages, answers.now_ms))
    _add(answers, "due_by_hour", forecast.by_hour(messages, answers.now_ms))
    _add(answers, "dead_letters", letters.by_reason(frames.letters, period, MAX_ROWS))
    _add(answers, "herds", herds.herds(messages, period, top))


def _add(answers: Answers, name: str, frame: DataFrame) -> None:
    table = frame.limit(MAX_ROWS + 1).toArrow()
    if table.num_rows > MAX_ROWS:
        answers.cut.add(name)
    answers.tables[name] = table.slice(0, MAX_ROWS)
