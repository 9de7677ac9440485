"""Whether disk space comes back: 5 million messages are scheduled, delivered and acked, then purged under load."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from tickwheel import Client
from tickwheel_bench.daemon import Daemon, disk_bytes
from tickwheel_bench.load.lateness import Recorder
from tickwheel_bench.load.messages import BATCH, schedule, schedule_evenly, work_off

DUE_PER_S = 10_000
STREAM_S = 30
ACK_WAIT_S = 10
#: Nothing is purged before this is set to 0, so that the peak is really all messages at once.
KEEP = timedelta(days=1)


async def _compact(client: Client, topic: str) -> dict[str, Any]:
    """Lets everything go that is acked, and waits until it is gone."""
    started = time.perf_counter()
    await client.set_topic(topic, purge_after=0)
    result = await client.purge()
    return {
        "purged": result.purged_messages,
        "moved": result.moved_messages,
        "segments": result.segments,
        "seconds": round(time.perf_counter() - started, 1),
    }


def purge(directory: Path, scale: float) -> dict[str, Any]:
    """Peak and final disk space, and how late a stream of messages is while the log is compacted."""
    count = int(5_000_000 * scale) // BATCH * BATCH
    stream = int(DUE_PER_S * max(3, STREAM_S * scale))

    async def work(client: Client) -> dict[str, Any]:
        figures: dict[str, Any] = {"messages": count}
        async with Client(daemon.url) as other:
            await client.create_topic("old", purge_after=KEEP)
            await client.create_topic("stream", purge_after=0)
            soon_ms = int(time.time() * 1000) + 1_000
            await schedule(client, "old", soon_ms + np.arange(count) % max(1, int(60_000 * scale)))
            with anyio.fail_after(900):
                await work_off(client, "old", count)
            peak_bytes = disk_bytes(directory)
            start_ms = await schedule_evenly(other, "stream", stream, DUE_PER_S, 4_000)
            peak_bytes = max(peak_bytes, disk_bytes(directory))
            recorder = Recorder("stream", stream)
            with anyio.fail_after(300):
                async with anyio.create_task_group() as group:
                    group.start_soon(recorder.run, other)
                    await anyio.sleep(max(0.0, start_ms / 1_000 - time.time()))
                    figures["compaction"] = await _compact(client, "old")
            figures["while_compacting"] = {"due_per_s": DUE_PER_S} | recorder.figures()
            figures["afterwards"] = await _compact(client, "stream")
            await anyio.sleep(ACK_WAIT_S + 3)  # the timers of leases go when their time has come
            final_bytes = disk_bytes(directory)
        return figures | {
            "peak_mib": round(peak_bytes / 2**20, 1),
            "final_mib": round(final_bytes / 2**20, 1),
            "final_percent": round(100 * final_bytes / peak_bytes, 2),
        }

    with Daemon(directory, "--ack-wait", f"{ACK_WAIT_S}s") as daemon:
        return daemon.run(work)
