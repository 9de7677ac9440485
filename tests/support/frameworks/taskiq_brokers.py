"""Brokers of Taskiq for tests: started, with a worker, and what waits in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from taskiq import InMemoryBroker
from taskiq.receiver import Receiver

from tests.support.processes.daemon_harness import PATIENCE_S
from tickwheel.taskiq import TickwheelBroker

_numbers = count()


def new_broker(url: str) -> TickwheelBroker:
    """A broker with a topic and results of its own."""
    made = TickwheelBroker(url, topic=f"t{next(_numbers)}")
    made.with_result_backend(InMemoryBroker().result_backend)
    return made


@asynccontextmanager
async def started(broker: TickwheelBroker) -> AsyncIterator[None]:
    await broker.startup()
    try:
        yield
    finally:
        await broker.shutdown()


@asynccontextmanager
async def working(broker: TickwheelBroker, tasks: int = 10) -> AsyncIterator[None]:
    with ThreadPoolExecutor(2) as pool:
        receiver = Receiver(broker, pool, max_async_tasks=tasks, run_startup=False)
        finish = asyncio.Event()
        listening = asyncio.create_task(receiver.listen(finish))
        try:
            yield
        finally:
            finish.set()
            await listening


async def until(is_so: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():
            await asyncio.sleep(0.01)


async def backlog(broker: TickwheelBroker) -> int:
    (topic,) = [one for one in await broker.client.topics() if one.name == broker.topic]
    return topic.scheduled + (topic.groups[0].backlog if topic.groups else topic.ready)


async def done(broker: TickwheelBroker) -> bool:
    return not await backlog(broker)


def run(broker: TickwheelBroker, test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with started(broker):
            await test()

    asyncio.run(main())


async def seen_one(seen: list[Any]) -> bool:
    return bool(seen)
