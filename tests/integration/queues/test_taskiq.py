"""Taskiq's tasks on a real broker: what is for later, retried, rejected, taken back, scheduled, held by workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import pytest
from taskiq import (
    Context,
    InMemoryBroker,
    ScheduledTask,
    SendTaskError,
    SimpleRetryMiddleware,
    SmartRetryMiddleware,
    TaskiqDepends,
    TaskiqScheduler,
)
from taskiq.receiver import Receiver

from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.guarded import Place
from tickwheel.client.client import Client
from tickwheel.errors import (
    BadArgument,
    BadSchedule,
    BadTime,
    BadTopicName,
    ClientClosed,
    ConnectionDenied,
    NotConnected,
)
from tickwheel.taskiq import TickwheelBroker, TickwheelScheduleSource

_numbers = count()


@pytest.fixture
def broker(daemon: Daemon) -> TickwheelBroker:
    made = TickwheelBroker(daemon.url, topic=f"t{next(_numbers)}")
    return made.with_result_backend(InMemoryBroker().result_backend)


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


def test_tasks_are_called_and_have_results(broker: TickwheelBroker) -> None:
    @broker.task
    async def add(left: int, right: int) -> int:
        return left + right

    @broker.task
    def blocking(text: str) -> str:
        return text.upper()

    async def test() -> None:
        async with working(broker):
            kicked = [await add.kiq(number, 1) for number in range(10)]
            assert [(await one.wait_result(timeout=PATIENCE_S)).return_value for one in kicked] == [
                *range(1, 11)
            ]
            loud = await (await blocking.kiq("ada")).wait_result(timeout=PATIENCE_S)
            assert loud.return_value == "ADA"
        assert await done(broker)

    run(broker, test)


def test_what_is_for_later_waits_in_the_broker(broker: TickwheelBroker) -> None:
    seen: list[str] = []

    @broker.task
    async def note(what: str) -> None:
        seen.append(what)

    async def test() -> None:
        began = datetime.now(UTC)
        far = began.replace(microsecond=0) + timedelta(days=400)
        await note.kicker().with_labels(delay=0.2).kiq("soon")
        await note.kicker().with_labels(deliver_at=far).kiq("far")  # type: ignore[arg-type]
        await note.kicker().with_labels(deliver_at=far.isoformat(), priority=7).kiq("far")
        waiting = await broker.client.browse(broker.topic, states="scheduled")
        at = [one.deliver_at for one in waiting if one.deliver_at - began > timedelta(days=1)]
        assert at == [far] * 2
        assert waiting[-1].priority == 7
        async with working(broker):
            await until(lambda: seen_one(seen))
            assert datetime.now(UTC) - began >= timedelta(seconds=0.2)
        assert seen == ["soon"]
        assert await backlog(broker) == 2

    run(broker, test)


async def seen_one(seen: list[Any]) -> bool:
    return bool(seen)


def test_labels_that_cannot_be(broker: TickwheelBroker) -> None:
    @broker.task
    async def note() -> None: ...

    async def test() -> None:
        wrong: list[tuple[dict[str, Any], type[Exception]]] = [
            ({"delay": -1}, BadTime),
            ({"delay": "soon"}, BadTime),
            ({"delay": "nan"}, BadTime),
            ({"deliver_at": "tomorrow"}, BadTime),
            ({"priority": 256}, BadArgument),
            ({"priority": "high"}, BadArgument),
        ]
        for labels, error in wrong:
            with pytest.raises(SendTaskError) as told:
                await note.kicker().with_labels(**labels).kiq()
            assert isinstance(told.value.__cause__, error)

    run(broker, test)


def test_a_key_is_stored_once_and_an_id_as_often_as_it_is_sent(broker: TickwheelBroker) -> None:
    @broker.task
    async def note() -> None: ...

    async def test() -> None:
        for _ in range(3):
            await note.kicker().with_labels(key="order-17").kiq()
        assert await backlog(broker) == 1
        for _ in range(3):
            await note.kicker().with_task_id("the-same").kiq()
        assert await backlog(broker) == 4

    run(broker, test)


def test_a_task_whose_answer_was_lost_is_stored_once(
    broker: TickwheelBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client sends again what was not answered, and is told that it was there."""
    send = Client.send

    async def lossy(client: Client, *arguments: Any, **options: Any) -> Any:
        await send(client, *arguments, **options)
        return await send(client, *arguments, **options)

    async def test() -> None:
        async with started(broker):
            await broker.client.create_topic(broker.topic)
            monkeypatch.setattr(Client, "send", lossy)
            task = await note.kiq(1)
            assert [one.key for one in await broker.client.browse(broker.topic)] == [task.task_id]

    @broker.task
    async def note(_: int) -> None: ...

    run(broker, test)


