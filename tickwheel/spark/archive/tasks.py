"""Runs work of the archive on Spark: a task for each part or for several, whose answers come back as JSON.

A task that fails is run again, and only answers of attempts that succeeded reach the driver. One action is run for each
call: a second one would do everything twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import pyarrow as pa

from tickwheel.spark.errors import understood

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
    from pyspark.errors import PySparkException

    if not parts:
        return []

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "only a task of Spark does this"
        for number in numbers_of(batches):
            found = work(parts[number], f"{number:05d}-{context.taskAttemptId()}")
            yield pa.RecordBatch.from_arrays(
                [pa.array([msgspec.json.encode(found)], pa.binary())], ["answer"]
            )

    try:
        rows = part_frame(spark, len(parts)).mapInArrow(task, "answer binary").collect()
    except PySparkException as error:
        raise understood(error) or error from None
    return [msgspec.json.decode(bytes(row.answer), type=answer) for row in rows]


def part_frame(spark: SparkSession, count: int) -> DataFrame:
    """The numbers from 0, each in a partition of its own, or several where there are very many."""
    return spark.range(0, count, 1, numPartitions=min(count, _MAX_TASKS))


def numbers_of(batches: Iterable[Any]) -> Iterator[int]:
    """The numbers of the parts that a task got."""
    for batch in batches:
        yield from batch.column("id").to_pylist()
