"""The messages of benchmarks: sent in batches, and taken again."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tickwheel import Client

BODY: Final = bytes(100)
BATCH: Final = 1_000
DAY_MS: Final = 86_400_000
LEAD_MS: Final = 3_000
"""How long before the first of many messages is due they are sent."""


async def schedule(client: Client, topic: str, due_ms: npt.NDArray[np.int64]) -> None:
    """A message for each of these times."""
    for start in range(0, len(due_ms), BATCH):
        part = due_ms[start : start + BATCH]
        (await client.send_many(topic, [BODY] * len(part), deliver_at=part)).raise_for_errors()


async def schedule_evenly(
    client: Client, topic: str, count: int, due_per_s: int, lead_ms: int = LEAD_MS
) -> int:
    """Schedules messages that come due evenly; returns when the first is due, in ms: `lead_ms` from now."""
    start_ms = int(time.time() * 1_000) + lead_ms
    await schedule(client, topic, start_ms + np.arange(count) * 1_000 // due_per_s)
    return start_ms


async def fill(
    client: Client, topic: str, count: int, body: bytes = BODY, batch: int = BATCH, **when: Any
) -> None:
    """Sends equal messages in whole batches. `when`: more of what `send_many` takes."""
    for _ in range(count // batch):
        (await client.send_many(topic, [body] * batch, **when)).raise_for_errors()


async def work_off(
    client: Client, topic: str, count: int, *, group: str = "bench", credit: int = 50_000, batch: int = 2_000
) -> None:
    """Takes and acks so many, by batches."""
    async with client.subscribe(topic, group=group, credit=credit, batch=batch) as subscription:
        received = 0
        async for messages in subscription.batches():
            received += len(messages)
            await messages.ack()
            if received >= count:
                break
        await subscription.flush()
