"""What is to come: scheduled messages, and deliveries that wait for a subscriber or another attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from timerlog.names import DEAD_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS


def _scheduled(messages: DataFrame) -> DataFrame:
    """Each message that is not in its topic yet, once."""
    return messages.where((F.col("state") == "scheduled") & F.col("is_first"))


def by_topic(messages: DataFrame, now_ms: int) -> DataFrame:
    """Messages of each topic by when they are due, from ``now_ms`` on; each of hour, day and week holds the one before.
    ``overdue``: due already, and still on the wheel. ``backlog``: in its topic, and nobody has taken it, since
    ``backlog_due_ms`` at the longest; dead letters are not counted here. ``backlog`` and ``retries``: once a group."""
    ahead = F.col("deliver_at_ms") - now_ms
    is_scheduled = (F.col("state") == "scheduled") & F.col("is_first")
    is_left = (F.col("state") == "ready") & ~F.col("topic").endswith(DEAD_SUFFIX)
    table = messages.where(is_scheduled | is_left | (F.col("state") == "waiting")).groupBy("topic").agg(
        _count(is_scheduled).alias("scheduled"),
        _count(is_scheduled & (ahead <= 0)).alias("overdue"),
        _count(is_scheduled & ahead.between(1, HOUR_MS)).alias("next_hour"),
        _count(is_scheduled & ahead.between(1, DAY_MS)).alias("next_day"),
        _count(is_scheduled & ahead.between(1, WEEK_MS)).alias("next_week"),
        _count(is_scheduled & (ahead > WEEK_MS)).alias("later"),
        _count(F.col("state") == "waiting").alias("retries"),
        _count(is_left).alias("backlog"),
        F.min(F.when(is_left, F.col("deliver_at_ms"))).alias("backlog_due_ms"),
        F.min(F.when(is_scheduled, F.col("deliver_at_ms"))).alias("next_due_ms"),
        F.max(F.when(is_scheduled, F.col("deliver_at_ms"))).alias("last_due_ms"),
    )  # fmt: skip
    return table.orderBy(F.desc("scheduled"), F.desc("backlog"), "topic")


def by_hour(messages: DataFrame, now_ms: int) -> DataFrame:
    """Messages due in each hour, counted from ``now_ms``, of the next week, by topic."""
    ahead = F.col("deliver_at_ms") - now_ms
    rows = _scheduled(messages).where(ahead.between(1, WEEK_MS))
    hour = F.floor((ahead - 1) / HOUR_MS)
    counted = rows.groupBy(hour.alias("hours_ahead"), "topic").agg(F.count("*").alias("messages"))
    return counted.orderBy("hours_ahead", "topic")


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, True))
