"""The milliseconds in which most messages are, or were, due: what makes a broker and its subscribers work hardest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tickwheel.spark.report.options import Period
from tickwheel.spark.report.queries.latency import inside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def herds(messages: DataFrame, period: Period, limit: int) -> DataFrame:
    """The instants with most messages, those that were cancelled left out; an instant with one message is no herd."""
    rows = messages.where(F.col("is_first") & (F.col("state") != "cancelled"))
    rows = rows.where(inside(F.col("deliver_at_ms"), period))
    by_topic = rows.groupBy("deliver_at_ms", "topic").agg(F.count("*").alias("of_topic"))
    instants = by_topic.groupBy("deliver_at_ms").agg(
        F.sum("of_topic").alias("messages"),
        F.count("*").alias("topics"),
        F.max_by("topic", F.struct("of_topic", "topic")).alias("largest_topic"),
    )
    return instants.where("messages > 1").orderBy(F.desc("messages"), "deliver_at_ms").limit(limit)
