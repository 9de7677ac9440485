"""A schedule of Taskiq that is set again takes the place of what waits, whatever that is: the last waits alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count, product
from typing import Any

import pytest
from taskiq import ScheduledTask

from tests.support.frameworks.taskiq_brokers import backlog, run
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tickwheel.client.admin.transactions import Transaction
from tickwheel.client.client import Client
from tickwheel.sharing.copy_keys import COPY_KEYS
from tickwheel.taskiq import TickwheelBroker, TickwheelScheduleSource

ID = "mine"
FAR = datetime(2031, 5, 1, 9, tzinfo=UTC)
KINDS = ("time", "cron", "interval")
TWO_STEPS = (("time", "cron"), ("time", "interval"), ("cron", "past"), ("interval", "past"))
"""From a message to a schedule and back the new thing is there before the old thing goes."""


def source_of(broker: TickwheelBroker) -> TickwheelScheduleSource:
    return TickwheelScheduleSource(broker, prefix=f"{broker.topic}.")


def task_of(kind: str, number: int, schedule_id: str = ID) -> ScheduledTask:
    when: dict[str, Any] = {
        "time": {"time": FAR + timedelta(days=number)},
        "past": {"time": datetime.now(UTC) - timedelta(days=1)},
        "cron": {"cron": f"{number % 60} 9 * * *"},
        "interval": {"interval": timedelta(days=number + 1)},
    }[kind]
    return ScheduledTask(
        task_name="note", labels={}, args=[number], kwargs={}, schedule_id=schedule_id, **when
    )


async def waiting(broker: TickwheelBroker) -> list[list[Any]]:
    """The arguments of all that waits for its time, as the broker has it, and not as the source tells."""
    client = broker.client
    bodies = [one.body for one in await client.browse(broker.topic, states="scheduled")]
    bodies += [
        one.body
        for one in await client.schedules()
        if one.topic == broker.topic and (one.next_ms or one.paused)
    ]
    return [broker.formatter.loads(body).args for body in bodies]


async def run_due(broker: TickwheelBroker) -> list[list[Any]]:
    """Runs what is due; the arguments of the tasks."""
    ran = []
    async with broker.client.subscribe(broker.topic, broker.group) as due:
        while (await backlog(broker)) > len(await broker.client.browse(broker.topic, states="scheduled")):
            message = await due.receive(PATIENCE_S)
            assert message is not None
            ran.append(broker.formatter.loads(message.body).args)
            await message.ack()
    return ran


@pytest.mark.parametrize("runs", [False, True], ids=["", "with runs between"])
@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("first", range(3))
def test_the_last_of_many_sets_waits_alone(
    broker: TickwheelBroker, first: int, step: int, runs: bool
) -> None:
    """After each of one to nine sets, of one kind or of all in turns."""

    async def test() -> None:
        source = source_of(broker)
        for number in range(9):
            kind = KINDS[(first + step * number) % 3]
            await source.add_schedule(task_of(kind, number))
            assert await waiting(broker) == [[number]]
            if runs and number % 2:
                await source.add_schedule(task_of("past", number))
                assert await waiting(broker) == []
                assert await run_due(broker) == [[number]]
        if kind == "interval" and not runs:
            assert await run_due(broker) == [[8]]  # the first is due now, of the last set only
        await source.delete_schedule(ID)
        assert await waiting(broker) == await source.get_schedules() == []
        assert await run_due(broker) == []

    run(broker, test)


def test_an_id_is_set_anew_after_each_run(broker: TickwheelBroker) -> None:
    async def test() -> None:
        source = source_of(broker)
        for number in range(COPY_KEYS + 5):  # more often than an id has keys
            await source.add_schedule(task_of("past", number))
            assert await run_due(broker) == [[number]]
        for number in range(3):
            await source.add_schedule(task_of("time", number))
            assert await waiting(broker) == [[number]]
            (known,) = await source.get_schedules()
            assert (known.args, known.time) == ([number], FAR + timedelta(days=number))
        await source.add_schedule(task_of("past", 3))
        assert await waiting(broker) == await source.get_schedules() == []
        assert await run_due(broker) == [[3]]
        await source.add_schedule(task_of("time", 4))
        await source.delete_schedule(ID)
        assert await waiting(broker) == await source.get_schedules() == []

    run(broker, test)


@pytest.mark.parametrize("kinds", [("time",), ("cron",), ("interval",), KINDS], ids="-".join)
def test_of_many_sources_at_once_one_wins(
    daemon: Daemon, broker: TickwheelBroker, kinds: tuple[str, ...]
) -> None:
    async def test() -> None:
        others = [TickwheelBroker(daemon.url, topic=broker.topic) for _ in range(10)]
        for one in others:
            await one.startup()
        for _ in range(3):
            await asyncio.gather(
                *(
                    source_of(one).add_schedule(task_of(kinds[number % len(kinds)], number))
                    for number, one in enumerate(others)
                )
            )
            assert len(await waiting(broker)) == 1
        for one in others:
            await one.shutdown()

    run(broker, test)


class Killed(Exception):
    """The process is over."""


def dying(monkeypatch: pytest.MonkeyPatch, requests: int) -> None:
    """The process ends before it makes one request more than these."""
    made = count()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **options: Any) -> Any:
            if next(made) >= requests:
                raise Killed
            return await function(*arguments, **options)

        return call

    for name in ("send", "cancel", "schedule", "create_schedule", "set_schedule", "delete_schedule"):
        monkeypatch.setattr(Client, name, counted(getattr(Client, name)))
    monkeypatch.setattr(Transaction, "commit", counted(Transaction.commit))


@pytest.mark.parametrize(("before", "after"), [*product(KINDS, [*KINDS, "past"])])
def test_whoever_is_killed_while_setting_an_id_has_lost_nothing(
    broker: TickwheelBroker, before: str, after: str
) -> None:
    async def test() -> None:
        source = source_of(broker)
        for requests in range(10):
            await source.add_schedule(task_of(before, 1, f"{requests}"))
            with pytest.MonkeyPatch.context() as patched:
                dying(patched, requests)
                try:
                    await source.add_schedule(task_of(after, 2, f"{requests}"))
                    is_killed = False
                except Killed:
                    is_killed = True
            left = await waiting(broker)
            if after == "past":
                left += [ran for ran in await run_due(broker) if ran == [2]]
            if not (is_killed and (before, after) in TWO_STEPS):
                assert left in ([[1]], [[2]]), requests
            assert left in ([[1]], [[2]], [[1], [2]], [[2], [1]]), requests
            await source.add_schedule(task_of(before, 3, f"{requests}"))
            assert await waiting(broker) == [[3]], requests
            await source.delete_schedule(f"{requests}")
            if not is_killed:
                return
        raise AssertionError("it makes too many requests")

    run(broker, test)


def test_what_somebody_has_paused_stays_paused(broker: TickwheelBroker) -> None:
    async def test() -> None:
        source, name = source_of(broker), f"{broker.topic}.{ID}"
        await source.add_schedule(task_of("cron", 1))
        await broker.client.pause_schedule(name)
        for kind in KINDS:
            await source.add_schedule(task_of(kind, 2))
            assert (await broker.client.schedule(name)).paused
            assert await waiting(broker) == [[2]]
        await broker.client.resume_schedule(name)
        assert await waiting(broker) == [[2]]
        assert [one.interval for one in await source.get_schedules()] == [timedelta(days=3)]

    run(broker, test)
