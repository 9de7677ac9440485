"""One row for each message and group: when it was due, when it was delivered first, how it went on, how it ended.

*Due* is what was promised when the delivery happened: the time of the last send or reschedule before it in the log, and
never before the broker had the message. A later reschedule changes the column ``deliver_at`` of the message, but
not what was promised for a delivery before it; so the log decides, and ``deliver_at`` only where purging has
taken that part of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

_OPEN, _ACKED, _DEAD = range(3)


def steps(events: DataFrame) -> DataFrame:
    """The events of groups, each with when its message was due (``due_ms``) and when the group was last given it
    (``given_ms``). Events of messages that are gone, of which nothing is known, are left out."""
    order = ("position", "place")
    so_far = Window.unboundedPreceding, Window.currentRow
    of_message = Window.partitionBy("log", "id").orderBy(*order).rowsBetween(*so_far)
    of_group = Window.partitionBy("log", "id", "group").orderBy(*order).rowsBetween(*so_far)

    def last(condition: Column, value: str, window: WindowSpec) -> Column:
        return F.last(F.when(condition, F.col(value)), ignorenulls=True).over(window)

    promised = last(F.col("event").isin("sent", "rescheduled"), "next_ms", of_message)
    created = last(F.col("event") == "sent", "happened_ms", of_message)
    given = last(F.col("event") == "delivered", "happened_ms", of_group)
    known = events.where(F.col("id").isNotNull())
    # `greatest` passes over NULL.
    due = F.greatest(F.coalesce(promised, F.col("deliver_at_ms")), created)
    of_groups = known.withColumn("due_ms", due).where(F.col("group").isNotNull())
    return of_groups.withColumn("given_ms", given)


def journeys(events: DataFrame) -> DataFrame:
    """``lateness_ms``: of the first delivery. ``ack_latency_ms``: from the last delivery before the last ack to that.
    ``attempts``: deliveries, without those that came back unseen. ``outcome``: acked, dead, or open. ``done_ms``:
    when it was acked or became a dead letter; ``done_after_ms``: how long after it was due."""
    rows = steps(events)
    # Spark aggregates numbers in place, and sorts for texts.
    last = F.when(F.col("event") == "acked", _ACKED).when(F.col("event") == "dead", _DEAD).otherwise(_OPEN)
    is_delivered, is_first = F.col("event") == "delivered", F.col("epoch") == 1
    first = is_delivered & is_first
    by_group = rows.groupBy("log", "id", "group", "topic").agg(
        F.first("priority", ignorenulls=True).alias("priority"),
        F.min(F.when(first, F.col("happened_ms"))).alias("delivered_ms"),
        F.min(F.when(first, F.col("happened_ms") - F.col("due_ms"))).alias("lateness_ms"),
        (F.count_if(is_delivered) - F.count_if(F.col("event") == "returned")).alias("attempts"),
        F.count_if(is_delivered).alias("deliveries"),
        F.max(F.when(is_delivered, F.col("happened_ms"))).alias("last_delivered_ms"),
        F.max_by(last, "position").alias("_last"),
        _latest("acked", F.col("happened_ms")).alias("acked_ms"),
        _latest("acked", F.col("happened_ms") - F.col("given_ms")).alias("ack_latency_ms"),
        _latest("acked", F.col("due_ms")).alias("_acked_due_ms"),
        _latest("dead", F.col("happened_ms")).alias("dead_ms"),
        _latest("dead", F.col("due_ms")).alias("_dead_due_ms"),
    )
    is_acked, is_dead = F.col("_last") == _ACKED, F.col("_last") == _DEAD
    outcome = F.when(is_acked, "acked").when(is_dead, "dead").otherwise("open")
    done = F.when(is_acked, F.col("acked_ms")).when(is_dead, F.col("dead_ms"))
    done_due = F.when(is_acked, F.col("_acked_due_ms")).when(is_dead, F.col("_dead_due_ms"))
    finished = by_group.withColumns({"outcome": outcome, "done_ms": done, "done_after_ms": done - done_due})
    return finished.drop("_last", "_acked_due_ms", "_dead_due_ms")


def _latest(event: str, value: Column) -> Column:
    """The value at the last event of a name."""
    return F.max_by(value, F.when(F.col("event") == event, F.col("position")))
