"""Queries over messages: rows a second, and how late a running stream is meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio

from tickwheel import Client
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.load.lateness import Recorder
from tickwheel_bench.load.messages import DAY_MS, fill, schedule_evenly

LEAD_MS = 2_000
DUE_A_SECOND = 1_000
STREAM_S = 20
SHORT_STREAM_S = 3
QUERIES = {
    "start": "select 1",
    "count": "select count(*) from orders",
    "states": "select state, count(*), min(time_next) from orders where epoch < 3 group by state",
    "one_id": "select * from orders where id = 77",
    "bodies": "select sum(octet_length(body)) from orders where id <= 1000000",
}


def query(directory: Path, scale: float) -> dict[str, Any]:
    """Five million messages: each query alone, then the grouping one again and again beside a stream of 1,000 due/s."""
    count = int(5_000_000 * scale)
    stream_s = STREAM_S if scale == 1 else SHORT_STREAM_S

    async def work(client: Client) -> dict[str, Any]:
        async with Client(daemon.url) as other:
            await fill(client, "orders", count, delay_ms=DAY_MS)
            seconds = {name: await _timed(client, sql) for name, sql in QUERIES.items()}
            figures: dict[str, Any] = {"messages": count, "seconds": seconds}
            work_s = max(seconds["states"] - seconds["start"], 1e-3)
            figures["states_rows_per_s"] = round(count / work_s)
            figures["stream_alone"] = await _stream(client, other, "alone", None, stream_s)
            states = QUERIES["states"]
            figures["stream_beside_queries"] = await _stream(client, other, "beside", states, stream_s)
            return figures

    with Daemon(directory) as daemon:
        return daemon.run(work)


async def _timed(client: Client, sql: str) -> float:
    """The best of three, in seconds."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        await client.query(sql, timeout=300)
        taken.append(time.perf_counter() - start)
    return round(min(taken), 3)


async def _stream(
    client: Client, other: Client, topic: str, sql: str | None, stream_s: int
) -> dict[str, Any]:
    count = DUE_A_SECOND * stream_s
    await schedule_evenly(client, topic, count, DUE_A_SECOND, LEAD_MS)
    recorder, answered = Recorder(topic, count), 0
    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            if sql is not None:

                async def ask() -> None:
                    nonlocal answered
                    while True:
                        await other.query(sql, timeout=300)
                        answered += 1

                group.start_soon(ask)
            await recorder.run(client)
            group.cancel_scope.cancel()
    return {"due_per_s": DUE_A_SECOND, "queries_answered": answered} | recorder.figures()
