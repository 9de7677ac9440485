"""Runs work of the archive on Spark: a task for each part or for several, which answer to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from tickwheel.spark.action import Attempt, run_action
from tickwheel.spark.errors import as_ours, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Starting a task costs about 20 ms.
_MAX_TASKS: Final = 512

P = TypeVar("P")
S = TypeVar("S", bound=msgspec.Struct)


def run_tasks(
    spark: SparkSession, parts: Sequence[P], work: Callable[[P, str], S], answer: type[S]
) -> list[S]:
    """What ``work`` gives for each part, in no order. Its second argument is a name that no other attempt of any task
    of this call has. Raises what the work raises, if it is an error of ours."""
    if not parts:
        return []

    def task(batches: Iterable[Any], attempt: Attempt) -> Iterator[S]:
        for number in numbers_of(batches):
            yield work(parts[number], f"{number:05d}-{attempt.number}")

    try:
        return run_action(part_frame(spark, len(parts)), task, answer)
    except spark_errors() as error:
        raise as_ours(error) from None


def part_frame(spark: SparkSession, count: int) -> DataFrame:
    """The numbers from 0, each in a partition of its own, or several where there are very many."""
    return spark.range(0, count, 1, numPartitions=min(count, _MAX_TASKS))


def numbers_of(batches: Iterable[Any]) -> Iterator[int]:
    """The numbers of the parts that a task got."""
    for batch in batches:
        yield from batch.column("id").to_pylist()
