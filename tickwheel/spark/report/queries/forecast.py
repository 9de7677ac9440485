"""When messages are due: what is to come (scheduled messages, and deliveries that wait for a subscriber or another
attempt), and the milliseconds in which most are, or were, due: what makes a broker and its subscribers work hardest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from tickwheel.spark.report.options import Period
from tickwheel.spark.report.queries.latency import inside
from timerlog.names import DEAD_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS


def by_topic(messages: DataFrame, now_ms: int) -> DataFrame:
    """Messages of each topic by when they are due, from ``now_ms`` on; each of hour, day and week holds the one before.
    ``overdue``: due already, and still on the wheel. ``backlog``: in its topic, and not delivered yet, since
    ``backlog_due_ms`` at the longest; dead letters are not counted here. ``backlog`` and ``retries``: once a group."""
    ahead = F.col("deliver_at_ms") - now_ms
    is_scheduled = (F.col("state") == "scheduled") & F.col("is_first")
    is_left = (F.col("state") == "ready") & ~F.col("topic").endswith(DEAD_SUFFIX)
    table = messages.where(is_scheduled | is_left | (F.col("state") == "waiting")).groupBy("topic").agg(
        F.count_if(is_scheduled).alias("scheduled"),
        F.count_if(is_scheduled & (ahead <= 0)).alias("overdue"),
        F.count_if(is_scheduled & ahead.between(1, HOUR_MS)).alias("next_hour"),
        F.count_if(is_scheduled & ahead.between(1, DAY_MS)).alias("next_day"),
        F.count_if(is_scheduled & ahead.between(1, WEEK_MS)).alias("next_week"),
        F.count_if(is_scheduled & (ahead > WEEK_MS)).alias("later"),
        F.count_if(F.col("state") == "waiting").alias("retries"),
        F.count_if(is_left).alias("backlog"),
        F.min(F.when(is_left, F.col("deliver_at_ms"))).alias("backlog_due_ms"),
        F.min(F.when(is_scheduled, F.col("deliver_at_ms"))).alias("next_due_ms"),
        F.max(F.when(is_scheduled, F.col("deliver_at_ms"))).alias("last_due_ms"),
    )  # fmt: skip
    return table.orderBy(F.desc("scheduled"), F.desc("backlog"), "topic")


def by_hour(messages: DataFrame, now_ms: int) -> DataFrame:
    """Messages due in each hour, counted from ``now_ms``, of the next week, by topic."""
    ahead = F.col("deliver_at_ms") - now_ms
    is_scheduled = (F.col("state") == "scheduled") & F.col("is_first")
    rows = messages.where(is_scheduled & ahead.between(1, WEEK_MS))
    hour = F.floor((ahead - 1) / HOUR_MS)
    counted = rows.groupBy(hour.alias("hours_ahead"), "topic").agg(F.count("*").alias("messages"))
    return counted.orderBy("hours_ahead", "topic")


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
