"""Answers of Spark SQL as plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from tickwheel.protocol.errors import TickwheelError
from tickwheel.spark.errors import SparkError, plain_text, spark_errors, understood

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PLAN: Final = re.compile(r"\n\n|;\n\W*\w+ ?[\[(]|;\n'|;\n\+-|\n\tat ")


class BadSql(SparkError):
    """Spark refused the statement: its message says why."""

    code = "bad_query"
    advice = "`describe messages` and `describe events` list the columns."


def as_bad_sql(error: Exception) -> TickwheelError:
    """Why Spark refused a statement: ours, if it tells of one of our errors."""
    return understood(error) or BadSql(first_part(plain_text(error)))


def add_tables(spark: SparkSession, source: Mapping[str, str]) -> None:
    """Makes the tables ``messages`` and ``events`` known to a session. ``source``: options of the data source that say
    where they are."""
    for table in ("messages", "events"):
        reader = spark.read.format("tickwheel").option("table", table)
        reader.options(**source).load().createOrReplaceTempView(table)


def first_part(message: str) -> str:
    """What an error of Spark says, without the plans and stacks behind it."""
    return _PLAN.split(message)[0].strip(" ;\n")


def ask(
    spark: SparkSession, source: Mapping[str, str], statement: str, limit: int
) -> tuple[list[str], list[str], list[list[Any]]]:
    """Names, Spark's types and at most ``limit`` rows of what a statement gives; times have the zone UTC. Raises
    ``BadSql``."""
    try:
        add_tables(spark, source)
        found = spark.sql(statement)
        names, kinds = found.columns, [kind for _, kind in found.dtypes]
        rows = [list(row) for row in found.limit(limit).collect()]
    except spark_errors() as error:
        raise as_bad_sql(error) from None
    for row in rows:
        for place, kind in enumerate(kinds):
            if kind == "timestamp" and row[place] is not None:
                # Spark gives moments as local times of this machine.
                row[place] = row[place].astimezone(UTC)
    return names, kinds, rows
