"""How many attempts messages took until they were acked or became dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tickwheel.spark.report.options import Period
from tickwheel.spark.report.queries.latency import inside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: More attempts than these are counted together.
MOST: Final = 50


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
