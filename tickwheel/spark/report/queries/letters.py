"""Dead letters by reason: what the subscribers said when they gave messages up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tickwheel.spark.report.options import Period
from tickwheel.spark.report.queries.latency import inside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HEADER: Final = "tickwheel-dead"
_STORY: Final = "topic string, group string, attempts bigint, error string"
#: A letter that was replayed or dropped is cancelled; one that a subscriber of the letters' topic took is acked.
_DONE: Final = ("acked", "cancelled", "expired", "damaged")


def by_reason(letters: DataFrame, period: Period, limit: int) -> DataFrame:
    """The letters of a period, also those that were replayed or dropped since and are not purged yet, by topic,
    group and last error. ``still_there``: those that were not dealt with. A reason of NULL: the group never
    said one, its leases ended."""
    told = F.element_at(F.from_json("headers", "map<string,string>"), F.lit(HEADER))
    rows = letters.where(inside(F.col("created_ms"), period)).withColumn("story", F.from_json(told, _STORY))
    counted = rows.groupBy(
        F.col("story.topic").alias("topic"), F.col("story.group").alias("group"),
        F.nullif("dead_reason", F.lit("")).alias("reason"),
    ).agg(
        F.count("*").alias("letters"),
        F.count_if(~F.col("state").isin(*_DONE)).alias("still_there"),
        F.max("story.attempts").alias("attempts_max"),
        F.min("created_ms").alias("first_ms"),
        F.max("created_ms").alias("last_ms"),
    )  # fmt: skip
    return counted.orderBy(F.desc("letters"), "topic", "group", "reason").limit(limit)
