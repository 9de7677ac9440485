"""Deliveries that were given back, by what the subscribers said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tickwheel.spark.report.options import Period
from tickwheel.spark.report.queries.latency import inside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WHOSE = ["log", "id", "group"]


def by_reason(nacks: DataFrame, journeys: DataFrame, period: Period) -> DataFrame:
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
