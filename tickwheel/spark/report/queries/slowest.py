"""The keys that waited longest, and the tenants whose messages were latest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from tickwheel.spark.report.options import Period, Tenant
from tickwheel.spark.report.queries.latency import inside

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def tenant_of(tenant: Tenant) -> Column:
    """The tenant of a row of ``identities``; NULL: none."""
    if tenant.kind == "order-key":
        return F.col("order_key")
    if tenant.kind == "header":
        # As a map and not by a path: a header may have any name.
        return F.element_at(F.from_json("headers", "map<string,string>"), F.lit(tenant.value))
    has_prefix = F.instr("key", tenant.value) > 0
    return F.when(has_prefix, F.substring_index("key", tenant.value, 1))


def identified(rows: DataFrame, identities: DataFrame, tenant: Tenant) -> DataFrame:
    """Rows with the key and the tenant of their message."""
    who = identities.withColumn("tenant", tenant_of(tenant)).select("log", "id", "key", "tenant")
    return rows.join(who, ["log", "id"], "left")


def slowest_keys(identified: DataFrame, period: Period, limit: int) -> DataFrame:
    """The keys whose messages took longest from due to done, or, while they are open, to their first delivery. A
    message without a key is a row of its own."""
    rows = identified.where(inside(F.coalesce("done_ms", "last_delivered_ms"), period))
    waited = F.coalesce("done_after_ms", "lateness_ms")
    named = rows.withColumn("without_key_id", F.when(F.col("key").isNull(), F.col("id")))
    by_key = named.groupBy("topic", "key", "without_key_id").agg(
        F.max(waited).alias("waited_max_ms"),
        F.max("lateness_ms").alias("lateness_max_ms"),
        F.max("ack_latency_ms").alias("ack_latency_max_ms"),
        F.max("attempts").alias("attempts_max"),
        F.max_by("group", waited).alias("slowest_group"),
        F.max_by("id", waited).alias("slowest_id"),
    )
    ordered = by_key.where(F.col("waited_max_ms").isNotNull()).drop("without_key_id")
    return ordered.orderBy(F.desc("waited_max_ms"), "topic", F.asc_nulls_last("key"), "slowest_id").limit(
        limit
    )


def slowest_tenants(percentiles: DataFrame, limit: int) -> DataFrame:
    """Those with the greatest p99 of lateness first; of what ``latency.percentiles`` gives by tenant."""
    late = percentiles.where((F.col("measure") == "lateness") & F.col("tenant").isNotNull()).drop("measure")
    return late.orderBy(F.desc("p99_ms"), F.desc("max_ms"), "tenant").limit(limit)