def test_cancelled_in_time_and_too_late(broker: TickwheelBroker) -> None:
    ran: list[str] = []

    @broker.task
    async def note(what: str) -> None:
        ran.append(what)

    async def test() -> None:
        kicker = note.kicker().with_labels(delay=3_600)
        later, by_id = await kicker.kiq("later"), await kicker.kiq("by id")
        await kicker.with_labels(key="mine").kiq("by key")
        assert await broker.cancel(later) == "cancelled"
        assert await broker.cancel(by_id.task_id) == "cancelled"
        assert await broker.cancel("mine") == "cancelled"
        assert await broker.cancel(later) in ("already_cancelled", "not_found")
        assert await broker.cancel("never-sent") == "not_found"
        now = await note.kiq("now")
        async with working(broker):
            await until(lambda: done(broker))
        assert await broker.cancel(now) == "already_acked"
        assert ran == ["now"]

    run(broker, test)


@pytest.mark.parametrize("kind", ["simple", "smart", "by schedule"])
def test_retries_of_taskiq_work_as_they_are(broker: TickwheelBroker, kind: str) -> None:
    attempts: list[int] = []
    if kind == "simple":
        broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=4))
    else:
        source = TickwheelScheduleSource(broker) if kind == "by schedule" else None
        broker.add_middlewares(
            SmartRetryMiddleware(default_retry_count=4, default_delay=0.02, schedule_source=source)
        )

    @broker.task(retry_on_error=True, key="retried")
    async def fail_twice() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise ValueError("not yet")
        return "done"

    async def test() -> None:
        async with working(broker):
            kicked = await fail_twice.kiq()
            result = await kicked.wait_result(timeout=PATIENCE_S)
            assert result.return_value == "done"
            await until(lambda: done(broker))
        assert len(attempts) == 3

    run(broker, test)


def test_a_retry_that_waits_is_cancelled_by_the_id_of_its_task(broker: TickwheelBroker) -> None:
    attempts: list[int] = []
    broker.add_middlewares(SmartRetryMiddleware(default_retry_count=4, default_delay=3_600))

    @broker.task(retry_on_error=True)
    async def fail() -> None:
        attempts.append(1)
        raise ValueError("not yet")

    async def waits() -> bool:
        return bool(attempts) and bool(await broker.client.browse(broker.topic, states="scheduled"))

    async def test() -> None:
        async with working(broker):
            kicked = await fail.kiq()
            await until(waits)
            assert await broker.cancel(kicked) == "cancelled"
            await until(lambda: done(broker))

    run(broker, test)


def test_what_a_task_rejects_is_a_dead_letter(broker: TickwheelBroker) -> None:
    @broker.task
    async def refuse(context: Annotated[Context, TaskiqDepends()]) -> None:
        context.reject()

    @broker.task
    async def fail() -> None:
        raise ValueError("an error is a result")

    async def test() -> None:
        async with working(broker):
            await refuse.kiq()
            await fail.kiq()
            await until(lambda: done(broker))
        (letter,) = await broker.client.browse(f"{broker.topic}.dead")
        assert b"refuse" in letter.body
        assert "rejected" in str(letter.headers)

    run(broker, test)


def test_requeued_by_a_task(broker: TickwheelBroker) -> None:
    attempts: list[int] = []

    @broker.task
    async def again(context: Annotated[Context, TaskiqDepends()]) -> str:
        attempts.append(1)
        if len(attempts) < 3:
            await context.requeue()
        return "done"

    async def test() -> None:
        async with working(broker):
            result = await (await again.kiq()).wait_result(timeout=PATIENCE_S)
            assert result.return_value == "done"
        assert len(attempts) == 3

    run(broker, test)


