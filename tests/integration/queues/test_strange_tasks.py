"""Topics of Taskiq and Dramatiq into which other programs have written."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import dramatiq
import pytest
from taskiq import InMemoryBroker, ScheduledTask
from taskiq.receiver import Receiver
from taskiq.serializers import JSONSerializer, PickleSerializer

from tests.support.clients.strange import send_strange
from tests.support.frameworks.taskiq_brokers import started
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel import dramatiq as for_dramatiq
from tickwheel import sync
from tickwheel.taskiq import TickwheelBroker, TickwheelScheduleSource
from tickwheel_bench.processes import wait_until

pytestmark = pytest.mark.shared_daemon

FAR_MS = 4_000_000_000_000


def broker_of(daemon: Daemon, topic: str) -> TickwheelBroker:
    made = TickwheelBroker(daemon.url, topic=topic)
    return made.with_result_backend(InMemoryBroker().result_backend)


def test_schedules_beside_what_others_wrote(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    broker = broker_of(daemon, "strange-schedules")

    @broker.task(schedule=[{"cron": "0 9 * * *"}])
    async def note() -> None: ...

    async def test() -> None:
        source = TickwheelScheduleSource(broker, prefix="strange.")
        async with started(broker):
            await note.schedule_by_time(source, datetime.now(UTC) + timedelta(days=1))
            await broker.client.create_schedule(
                "strange.x", broker.topic, every=timedelta(days=1), body=b"\xff"
            )
            for _ in range(2):
                await source.declare()
            with caplog.at_level(logging.WARNING, "tickwheel.taskiq"):
                found = await source.get_schedules()
            assert sorted(one.task_name for one in found) == [note.task_name] * 2

    asyncio.run(_with_strange(daemon, broker.topic, test))
    assert "is left out" in caplog.text


async def _with_strange(daemon: Daemon, topic: str, test: Any) -> None:
    send_strange(daemon.url, topic, deliver_at_ms=FAR_MS)
    await test()


def test_another_serializer_than_before(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    """What waits from before stays, and workers start: ids are in the headers."""

    async def declared(serializer: Any) -> tuple[list[ScheduledTask], set[int], set[str]]:
        broker = broker_of(daemon, "serialized").with_serializer(serializer)
        soon = datetime(2100, 1, 1, tzinfo=UTC)

        @broker.task(task_name="note", schedule=[{"cron": "0 9 * * *"}, {"time": soon}])
        async def note() -> None: ...

        source = TickwheelScheduleSource(broker, prefix="serialized.")
        async with started(broker):
            await source.declare()
            waiting = await broker.client.browse(broker.topic, states="scheduled")
            recurring = await broker.client.schedules(count=0)
            names = {one.name for one in recurring if one.name.startswith("serialized.")}
            return await source.get_schedules(), {one.id for one in waiting}, names

    first, ids, names = asyncio.run(declared(PickleSerializer()))
    assert (len(first), len(ids), len(names)) == (2, 1, 1)
    with caplog.at_level(logging.WARNING, "tickwheel.taskiq"):
        then, ids_then, names_then = asyncio.run(declared(JSONSerializer()))
    assert (then, ids_then, names_then) == ([], ids, names)
    assert caplog.text.count("is left out") == 2


def test_a_worker_of_taskiq_passes_over_what_others_wrote(daemon: Daemon) -> None:
    broker = broker_of(daemon, "strange-tasks")
    ran: list[int] = []

    @broker.task
    async def note(number: int) -> None:
        ran.append(number)

    async def test() -> None:
        async with started(broker):
            await note.kiq(17)
            with ThreadPoolExecutor(2) as pool:
                receiver, finish = Receiver(broker, pool, run_startup=False), asyncio.Event()
                listening = asyncio.create_task(receiver.listen(finish))
                async with asyncio.timeout(PATIENCE_S):
                    while not ran:
                        await asyncio.sleep(0.01)
                finish.set()
                await listening

    send_strange(daemon.url, broker.topic)
    asyncio.run(test())
    assert ran == [17]


def test_a_worker_of_dramatiq_makes_dead_letters_of_what_others_wrote(daemon: Daemon) -> None:
    broker = for_dramatiq.TickwheelBroker(daemon.url, prefix="strange-actors.")
    broker.emit_after("process_boot")
    ran: list[int] = []

    @dramatiq.actor(broker=broker)
    def note(number: int) -> None:
        ran.append(number)

    topic = broker.topic_of("default")
    count = send_strange(daemon.url, topic)
    note.send(17)
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    try:
        with sync.Client(daemon.url) as client:
            wait_until(lambda: bool(ran), lambda: "the actor was not called")
            # All but those of an actor that nobody knows, which Dramatiq itself gives up.
            wait_until(
                lambda: sum(one.ready for one in client.topics() if one.name == f"{topic}.dead") == count,
                lambda: str(client.topics()),
            )
    finally:
        worker.stop()
        broker.close()
