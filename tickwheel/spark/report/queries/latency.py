"""Percentiles of lateness and ack latency: exact, by nearest rank, without a group having to fit into memory.

The journeys become *cells* first: how many messages of a topic, group, priority and step of time took so many
milliseconds. All tables are made of these cells. A percentile is the smallest value that at least so many of a
hundred values do not exceed, so it is always a value that was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from tickwheel.spark.report.options import Period

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MEASURES: Final = ("lateness", "ack_latency")
#: Names of the percentiles, and each in thousandths: fractions of 10 are not exact in binary.
PERCENTILES: Final = {"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p99_9_ms": 999}
#: Where the bars of a distribution begin: 0, 1, 2, 3, 5, 7, 10, 20 … milliseconds, to more than a thousand years.
EDGES_MS: Final = (0, *(digit * 10**power for power in range(14) for digit in (1, 2, 3, 5, 7)))


def inside(time_ms: Column, period: Period) -> Column:
    """Whether a time lies in a period; what has no time does not."""
    condition = time_ms.isNotNull()
    if period.since_ms is not None:
        condition &= time_ms >= period.since_ms
    if period.until_ms is not None:
        condition &= time_ms < period.until_ms
    return condition


def samples(journeys: DataFrame, period: Period) -> DataFrame:
    """The lateness of each first delivery and the latency of each ack in a period: ``measure``, ``happened_ms``,
    ``ms``, and whose it was."""
    measured = F.array(
        _sample("lateness", "delivered_ms", "lateness_ms"),
        _sample("ack_latency", "acked_ms", "ack_latency_ms"),
    )
    one_each = journeys.select("topic", "group", "priority", F.explode(measured).alias("one"))
    flat = one_each.select("topic", "group", "priority", "one.*")
    return flat.where(F.col("ms").isNotNull() & inside(F.col("happened_ms"), period))


def _sample(measure: str, happened_ms: str, ms: str) -> Column:
    return F.struct(
        F.lit(measure).alias("measure"), F.col(happened_ms).alias("happened_ms"), F.col(ms).alias("ms")
    )


def cells(samples: DataFrame, step_ms: int) -> DataFrame:
    """How many samples have which value, by everything that a table may ask for."""
    start = F.col("happened_ms") - F.pmod("happened_ms", F.lit(step_ms))
    by = ("measure", "topic", "group", "priority", "time_ms", "ms")
    return samples.withColumn("time_ms", start).groupBy(*by).agg(F.count("*").alias("count"))


def percentiles(cells: DataFrame, by: Sequence[str] = ()) -> DataFrame:
    """Count, how many were early, mean, percentiles and extremes of each measure, for each value of some columns."""
    keys = ["measure", *by]
    whole = Window.partitionBy(*keys)
    so_far = whole.orderBy("ms").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    merged = cells.groupBy(*keys, "ms").agg(F.sum("count").alias("n"))
    ranked = merged.withColumns({"total": F.sum("n").over(whole), "rank": F.sum("n").over(so_far)})
    found = [
        F.min(F.when(F.col("rank") * 1_000 >= F.col("total") * thousandths, F.col("ms"))).alias(name)
        for name, thousandths in PERCENTILES.items()
    ]
    return ranked.groupBy(*keys).agg(
        F.sum("n").alias("count"),
        F.coalesce(F.sum(F.when(F.col("ms") < 0, F.col("n"))), F.lit(0)).alias("early"),
        F.min("ms").alias("min_ms"),
        (F.sum(F.col("ms") * F.col("n")) / F.sum("n")).alias("mean_ms"),
        *found,
        F.max("ms").alias("max_ms"),
    )


def later_than(target_ms: int) -> Column:
    """How many first deliveries were later, of ``cells``."""
    is_later = (F.col("measure") == "lateness") & (F.col("ms") > target_ms)
    return F.coalesce(F.sum(F.when(is_later, F.col("count"))), F.lit(0))


def distribution(cells: DataFrame) -> DataFrame:
    """How many samples of each measure lie from one edge to the next; early ones lie at -1."""
    edges = F.array(*[F.lit(edge) for edge in EDGES_MS])
    from_ms = F.coalesce(F.array_max(F.filter(edges, lambda edge: edge <= F.col("ms"))), F.lit(-1))
    by_edge = cells.withColumn("from_ms", from_ms).groupBy("measure", "from_ms")
    return by_edge.agg(F.sum("count").alias("count")).orderBy("measure", "from_ms")
