"""How late messages arrive: received by the subscriber minus deliver_at, on the same machine's clock."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import numpy.typing as npt

from tickwheel import Client
from tickwheel_bench.daemon import Daemon
from tickwheel_bench.figures import late_figures
from tickwheel_bench.load.messages import LEAD_MS, schedule, schedule_evenly


class Recorder:
    """Takes all deliveries of a topic and keeps how late each was, in milliseconds."""

    def __init__(self, topic: str, expected: int) -> None:
        self.topic, self.expected = topic, expected
        self.received = 0
        self.ids: list[npt.NDArray[np.uint64]] = []
        self.late_ms: list[npt.NDArray[np.float64]] = []
        self.finished = 0.0

    async def run(self, client: Client) -> None:
        async with client.subscribe(self.topic, group="bench", credit=50_000, batch=2_000) as subscription:
            async for batch in subscription.batches():
                now_ms = time.time_ns() / 1e6
                self.late_ms.append(now_ms - np.asarray(batch.deliver_at_ms, np.float64))
                self.ids.append(np.asarray(batch.ids, np.uint64))
                self.received += len(batch)
                await batch.ack()
                if self.received >= self.expected:
                    break
            self.finished = time.time_ns() / 1e6
            await subscription.flush()

    def figures(self) -> dict[str, Any]:
        ids = np.concatenate(self.ids)
        return {
            "messages": self.received,
            "lost": self.expected - len(np.unique(ids)),
            "delivered_twice": len(ids) - len(np.unique(ids)),
            **late_figures(np.concatenate(self.late_ms), "min", "p50", "p99", "p99.9", "max"),
        }


async def lateness_of(client: Client, topic: str, seconds: float, due_per_s: int) -> dict[str, Any]:
    """How late messages of one topic are that come due evenly, at a broker that runs."""
    count = int(seconds * due_per_s)
    await schedule_evenly(client, topic, count, due_per_s)
    return await recorded(client, topic, count)


async def recorded(client: Client, topic: str, count: int) -> dict[str, Any]:
    """Receives the messages of a topic that have been scheduled, and says how late they were."""
    recorder = Recorder(topic, count)
    with anyio.fail_after(120):
        await recorder.run(client)
    return recorder.figures()


def even(directory: Path, scale: float) -> dict[str, Any]:
    """50,000 messages due each second, evenly spread, for ten seconds."""
    count = int(500_000 * scale)

    async def work(client: Client) -> dict[str, Any]:
        start_ms = await schedule_evenly(client, "even", count, 50_000, LEAD_MS + count // 200)
        ahead_ms = start_ms - time.time() * 1000
        late = await recorded(client, "even", count)
        return {"due_per_s": 50_000, "scheduled_ahead_ms": round(ahead_ms)} | late

    with Daemon(directory) as daemon:
        return daemon.run(work)


def herd(directory: Path, scale: float) -> dict[str, Any]:
    """A million messages due in one millisecond, while another topic has 1,000 due each second."""
    count, calm_count = int(1_000_000 * scale), 10_000

    async def work(client: Client) -> dict[str, Any]:
        async with Client(daemon.url) as other:
            start_ms = int(time.time() * 1000) + LEAD_MS + int(count / 300)
            await schedule(client, "herd", np.full(count, start_ms + 2_000, np.int64))
            await schedule(client, "calm", start_ms + np.arange(calm_count))
            herd_of, calm = Recorder("herd", count), Recorder("calm", calm_count)
            with anyio.fail_after(180):
                async with anyio.create_task_group() as group:
                    group.start_soon(herd_of.run, client)
                    group.start_soon(calm.run, other)
            drained_ms = herd_of.finished - (start_ms + 2_000)
            return {
                "herd": herd_of.figures(),
                "herd_drained_in_ms": round(drained_ms),
                "other_topic": calm.figures(),
            }

    with Daemon(directory) as daemon:
        return daemon.run(work)
