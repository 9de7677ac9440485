"""What pending messages cost: memory and processor while idle, disk, and the time to be back after a crash."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from tickwheel import Client
from tickwheel_bench.daemon import Daemon, disk_bytes
from tickwheel_bench.load.messages import BATCH, BODY, DAY_MS


async def _fill(client: Client, count: int, keys: bool = False) -> None:
    """Schedules ``count`` messages evenly over the days from tomorrow to a year ahead."""
    rng = np.random.default_rng(7411)
    now_ms = int(time.time() * 1000)
    for start in range(0, count, BATCH):
        due_ms = rng.integers(now_ms + DAY_MS, now_ms + 365 * DAY_MS, BATCH)
        names = [f"order-{start + index:010d}" for index in range(BATCH)] if keys else None
        results = await client.send_many("far", [BODY] * BATCH, deliver_at=due_ms, keys=names)
        results.raise_for_errors()


def idle(directory: Path, scale: float) -> dict[str, Any]:
    """A broker with a million far-future messages and nothing to do."""
    count = int(1_000_000 * scale) // BATCH * BATCH
    watch_s = max(2.0, 20.0 * scale)

    with Daemon(directory) as daemon:
        daemon.run(_fill, count)
        time.sleep(2)
        before = daemon.cpu_s()
        time.sleep(watch_s)
        return {
            "pending": count,
            "core_percent": round((daemon.cpu_s() - before) / watch_s * 100, 2),
            "rss_anon_mib": round(daemon.memory_bytes("RssAnon") / 2**20, 1),
        }


def disk(directory: Path, scale: float) -> dict[str, Any]:
    """Bytes on disk a pending message beyond body, key and headers, all files together."""
    count = int(5_000_000 * scale) // BATCH * BATCH
    figures: dict[str, Any] = {"pending": count}
    for name, keys, key_bytes in (("without_keys", False, 0), ("with_keys_of_16_bytes", True, 16)):
        place = directory / name
        with Daemon(place) as daemon:
            daemon.run(_fill, count, keys)
            time.sleep(2)
            overhead = disk_bytes(place) / count - len(BODY) - key_bytes
        figures[f"overhead_bytes_{name}"] = round(overhead, 1)
    return figures


def restart(directory: Path, scale: float) -> dict[str, Any]:
    """kill -9 with ten million pending; from the start of the new process to the first delivery of a message that
    became due in between."""
    count = int(10_000_000 * scale) // BATCH * BATCH

    async def fill(client: Client) -> None:
        await _fill(client, count)
        await client.send("soon", b"first", deliver_at=int(time.time() * 1000) + 1_000)

    async def first_delivery(client: Client) -> float:
        async with client.subscribe("soon", group="bench") as subscription:
            message = await subscription.receive(timeout=120)
            if message is None or message.body != b"first":
                raise RuntimeError("the message that was due did not come")
            await message.ack()
            return time.perf_counter()

    with Daemon(directory) as daemon:
        daemon.run(fill)
        daemon.kill()
    time.sleep(1.5)
    started = time.perf_counter()
    with Daemon(directory) as daemon:
        listening_s = time.perf_counter() - started
        first_s = daemon.run(first_delivery) - started
        return {
            "pending": count,
            "listening_after_s": round(listening_s, 2),
            "first_delivery_after_s": round(first_s, 2),
        }
