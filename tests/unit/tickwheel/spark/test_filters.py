"""Filters of Spark: what is taken, what is left, and what reaches a process that speaks no Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import datasource as spark

from tests.support.run.cases import table
from tickwheel.arrow.columns import MESSAGE_COLUMNS
from tickwheel.arrow.predicates import Predicate, condition, parse_conditions
from tickwheel.spark.filters import take_filters

NOW = datetime(2031, 5, 1, tzinfo=UTC)
ARRAYS = {
    "id": pa.array([1, 2, None, 4], pa.int64()),
    "key": pa.array(["a", "ab", None, "b"]),
    "deliver_at": pa.array([NOW, NOW + timedelta(microseconds=1), None, NOW], pa.timestamp("us", "UTC")),
}


def test_filters_of_spark_that_are_taken() -> None:
    filters = [
        spark.EqualTo(("state",), "acked"),
        spark.Not(spark.In(("id",), (1, 2))),
        spark.IsNotNull(("key",)),
        spark.LessThan(("deliver_at",), NOW),
        spark.Not(spark.StringContains(("topic",), "x")),
    ]
    taken, left = take_filters(filters, MESSAGE_COLUMNS)
    assert left == []
    assert taken == [
        Predicate("state", "equal", "acked"),
        Predicate("id", "is_in", [1, 2], negated=True),
        Predicate("key", "is_null", negated=True),
        Predicate("deliver_at", "less", NOW),
        Predicate("topic", "match_substring", "x", negated=True),
    ]


def test_filters_that_are_left_to_spark() -> None:
    filters = [
        spark.EqualTo(("body",), b"x"),
        spark.EqualTo(("headers", "inside"), "x"),
        spark.In(("id",), (1, None)),
        spark.EqualNullSafe(("id",), 1),
        spark.Not(spark.Not(spark.EqualTo(("id",), 1))),
        spark.LessThan(("deliver_at",), datetime(2031, 5, 1)),
        spark.GreaterThan(("priority",), 1 << 40),
    ]
    assert take_filters(filters, MESSAGE_COLUMNS) == ([], filters)


@table(
    ("found", "expected"),
    [
        (spark.EqualTo(("id",), 2), [1]),
        (spark.GreaterThan(("id",), 1), [1, 3]),
        (spark.GreaterThanOrEqual(("id",), 2), [1, 3]),
        (spark.LessThan(("id",), 2), [0]),
        (spark.LessThanOrEqual(("id",), 2), [0, 1]),
        (spark.In(("id",), (1, 4)), [0, 3]),
        (spark.IsNull(("id",)), [2]),
        (spark.StringStartsWith(("key",), "a"), [0, 1]),
        (spark.StringEndsWith(("key",), "b"), [1, 3]),
        (spark.StringContains(("key",), "b"), [1, 3]),
        (spark.GreaterThan(("deliver_at",), NOW), [1]),
        (spark.EqualTo(("deliver_at",), NOW + timedelta(microseconds=1)), [1]),
    ],
)
def test_a_filter_means_the_same_as_a_condition(found: Any, expected: list[int]) -> None:
    """Each filter and its opposite, as they go over the network."""
    for one in (found, spark.Not(found)):
        (predicate,), _ = take_filters([one], MESSAGE_COLUMNS)
        (again,) = parse_conditions(msgspec.json.encode([condition(predicate)]).decode(), MESSAGE_COLUMNS)
        array = ARRAYS[predicate.column]
        wanted = predicate.passes(array)
        assert again.passes(array).tolist() == wanted.tolist()
        if one is found:
            assert np.flatnonzero(wanted).tolist() == expected
