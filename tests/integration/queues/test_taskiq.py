"""Taskiq's tasks on a real broker: what is for later, retried, rejected, taken back, scheduled, held by workers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from taskiq import (
    Context,
    SendTaskError,
    SimpleRetryMiddleware,
    SmartRetryMiddleware,
    TaskiqDepends,
)

from tests.support.frameworks.taskiq_brokers import (
    backlog,
    done,
    run,
    seen_one,
    started,
    until,
    working,
)
from tests.support.processes.daemon_harness import PATIENCE_S, Daemon
from tests.support.processes.guarded import Place
from tickwheel.client.client import Client
from tickwheel.errors import (
    BadArgument,
    BadTime,
    BadTopicName,
    ClientClosed,
    ConnectionDenied,
    NotConnected,
)
from tickwheel.taskiq import TickwheelBroker, TickwheelScheduleSource


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
