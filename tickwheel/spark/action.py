"""One action of Spark whose tasks answer to the driver, instead of writing anywhere that Spark knows of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which task this is, and a number that no other attempt of any task of the session has."""

    partition: int
    number: int


S = TypeVar("S", bound=msgspec.Struct)


def run_action(
    frame: DataFrame, work: Callable[[Iterable[Any], Attempt], Iterable[S]], answer: type[S]
) -> list[S]:
    """What ``work`` gives for the batches of each partition, in no order, and only of the attempts that won: a task
    that fails is run again. It is one action: another one would do everything twice. Raises ``PySparkException``."""

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "only a task of Spark runs this"
        for one in work(batches, Attempt(context.partitionId(), context.taskAttemptId())):
            packed = pa.array([msgspec.msgpack.encode(one)], pa.binary())
            yield pa.RecordBatch.from_arrays([packed], names=["answer"])

    rows = frame.mapInArrow(task, "answer binary").collect()
    return [msgspec.msgpack.decode(bytes(row.answer), type=answer) for row in rows]
