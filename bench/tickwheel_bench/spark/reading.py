"""Reading messages with Spark, against reading the same rows from Parquet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tickwheel_bench.daemon import Daemon
from tickwheel_bench.spark.session import FEW_HOURS, HOUR_MS, HOURS, create_topic, make_rows, with_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MESSAGES = 10_000_000
WARM_ROUNDS, ROUNDS = 3, 5
FILTERED = "topic,deliver_at"
SCANNED = "id,topic,key,priority,state,time_created,deliver_at"

Way: TypeAlias = Callable[[dict[str, str]], "DataFrame"]
"""How to read messages, with these options of the data source."""


def reading(directory: Path, scale: float) -> dict[str, Any]:
    """Ten million scheduled messages with keys and bodies of 100 bytes; each query five times, the best counts."""
    return with_spark(directory, lambda spark, daemon: _measure(spark, directory, daemon, scale))


def _measure(spark: SparkSession, directory: Path, daemon: Daemon, scale: float) -> dict[str, Any]:
    count, parquet, since_ms = prepared(spark, directory, daemon, scale)
    ways: dict[str, Way] = {
        "ours": lambda options: in_place(spark, directory, **options),
        "parquet": lambda _: spark.read.parquet(parquet),
    }
    return {"messages": count} | compared(ways, since_ms)


def compared(ways: Mapping[str, Way], since_ms: int) -> dict[str, Any]:
    """Seconds of each query in each way, and how much longer than in the first the others took. All find the same.

    The ways take turns, and the first rounds count for none: Java is faster from round to round.
    """
    figures: dict[str, Any] = {}
    first, *others = ways
    for name, (options, query) in _queries(since_ms).items():
        seconds = dict.fromkeys(ways, float("inf"))
        for number in range(WARM_ROUNDS + ROUNDS):
            rounds = {way: _timed(query, load, options) for way, load in ways.items()}
            assert all(found == rounds[first][1] for _, found in rounds.values()), (name, rounds)
            if number >= WARM_ROUNDS:
                seconds = {way: min(seconds[way], taken_s) for way, (taken_s, _) in rounds.items()}
        figures[name] = {f"{way}_s": round(taken_s, 2) for way, taken_s in seconds.items()}
        for way in others:
            figures[name][f"{way}_over_{first}"] = round(seconds[way] / seconds[first], 2)
    return figures


def prepared(spark: SparkSession, directory: Path, daemon: Daemon, scale: float) -> tuple[int, str, int]:
    """Schedules the messages, and writes the same rows to Parquet: the count of messages, the path of the Parquet
    files, and the epoch ms from which on the last tenth of the messages is due."""
    from tickwheel.spark import schedule_messages

    count, hours = int(MESSAGES * scale), HOURS if scale >= 1 else FEW_HOURS
    start_ms = (int(time.time() * 1000) // HOUR_MS + 48) * HOUR_MS
    create_topic(daemon, "read")
    rows = make_rows(spark, directory.parent / "rows", count, start_ms, hours)
    assert schedule_messages(rows, url=daemon.url, topic="read").messages == count
    parquet = str(directory.parent / "messages")
    in_place(spark, directory).write.parquet(parquet)
    return count, parquet, start_ms + hours * HOUR_MS * 9 // 10


def _queries(since_ms: int) -> dict[str, tuple[dict[str, str], Callable[[DataFrame], Any]]]:
    """By name: options of the data source, and what is asked."""
    return {
        "filtered_aggregate": (_filtered(since_ms), lambda frame: _aggregate(frame, since_ms)),
        "full_scan_7_columns": ({"columns": SCANNED}, lambda frame: _scan(frame.select(*SCANNED.split(",")))),
        "full_scan_with_body": (
            {"columns": f"{SCANNED},body"},
            lambda frame: _scan(frame.select(*SCANNED.split(","), "body")),
        ),
    }


def in_place(spark: SparkSession, directory: Path, **options: str) -> DataFrame:
    """The messages of a data directory."""
    return spark.read.format("tickwheel").options(**options).load(str(directory))


def _filtered(since_ms: int) -> dict[str, str]:
    from tickwheel.spark import conditions

    since = datetime.fromtimestamp(since_ms / 1_000, UTC).isoformat()
    return {"columns": FILTERED, "filters": conditions(("deliver_at", ">=", since))}


def _aggregate(frame: DataFrame, since_ms: int) -> Any:
    """The last tenth of the time, by shard."""
    from pyspark.sql import functions as F

    chosen = frame.where(F.col("deliver_at") >= F.timestamp_millis(F.lit(since_ms)))
    return sorted(chosen.groupBy("topic").agg(F.count("*"), F.max("deliver_at")).collect())


def _scan(frame: DataFrame) -> None:
    """Every row and column is made, and thrown away."""
    frame.write.format("noop").mode("overwrite").save()


def _timed(query: Callable[[DataFrame], Any], load: Way, options: dict[str, str]) -> tuple[float, Any]:
    """Seconds of one round, and what it found."""
    started_s = time.perf_counter()
    found = query(load(options))
    return time.perf_counter() - started_s, found
