"""What the log of a cluster costs on one Kafka broker beside it: an append, alone, until Kafka has it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import trio

from tickwheel_bench.cluster.kafka import LIBS, is_there, kafka
from tickwheel_bench.cluster.serving import serving
from tickwheel_bench.figures import percentiles
from tickwheel_broker.sharedlog.kafka.log import KafkaLog
from tickwheel_broker.sharedlog.kafka.topic import TopicSettings, create_topic

TOPIC: Final = "bench"
#: So long each size is measured, and how often it is begun anew: other people's work comes and goes.
ROUND_S: Final = 3.0
ROUNDS: Final = 3


def cluster(directory: Path, scale: float) -> dict[str, Any]:
    """Appends of a group commit's size, one after the other, as the owner of a log makes them; then whole nodes."""
    if not is_there():
        return {"skipped": f"no Kafka in {LIBS}: `make kafka` fetches it"}
    with kafka(directory / "kafka") as broker:
        figures = trio.run(_measure, broker.servers, max(0.3, ROUND_S * scale))
        return {"log": figures, **serving(directory / "nodes", scale, broker.servers)}


async def _measure(servers: str, round_s: float) -> dict[str, Any]:
    await create_topic(servers, TOPIC, TopicSettings(replication_factor=1, min_insync_replicas=1))
    figures: dict[str, Any] = {"brokers": 1}
    async with KafkaLog(servers, TOPIC) as log:
        await _appends(log, 50_000, round_s)  # the JVM compiles what it runs often
        for name, size in (("4_kb", 4_000), ("50_kb", 50_000), ("500_kb", 500_000)):
            rounds = [await _appends(log, size, round_s) for _ in range(ROUNDS)]
            figures[name] = min(rounds, key=lambda one: one["p50_ms"])
            figures[name]["p50_ms_of_rounds"] = [one["p50_ms"] for one in rounds]
        figures["read_ms"] = await _reads(log)
    return figures


async def _appends(log: KafkaLog, size: int, round_s: float) -> dict[str, Any]:
    body = os.urandom(size)
    times_s = []
    end_s = time.perf_counter() + round_s
    while (began_s := time.perf_counter()) < end_s:
        await log.append([body])
        times_s.append(time.perf_counter() - began_s)
    shares = percentiles(np.array(times_s) * 1e3, "p50", "p99", digits=2)
    return {
        "appends": len(times_s),
        **{f"{name}_ms": ms for name, ms in shares.items()},
        "mb_per_s": round(len(times_s) * size / sum(times_s) / 1e6, 1),
    }


async def _reads(log: KafkaLog) -> dict[str, float]:
    """From the append's begin until a reader, as each follower is one, has the record."""
    offset = await log.end()
    times_s = []
    for number in range(offset, offset + 200):
        began_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.append, [b"x" * 4_000])
            await log.read(number)
            times_s.append(time.perf_counter() - began_s)
    return percentiles(np.array(times_s[20:]) * 1e3, "p50", "p99", digits=2)
