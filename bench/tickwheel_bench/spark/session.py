"""What the benchmarks with Spark share: a session, a broker, rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tickwheel import sync
from tickwheel_bench.daemon import Daemon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHARDS = 16
HOUR_MS = 3_600_000
HOURS = 24
FEW_HOURS = 2  # each hour of each shard is a file: for trying whether it works at all


def with_spark(
    directory: Path, measure: Callable[[SparkSession, Daemon], dict[str, Any]], *flags: str
) -> dict[str, Any]:
    """What is measured with a session on two cores and a broker in ``directory``, started with ``flags``; or why it
    cannot be."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        return {"skipped": f"{', '.join(missing)} cannot be imported: pip install 'tickwheel[spark]'"}
    from tickwheel.spark import JavaMissing

    try:
        with _spark(directory.parent / "spark") as spark, Daemon(directory, *flags) as daemon:
            return measure(spark, daemon)
    except JavaMissing as error:
        return {"skipped": str(error)}


@contextmanager
def _spark(folder: Path) -> Iterator[SparkSession]:
    from tickwheel.spark import session

    spark = session(app="bench", master="local[2]", progress=False, conf={"spark.local.dir": str(folder)})
    try:
        yield spark
    finally:
        spark.stop()


def make_rows(spark: SparkSession, path: Path, count: int, start_ms: int, hours: int) -> DataFrame:
    """A file of rows in no order of time."""
    from pyspark.sql import functions as F

    number = F.col("id")
    due_ms = start_ms + F.pmod(F.xxhash64(number), F.lit(hours * HOUR_MS))
    columns = (
        F.concat(F.lit("key-"), number).alias("key"),
        F.timestamp_millis(due_ms).alias("deliver_at"),
        F.rpad(F.concat(F.lit("call "), number), 100, ".").cast("binary").alias("body"),
    )
    spark.range(count, numPartitions=8).select(*columns).write.mode("overwrite").parquet(str(path))
    return spark.read.parquet(str(path))


def create_topic(daemon: Daemon, topic: str) -> None:
    """With shards."""
    with sync.Client(daemon.url) as client:
        client.create_topic(topic, shards=SHARDS)