def test_a_worker_that_ends_finishes_its_tasks_and_gives_the_rest_back(broker: TickwheelBroker) -> None:
    free = asyncio.Event()
    began: list[int] = []

    @broker.task
    async def wait(number: int) -> None:
        began.append(number)
        await free.wait()

    async def leased() -> int:
        return (await broker.client.groups(broker.topic))[0].leased

    async def test() -> None:
        for number in range(50):
            await wait.kiq(number)
        async with working(broker, tasks=3):
            await until(lambda: seen_one(began[2:]))
            asyncio.get_running_loop().call_later(0.5, free.set)
        # It has stopped to listen while three tasks ran, whose leases stayed.
        (group,) = await broker.client.groups(broker.topic)
        assert group.acked == len(began)
        assert (group.leased, group.acked + group.backlog) == (0, 50)
        assert sorted(began) == sorted(set(began))

    run(broker, test)
    assert len(began) < 50


def test_leases_are_renewed_while_tasks_run(broker: TickwheelBroker) -> None:
    calls: list[int] = []

    @broker.task
    async def sleep() -> None:
        calls.append(1)
        await asyncio.sleep(3)  # three leases

    async def test() -> None:
        await broker.client.create_topic(broker.topic, ack_wait=timedelta(seconds=1))
        async with working(broker):
            await sleep.kiq()
            await until(lambda: done(broker))

    run(broker, test)
    assert len(calls) == 1


# -- schedules --


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


def test_two_processes_that_declare_at_the_same_time(daemon: Daemon, broker: TickwheelBroker) -> None:
    async def test() -> None:
        others = [TickwheelBroker(daemon.url, topic=broker.topic) for _ in range(3)]
        sources = []
        for one in others:
            await one.startup()
            declaring(one, [{"interval": 3_600}, {"cron": "0 9 * * *"}, {"time": "2031-05-01T09:00:00"}])
            sources.append(TickwheelScheduleSource(one, prefix=f"{broker.topic}."))
        await asyncio.gather(*(source.declare() for source in sources))
        assert len(await sources[0].get_schedules()) == 3
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


# -- life --


def test_used_before_its_start_and_without_a_broker(daemon: Daemon, tmp_path: Path) -> None:
    async def test() -> None:
        broker = TickwheelBroker(daemon.url)

        @broker.task
        async def note() -> None: ...

        with pytest.raises(SendTaskError) as told:
            await note.kiq()
        assert isinstance(told.value.__cause__, ClientClosed)
        with pytest.raises(ClientClosed, match="startup"):
            broker.listen()
        nowhere = TickwheelBroker(f"tickwheel+unix://{tmp_path}/none", connect_timeout=0.1)
        with pytest.raises(NotConnected):
            await nowhere.startup()
        await asyncio.gather(broker.startup(), broker.startup())
        assert len([one for one in await broker.client.clients() if one.id]) == 1
        await broker.startup()  # a worker and a program may both do it
        await asyncio.create_task(broker.shutdown())  # in another task
        await broker.shutdown()

    asyncio.run(test())


def test_bad_arguments() -> None:
    with pytest.raises(BadTopicName):
        TickwheelBroker(topic="a b")
    with pytest.raises(BadTopicName):
        TickwheelBroker(group="")
    with pytest.raises(BadArgument):
        TickwheelBroker(credit=0)
    with pytest.raises(BadArgument):
        TickwheelBroker(timeout="long")  # type: ignore[arg-type]
    with pytest.raises(BadTopicName):
        TickwheelScheduleSource(TickwheelBroker(), prefix="a b")


def test_a_token_that_is_replaced(tmp_path: Path) -> None:
    """A client that is not let in is over; the next call has another one, with what is in the file by then."""
    place = Place(tmp_path)
    file = tmp_path / "token"
    file.write_text(place.create("old", "publish:*"))

    async def test(url: str) -> None:
        broker = TickwheelBroker(url, token_file=file)

        @broker.task
        async def note() -> None: ...

        async def is_denied() -> bool:
            try:
                await note.kiq()
            except SendTaskError as error:
                return isinstance(error.__cause__, ConnectionDenied)
            return False

        async with started(broker):
            assert not await is_denied()
            renewed = place.create("new", "publish:*")
            place.tokens("revoke", "old", "--yes")
            await until(is_denied)
            file.write_text(renewed)
            assert not await is_denied()

    with place.daemon() as daemon:
        asyncio.run(test(daemon.url))
