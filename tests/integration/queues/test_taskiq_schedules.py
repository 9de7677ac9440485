"""Schedules of Taskiq that the broker keeps: set, set again, declared, deleted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from taskiq import Context, ScheduledTask, TaskiqDepends, TaskiqScheduler

from tests.support.frameworks.taskiq_brokers import (
    backlog,
    done,
    run,
    seen_one,
    started,
    until,
    working,
)
from tests.support.processes.daemon_harness import Daemon
from tickwheel.errors import BadSchedule
from tickwheel.taskiq import TickwheelBroker, TickwheelScheduleSource


def test_tasks_with_a_time_need_no_scheduler(broker: TickwheelBroker) -> None:
    ran: list[str] = []
    source = TickwheelScheduleSource(broker)

    @broker.task(delay=7_200)  # which schedules do not look at
    async def note(what: str, *, loud: bool = False) -> str:
        ran.append(what)
        return what

    async def test() -> None:
        far = datetime(2031, 5, 1, 9, tzinfo=UTC)
        later = await note.schedule_by_time(source, far, "later", loud=True)
        naive = await note.schedule_by_time(source, datetime(2031, 5, 2, 9), "naive")
        known = await source.get_schedules()
        assert [(one.schedule_id, one.time, one.args, one.kwargs) for one in known] == [
            (later.schedule_id, far, ["later"], {"loud": True}),
            (naive.schedule_id, far + timedelta(days=1), ["naive"], {}),
        ]
        assert known[0].task_name == note.task_name
        await later.unschedule()
        await naive.unschedule()
        await naive.unschedule()
        assert await source.get_schedules() == []
        async with working(broker):
            await note.schedule_by_time(source, datetime.now(UTC) - timedelta(days=1), "past")
            await note.schedule_by_time(source, datetime.now(UTC) + timedelta(seconds=0.1), "soon")
            await until(lambda: done(broker))
        assert ran == ["past", "soon"]

    run(broker, test)


def test_a_schedule_of_the_same_id_is_replaced(broker: TickwheelBroker) -> None:
    source = TickwheelScheduleSource(broker)
    at = datetime(2031, 5, 1, 9, tzinfo=UTC)

    @broker.task
    async def note(number: int) -> None: ...

    async def test() -> None:
        for number in range(4):
            kicker = note.kicker().with_schedule_id("mine")
            await kicker.schedule_by_time(source, at + timedelta(days=number), number)
        (one,) = await source.get_schedules()
        assert (one.args, one.time) == ([3], at + timedelta(days=3))
        await source.delete_schedule("mine")
        assert await source.get_schedules() == []
        for number in range(2):
            await (
                note.kicker().with_schedule_id("often").schedule_by_cron(source, f"{number} 9 * * *", number)
            )
        (often,) = await source.get_schedules()
        assert (often.cron, often.args) == ("1 9 * * *", [1])
        await source.delete_schedule("often")

    run(broker, test)


def test_what_recurs_is_a_schedule_of_the_broker(broker: TickwheelBroker) -> None:
    ids: list[str] = []
    source = TickwheelScheduleSource(broker, prefix=f"{broker.topic}.")

    @broker.task
    async def tick(context: Annotated[Context, TaskiqDepends()]) -> None:
        ids.append(context.message.task_id)
        assert context.message.labels["schedule_id"]

    async def test() -> None:
        async with working(broker):
            often = await tick.schedule_by_interval(source, 1)
            await until(lambda: seen_one(ids[1:]))
            await often.unschedule()
        assert len(set(ids)) == len(ids) >= 2
        rare = await tick.schedule_by_interval(source, timedelta(hours=5))
        before = len(ids)
        async with working(broker):  # the first one is due now
            await until(lambda: seen_one(ids[before:]))
        await rare.unschedule()
        daily = ScheduledTask(
            task_name=tick.task_name,
            labels={},
            args=[],
            kwargs={},
            cron="30 9 * * MON-FRI",
            cron_offset="Asia/Kolkata",
        )
        shifted = daily.model_copy(update={"schedule_id": "shifted", "cron_offset": timedelta(hours=2)})
        for one in (daily, shifted):
            await source.add_schedule(one)
        kept = {one.schedule_id: (one.cron, one.cron_offset) for one in await source.get_schedules()}
        assert kept == {
            daily.schedule_id: ("30 9 * * MON-FRI", "Asia/Kolkata"),
            "shifted": ("30 9 * * MON-FRI", timedelta(hours=2)),
        }
        (next_one,) = (await broker.client.schedule(f"{broker.topic}.shifted", count=1)).next
        assert (next_one.hour, next_one.minute) == (7, 30)
        for one in (daily, shifted):
            await source.delete_schedule(one.schedule_id)

    run(broker, test)


def declaring(broker: TickwheelBroker, schedules: list[dict[str, Any]]) -> Any:
    @broker.task(task_name="declared", schedule=schedules, priority=3)
    async def note(number: int = 0) -> None: ...

    return note


def test_schedules_that_stand_at_tasks_are_kept_by_the_broker(
    daemon: Daemon, broker: TickwheelBroker
) -> None:
    far = datetime(2031, 5, 1, 9, tzinfo=UTC)
    first: list[dict[str, Any]] = [
        {"cron": "0 9 * * *", "args": [1], "cron_offset": "Europe/Paris"},
        {"interval": 3_600, "kwargs": {"number": 2}},
        {"time": far, "args": [3]},
        {"time": datetime(2001, 1, 1), "args": [4]},
    ]

    async def kept(source: TickwheelScheduleSource) -> list[Any]:
        return sorted(
            (one.args, one.kwargs, one.cron, str(one.interval), one.time)
            for one in await source.get_schedules()
        )

    async def test() -> None:
        source = TickwheelScheduleSource(broker, prefix=f"{broker.topic}.")
        own = await declaring(broker, first).schedule_by_cron(source, "0 8 * * *", 5)
        wanted = [
            ([], {"number": 2}, None, "1:00:00", None),
            ([1], {}, "0 9 * * *", "None", None),
            ([3], {}, None, "None", far),
            ([5], {}, "0 8 * * *", "None", None),
        ]
        for _ in range(3):
            await source.declare()
            assert await kept(source) == wanted
        elsewhere = TickwheelBroker(daemon.url, topic=broker.topic)
        async with started(elsewhere):
            declaring(elsewhere, first)
            other = TickwheelScheduleSource(elsewhere, prefix=f"{broker.topic}.")
            await asyncio.gather(other.declare(), source.declare())
            assert await kept(source) == wanted
        declaring(broker, [{"cron": "30 9 * * *", "args": [1]}])  # the program has changed
        await source.declare()
        assert await kept(source) == [
            ([1], {}, "30 9 * * *", "None", None),
            ([5], {}, "0 8 * * *", "None", None),
        ]
        await own.unschedule()
        declaring(broker, [])
        await source.declare()
        assert await kept(source) == []

    run(broker, test)


def test_declarations_are_made_at_once_again_and_after_a_pause(
    daemon: Daemon, broker: TickwheelBroker
) -> None:
    async def test() -> None:
        others = [TickwheelBroker(daemon.url, topic=broker.topic) for _ in range(6)]
        sources = []
        for one in others:
            await one.startup()
            declaring(one, [{"interval": 3_600}, {"cron": "0 9 * * *"}, {"time": "2031-05-01T09:00:00"}])
            sources.append(TickwheelScheduleSource(one, prefix=f"{broker.topic}."))
        await asyncio.gather(*(source.declare() for source in sources))
        assert len(await sources[0].get_schedules()) == 3
        names = [one.name for one in await broker.client.schedules() if one.topic == broker.topic]
        for name in names:
            await broker.client.pause_schedule(name)
        await asyncio.gather(*(source.declare() for source in sources))
        assert [(await broker.client.schedule(name)).paused for name in names] == [True, True]
        assert len(await sources[0].get_schedules()) == 3
        declaring(others[0], [])
        await asyncio.gather(*(sources[0].declare() for _ in range(6)))
        assert await sources[0].get_schedules() == []
        for one in others:
            await one.shutdown()

    run(broker, test)


def test_crons_that_would_mean_something_else(broker: TickwheelBroker) -> None:
    source = TickwheelScheduleSource(broker)

    @broker.task
    async def tick() -> None: ...

    async def test() -> None:
        for cron, error in [("0 9 1 * MON", "both"), ("0 9 *", "no cron"), ("61 * * * *", "61")]:
            with pytest.raises(BadSchedule, match=error):
                await tick.schedule_by_cron(source, cron)
        odd = ScheduledTask(
            task_name="t", labels={}, args=[], kwargs={}, cron="0 9 * * *", cron_offset=timedelta(minutes=330)
        )
        with pytest.raises(BadSchedule, match="no zone"):
            await source.add_schedule(odd)

    run(broker, test)


def test_a_scheduler_that_runs_all_the_same_sends_nothing_twice(broker: TickwheelBroker) -> None:
    source = TickwheelScheduleSource(broker)

    @broker.task
    async def note() -> None: ...

    async def test() -> None:
        scheduler = TaskiqScheduler(broker, [source])
        await note.schedule_by_time(source, datetime(2031, 5, 1, 9, tzinfo=UTC))
        (one,) = await source.get_schedules()
        await scheduler.on_ready(source, one)
        assert await backlog(broker) == 1

    run(broker, test)
