"""The messages of benchmarks: sent in batches, and taken again."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tickwheel import Client

BODY: Final = bytes(100)
BATCH: Final = 1_000
DAY_MS: Final = 86_400_000


async def schedule(client: Client, topic: str, due_ms: npt.NDArray[np.int64]) -> None:
    """A message for each of these times."""
    for start in range(0, len(due_ms), BATCH):
        part = due_ms[start : start + BATCH]
        (await client.send_many(topic, [BODY] * len(part), deliver_at=part)).raise_for_errors()


async def work_off(client: Client, topic: str, count: int, *, group: str = "bench") -> None:
    """Takes and acks so many, by batches."""
    async with client.subscribe(topic, group=group, credit=50_000, batch=2_000) as subscription:
        received = 0
        async for batch in subscription.batches():
            received += len(batch)
            await batch.ack()
            if received >= count:
                break
        await subscription.flush()
