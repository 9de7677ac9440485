"""Reading messages with Spark by Arrow Flight, against reading the directory in place and Parquet; and how punctual the
broker is beside four readers that read all the time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tickwheel_bench.daemon import Daemon
from tickwheel_bench.figures import median_later_ms, p99_later_ms
from tickwheel_bench.load.lateness import lateness_of
from tickwheel_bench.program import Program, module_command
from tickwheel_bench.spark.reading import Way, compared, in_place, prepared
from tickwheel_bench.spark.session import with_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS: Final = 5
_DUE_PER_S: Final = 10_000
_SECONDS: Final = 10.0
_READERS: Final = 4
_FLIGHT: Final = ("--flight", "--flight-listen", "127.0.0.1:0")


def flight(directory: Path, scale: float) -> dict[str, Any]:
    """Ten million scheduled messages with keys and bodies of 100 bytes: each query of `reading` five times, the best
    counts. Then 10,000 due each second without and beside four readers, five times in turns, at the niceness that is
    the default, and where reading gets only what nobody else wants."""
    figures = with_spark(directory, lambda spark, daemon: _measure(spark, directory, daemon, scale), *_FLIGHT)
    if "skipped" in figures:
        return figures
    for name, niceness in (("at_niceness_5", "5"), ("at_niceness_20", "20")):
        with Daemon(directory, *_FLIGHT, "--flight-niceness", niceness) as daemon:
            figures[name] = _lateness(daemon, name, max(2.0, _SECONDS * scale))
    return figures


def _measure(spark: SparkSession, directory: Path, daemon: Daemon, scale: float) -> dict[str, Any]:
    count, parquet, since_ms = prepared(spark, directory, daemon, scale)
    ways: dict[str, Way] = {
        "flight": lambda options: spark.read.format("tickwheel").options(url=daemon.url, **options).load(),
        "in_place": lambda options: in_place(spark, directory, **options),
        "parquet": lambda _: spark.read.parquet(parquet),
    }
    return {"messages": count} | compared(ways, since_ms)


def _lateness(daemon: Daemon, name: str, seconds: float) -> dict[str, Any]:
    """How late messages are without readers and beside them, in turns."""
    rounds = [_round(daemon, f"{name}-{number}", seconds) for number in range(ROUNDS)]
    return {"rounds": rounds, "p99_later_ms": median_later_ms(rounds)}


def _round(daemon: Daemon, name: str, seconds: float) -> dict[str, Any]:
    """How late messages are without readers and beside them."""
    without = daemon.run(lateness_of, f"without-{name}", seconds, _DUE_PER_S)
    with Program(module_command("tickwheel_bench.spark.readers", daemon.url, _READERS)) as readers:
        readers.line()  # each has read a batch
        begun_s = time.perf_counter()
        beside = daemon.run(lateness_of, f"beside-{name}", seconds, _DUE_PER_S)
        took_s = time.perf_counter() - begun_s
        read = readers.last()
    return {
        "without": without,
        "beside_four_readers": beside,
        "p99_later_ms": p99_later_ms(beside, without),
        "rows_read_per_s": round(read / took_s),
    }
