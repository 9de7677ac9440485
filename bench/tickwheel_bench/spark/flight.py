"""Reading messages with Spark by Arrow Flight, against reading the directory in place and Parquet; and how punctual the
broker is beside four readers that read all the time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np

from tickwheel_bench.daemon import Daemon
from tickwheel_bench.load.lateness import lateness_of
from tickwheel_bench.spark.reading import best, prepared, queries
from tickwheel_bench.spark.session import with_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS: Final = 5
_DUE_PER_S: Final = 10_000
_SECONDS: Final = 10.0
_READERS: Final = 4


def flight(directory: Path, scale: float) -> dict[str, Any]:
    """Ten million scheduled messages with keys and bodies of 100 bytes: each query of `reading` five times, the best
    counts. Then 10,000 due each second without and beside four readers, five times in turns."""
    return with_spark(
        directory,
        lambda spark, daemon: _measure(spark, directory, daemon, scale),
        *("--flight", "--flight-listen", "127.0.0.1:0"),
    )


def _measure(spark: SparkSession, directory: Path, daemon: Daemon, scale: float) -> dict[str, Any]:
    count, parquet, since_ms = prepared(spark, directory, daemon, scale)
    figures: dict[str, Any] = {"messages": count}
    for name, (options, query) in queries(since_ms).items():

        def by_flight(options: dict[str, str] = options, query: Any = query) -> Any:
            return query(spark.read.format("tickwheel").options(url=daemon.url, **options).load())

        def in_place(options: dict[str, str] = options, query: Any = query) -> Any:
            return query(spark.read.format("tickwheel").options(**options).load(str(directory)))

        def by_parquet(query: Any = query) -> Any:
            return query(spark.read.parquet(parquet))

        (flight_s, found), (place_s, same) = best(by_flight), best(in_place)
        parquet_s, expected = best(by_parquet)
        assert found == same == expected, (name, found, same, expected)
        figures[name] = {
            "flight_s": round(flight_s, 2),
            "in_place_s": round(place_s, 2),
            "parquet_s": round(parquet_s, 2),
            "in_place_over_flight": round(place_s / flight_s, 2),
            "parquet_over_flight": round(parquet_s / flight_s, 2),
        }
    rounds = [_round(daemon, number, max(2.0, _SECONDS * scale)) for number in range(ROUNDS)]
    return figures | {
        "rounds": rounds,
        "p99_later_ms": round(float(np.median([one["p99_later_ms"] for one in rounds])), 3),
    }


def _round(daemon: Daemon, number: int, seconds: float) -> dict[str, Any]:
    """How late messages are without readers and beside them."""

    def lateness(name: str) -> dict[str, Any]:
        topic = f"{name}-{number}"
        return anyio.run(lateness_of, daemon.url, topic, seconds, _DUE_PER_S, backend="asyncio")

    without = lateness("without")
    command = [sys.executable, "-m", "tickwheel_bench.spark.readers", daemon.url, str(_READERS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as readers:
        assert readers.stdin is not None
        assert readers.stdout is not None
        readers.stdout.readline()  # each has read a batch
        begun_s = time.perf_counter()
        beside = lateness("beside")
        took_s = time.perf_counter() - begun_s
        readers.stdin.close()
        read = int(readers.stdout.readline())
    if readers.returncode:
        raise RuntimeError(f"the readers ended with {readers.returncode}")
    return {
        "without": without,
        "beside_four_readers": beside,
        "p99_later_ms": round(beside["late_ms"]["p99"] - without["late_ms"]["p99"], 3),
        "rows_read_per_s": round(read / took_s),
    }
