"""Bulk scheduling on Spark, in place and by Arrow Flight, against Spark writing the same rows as Parquet, and against
sending them from its tasks.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import numpy.typing as npt

from tickwheel import Client
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.figures import percentiles
from tickwheel_bench.load.messages import schedule
from tickwheel_bench.processes import memory_bytes_of
from tickwheel_bench.spark.session import (
    FEW_HOURS,
    HOUR_MS,
    HOURS,
    SHARDS,
    create_topic,
    make_rows,
    with_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tickwheel.spark.scheduling import ScheduleResult, Staged

MESSAGES = 10_000_000
SENT = 1_000_000
ROUNDS = 2
DUE_PER_MS = 10
QUIET_S = 5
LEAD_MS = 5_000


def bulk(directory: Path, scale: float) -> dict[str, Any]:
    """Ten million rows with keys and bodies of 100 bytes, due within a day, to a topic with 16 shards."""
    return with_spark(
        directory,
        lambda spark, daemon: _measure(spark, daemon, directory.parent, scale),
        *("--flight", "--flight-listen", "127.0.0.1:0"),
    )


def _measure(spark: SparkSession, daemon: Daemon, folder: Path, scale: float) -> dict[str, Any]:
    count, sent = int(MESSAGES * scale), int(SENT * scale)
    start_ms = (int(time.time() * 1000) // HOUR_MS + 48) * HOUR_MS
    hours = HOURS if scale >= 1 else FEW_HOURS
    rows = make_rows(spark, folder / "rows", count, start_ms, hours)
    figures: dict[str, Any] = {"messages": count, "rounds": []}
    _warm_up(spark, daemon, folder, start_ms)
    figures["driver_rss_mib_before"] = _rss_mib()
    for number in range(ROUNDS if scale >= 1 else 1):
        parquet_s = _parquet(rows, folder / "parquet")
        bulk_s, result = _schedule(daemon, rows, f"bulk-{number}", count, "in place")
        put_s, _ = _schedule(daemon, rows, f"put-{number}", count, "flight")
        figures["rounds"].append(
            {
                "parquet_s": round(parquet_s, 2),
                "bulk_s": round(bulk_s, 2),
                "of_it_adopting_s": round(result.adopt_s, 2),
                "files": result.files,
                "bulk_per_s": round(count / bulk_s),
                "parquet_over_bulk": round(parquet_s / bulk_s, 2),
                "put_s": round(put_s, 2),
                "put_over_in_place": round(bulk_s / put_s, 2),
            }
        )
    figures["driver_rss_mib_after"] = _rss_mib()
    figures["bytes_written"] = result.written_bytes
    figures["sent_rows"] = sent
    figures["sent_per_s"] = round(_sent_per_s(spark, daemon, folder, sent, start_ms))
    bulk_per_s = max(one["bulk_per_s"] for one in figures["rounds"])
    figures["bulk_over_sent"] = round(bulk_per_s / figures["sent_per_s"], 1)
    figures["beside_a_stream"] = _beside_a_stream(rows, daemon, count)
    return figures


def _schedule(
    daemon: Daemon, rows: DataFrame, topic: str, count: int, staged: Staged
) -> tuple[float, ScheduleResult]:
    """Seconds that a job takes whose files come to the broker in this way, and what became of it."""
    from tickwheel.spark import schedule_messages

    create_topic(daemon, topic)
    started_s = time.perf_counter()
    result = schedule_messages(rows, url=daemon.url, topic=topic, staged=staged)
    taken_s = time.perf_counter() - started_s
    assert (result.messages, result.staged) == (count, staged), result
    return taken_s, result


def _warm_up(spark: SparkSession, daemon: Daemon, folder: Path, start_ms: int) -> None:
    """The first jobs of a session compile code and start workers."""
    rows = make_rows(spark, folder / "warm", 20_000, start_ms, FEW_HOURS)
    _schedule(daemon, rows, "warm", 20_000, "in place")
    _schedule(daemon, rows, "warm-put", 20_000, "flight")
    _parquet(rows, folder / "parquet")


def _parquet(rows: DataFrame, path: Path) -> float:
    from pyspark.sql import functions as F

    parts = rows.withColumn("shard", F.pmod(F.hash("key"), F.lit(SHARDS))).withColumn(
        "hour", F.date_trunc("hour", "deliver_at")
    )
    started_s = time.perf_counter()
    parts.write.partitionBy("shard", "hour").mode("overwrite").parquet(str(path))
    taken_s = time.perf_counter() - started_s
    shutil.rmtree(path)
    return taken_s


def _sent_per_s(spark: SparkSession, daemon: Daemon, folder: Path, count: int, start_ms: int) -> float:
    create_topic(daemon, "sent")
    rows = make_rows(spark, folder / "fewer", count, start_ms, HOURS)
    started_s = time.perf_counter()
    rows.write.format("tickwheel").mode("append").options(url=daemon.url, topic="sent").save()
    return count / (time.perf_counter() - started_s)


def _rss_mib() -> float:
    """Of the driver's Python."""
    return round(memory_bytes_of(os.getpid(), "VmRSS") / 2**20, 1)


