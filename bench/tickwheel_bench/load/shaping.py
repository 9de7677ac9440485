"""What topic settings do to a flood: memory with very many ready messages, and how well rate and spread hold."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from tickwheel import Client
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.load.messages import fill

BODY = bytes(16)
BATCH = 10_000


async def _wait_ready(client: Client, topic: str, count: int) -> None:
    while next(one.ready for one in await client.topics() if one.name == topic) < count:  # noqa: ASYNC110 - no event for it
        await anyio.sleep(0.2)


def ready(directory: Path, scale: float) -> dict[str, Any]:
    """Fifty million messages wait in a topic; a subscriber takes and acks some of them, within a cache_size."""
    count = int(50_000_000 * scale) // BATCH * BATCH

    async def work(client: Client) -> dict[str, Any]:
        await client.create_topic("flood", cache_size=10_000)
        await fill(client, "flood", count, BODY, BATCH)
        await _wait_ready(client, "flood", count)
        waiting = daemon.memory_bytes("RssAnon")
        taken, most_out, started = 0, 0, time.perf_counter()
        async with client.subscribe("flood", credit=1_000_000, batch=5_000) as subscription:
            while taken < count // 10:
                batch = await subscription.receive_batch(60)
                assert batch is not None, "nothing came"
                taken += len(batch)
                await batch.ack()
                if taken % 100_000 < len(batch):
                    (topic,) = await client.topics()
                    most_out = max(most_out, topic.groups[0].leased)
            await subscription.flush()
        return {
            "ready": count,
            "rss_anon_mib_waiting": round(waiting / 2**20, 1),
            "rss_anon_mib_after_delivery": round(daemon.memory_bytes("RssAnon") / 2**20, 1),
            "taken": taken,
            "taken_per_s": round(taken / (time.perf_counter() - started)),
            "most_out_at_once": most_out,
        }

    with Daemon(directory) as daemon:
        return daemon.run(work, timeout_s=120)


def shaping(directory: Path, scale: float) -> dict[str, Any]:
    """A rate of 1,000 a second, measured over ten; a spread of 30 s over a million messages due at one instant."""
    seconds = max(2.0, 10.0 * scale)
    crowd = int(1_000_000 * scale) // BATCH * BATCH
    spread_s = max(3.0, 30.0 * scale)

    async def work(client: Client) -> dict[str, Any]:
        return {"rate": await _rate(client, seconds), "spread": await _spread(client, crowd, spread_s)}

    with Daemon(directory) as daemon:
        return daemon.run(work, timeout_s=120)


async def _rate(client: Client, seconds: float) -> dict[str, Any]:
    await client.create_topic("limited", rate=1_000)
    await fill(client, "limited", BATCH * 2, BODY, BATCH)
    await _wait_ready(client, "limited", BATCH * 2)
    seen = 0
    async with client.subscribe("limited", credit=100_000) as subscription:
        with anyio.move_on_after(1):  # the first moments of a subscription are not the rate
            while True:
                await (await anext(subscription.batches())).ack()
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            batch = await anext(subscription.batches())
            seen += len(batch)
            await batch.ack()
        spent = time.perf_counter() - started
    return {"asked_per_s": 1_000, "seconds": round(spent, 1), "delivered_per_s": round(seen / spent, 1)}


async def _spread(client: Client, crowd: int, spread_s: float) -> dict[str, Any]:
    await client.create_topic("crowd", spread_ms=round(spread_s * 1_000))
    at_ms = int(time.time() * 1_000) + 5_000
    await fill(client, "crowd", crowd, BODY, BATCH, deliver_at=at_ms)
    arrived = np.empty(crowd, np.int64)
    seen = 0
    async with client.subscribe("crowd", credit=1_000_000, batch=10_000) as subscription:
        while seen < crowd:
            batch = await subscription.receive_batch(60)
            assert batch is not None, "nothing came"
            arrived[seen : seen + len(batch)] = time.time_ns() // 1_000_000
            seen += len(batch)
            await batch.ack()
    tenths = np.bincount(np.clip((arrived - at_ms) // 100, 0, None))[1 : int(spread_s * 10) - 1]
    return {
        "messages": crowd,
        "spread_s": spread_s,
        "early": int((arrived < at_ms).sum()),
        "last_after_s": round(float(arrived.max() - at_ms) / 1_000, 2),
        "per_100_ms": {
            "mean": round(float(tenths.mean())),
            "min": int(tenths.min()),
            "max": int(tenths.max()),
        },
    }
