"""Taskiq with Tickwheel as its broker and its scheduler. Run: python examples/taskiq_tasks.py
(needs pip install 'tickwheel[taskiq]')

Broker and worker are started here; usually they are `tickwheel serve` and `taskiq worker tasks:broker`. There is no
`taskiq scheduler`: the broker itself sends what is due.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from taskiq.receiver import Receiver

import tickwheel
from tickwheel.taskiq import TickwheelBroker, TickwheelScheduleSource

PATIENCE_S = 60


@asynccontextmanager
async def worker(broker: TickwheelBroker) -> AsyncIterator[None]:
    """What `taskiq worker` runs."""
    finish = asyncio.Event()
    with ThreadPoolExecutor(1) as pool:
        receiver = Receiver(broker, pool, max_async_tasks=10, run_startup=False)
        running = asyncio.create_task(receiver.listen(finish))
        try:
            yield
        finally:
            finish.set()
            await running


async def use(url: str) -> None:
    """Reminders, and a report each second."""
    broker = TickwheelBroker(url)
    schedules = TickwheelScheduleSource(broker)
    done: asyncio.Queue[str] = asyncio.Queue()

    @broker.task
    async def remind(what: str) -> None:
        await done.put(what)

    await broker.startup()
    try:
        later = await remind.schedule_by_time(schedules, datetime.now(UTC) + timedelta(days=400), "renew")
        bed = await remind.kicker().with_labels(delay=3_600).kiq("bed")
        print("scheduled:", [one.args for one in await schedules.get_schedules()])
        print("bed:", await broker.cancel(bed))
        await later.unschedule()
        async with worker(broker), asyncio.timeout(PATIENCE_S):
            await remind.schedule_by_time(schedules, datetime.now(UTC) + timedelta(seconds=0.2), "tea")
            print("done:", await done.get())
            report = await remind.schedule_by_interval(schedules, 1, "report")
            print("done:", await done.get(), await done.get())
            await report.unschedule()
        print("scheduled:", await schedules.get_schedules())
    finally:
        await broker.shutdown()


def main() -> None:
    """A broker, and what uses it."""
    with tempfile.TemporaryDirectory() as directory, tickwheel.embedded(directory) as server:
        asyncio.run(use(server.url))


if __name__ == "__main__":
    main()