# -- beside a stream --


class _Stream(threading.Thread):
    """Ten messages due in each millisecond, from when it starts; how late each was."""

    def __init__(self, url: str, seconds: int) -> None:
        super().__init__()
        self._url = url
        self._due_ms = (
            int(time.time() * 1000) + LEAD_MS + np.arange(seconds * 1_000 * DUE_PER_MS) // DUE_PER_MS
        )
        self.start_ms = int(self._due_ms[0])
        self.is_wanted = True
        self._due: list[npt.NDArray[np.float64]] = []
        self._late: list[npt.NDArray[np.float64]] = []

    def run(self) -> None:
        anyio.run(self._work, backend="asyncio")

    async def _work(self) -> None:
        async with Client(self._url) as client:
            await schedule(client, "stream", self._due_ms)
            async with client.subscribe("stream", credit=50_000, batch=2_000) as subscription:
                while self.is_wanted:
                    batch = await subscription.receive_batch(1)
                    if batch is None:
                        continue
                    now_ms = time.time_ns() / 1e6
                    due_ms = np.asarray(batch.deliver_at_ms, np.float64)
                    self._due.append(due_ms)
                    self._late.append(now_ms - due_ms)
                    await batch.ack()

    def figures(self, from_s: float, to_s: float) -> dict[str, Any]:
        """Of messages that were due between two moments."""
        due_ms, late_ms = np.concatenate(self._due), np.concatenate(self._late)
        late_ms = late_ms[(due_ms >= from_s * 1000) & (due_ms <= to_s * 1000)]
        shares = percentiles(late_ms, "p50", "p99", digits=2)
        return {"messages": len(late_ms), "early": int((late_ms < 0).sum()), **shares}


def _beside_a_stream(rows: DataFrame, daemon: Daemon, count: int) -> dict[str, Any]:
    """The job once more while 10,000 messages a second are delivered; quiet is the time before it."""
    from tickwheel.spark import schedule_messages

    create_topic(daemon, "bulk-beside")
    os.sync()  # what the measurements before have left is not the job's
    stream = _Stream(daemon.url, seconds=QUIET_S + 15 + count // 150_000)
    stream.start()
    time.sleep(max(0.0, stream.start_ms / 1000 - time.time()) + QUIET_S)
    moments = [time.time()]
    result = schedule_messages(
        rows, url=daemon.url, topic="bulk-beside", progress=lambda text: moments.append(time.time())
    )
    ended_s = time.time()
    time.sleep(1)
    stream.is_wanted = False
    stream.join()
    assert result.messages == count
    return {
        "adopting_s": round(result.adopt_s, 2),
        "quiet": stream.figures(moments[0] - QUIET_S + 1, moments[0]),
        "while_tasks_write": stream.figures(moments[1], moments[2]),
        "while_adopting": stream.figures(moments[2], ended_s),
    }
