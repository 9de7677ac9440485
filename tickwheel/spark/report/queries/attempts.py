"""How many attempts messages took until they were acked or became dead letters, and what the subscribers said when they
gave a delivery back, or a message up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tickwheel.spark.report.options import Period
from tickwheel.spark.report.queries.latency import inside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: More attempts than these are counted together.
MOST: Final = 50

_WHOSE: Final = ["log", "id", "group"]
_HEADER: Final = "tickwheel-dead"
_STORY: Final = "topic string, group string, attempts bigint, error string"
#: A letter that was replayed or dropped is cancelled; one that a subscriber of the letters' topic took is acked.
_DONE: Final = ("acked", "cancelled", "expired", "damaged")


def attempts(journeys: DataFrame, period: Period) -> DataFrame:
    """Messages, once a group, by attempts and outcome. Acked and dead ones belong to the time when they were done, open
    ones to that of their last delivery."""
    moment = F.coalesce("done_ms", "last_delivered_ms")
    rows = journeys.where((F.col("attempts") > 0) & inside(moment, period))
    counted = rows.withColumn("attempts", F.least("attempts", F.lit(MOST)))
    return (
        counted.groupBy("attempts", "outcome")
        .agg(F.count("*").alias("messages"))
        .orderBy("attempts", "outcome")
    )


def nacks_by_reason(nacks: DataFrame, journeys: DataFrame, period: Period) -> DataFrame:
    """Nacks and the messages that they are of, by topic, group and error. The log does not say when a nack was: it
    belongs to the time of its message, as attempts do. A reason of NULL: none was given, or the lease ended."""
    moment = F.coalesce("done_ms", "last_delivered_ms")
    within = journeys.where(inside(moment, period)).select(*_WHOSE)
    rows = nacks.join(within, _WHOSE, "left_semi")
    counted = rows.groupBy("topic", "group", F.nullif("error", F.lit("")).alias("reason")).agg(
        F.count("*").alias("nacks"),
        F.count_distinct("log", "id").alias("messages"),
    )
    return counted.orderBy(F.desc("nacks"), "topic", "group", "reason")


def letters_by_reason(letters: DataFrame, period: Period, limit: int) -> DataFrame:
    """The letters of a period, also those that were replayed or dropped since and are not purged yet, by topic,
    group and last error. ``still_there``: those that were not dealt with. A reason of NULL: the group never
    said one, its leases ended."""
    told = F.element_at(F.from_json("headers", "map<string,string>"), F.lit(_HEADER))
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
