"""Taskiq's tasks that are taken back: after `cancelled` no message of the id is delivered again."""

from __future__ import annotations

import pytest
from taskiq import SmartRetryMiddleware

from tests.support.frameworks.taskiq_brokers import backlog, done, run, until, working
from tests.support.processes.daemon_harness import PATIENCE_S
from tickwheel.sharing.copy_keys import COPY_KEYS
from tickwheel.taskiq import TickwheelBroker


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


@pytest.mark.parametrize("kicks", [2, 3, COPY_KEYS + 10])
def test_all_messages_of_an_id_are_cancelled(broker: TickwheelBroker, kicks: int) -> None:
    """It was sent again by a program that did not hear the confirmation, or on purpose."""

    @broker.task
    async def note() -> None: ...

    async def test() -> None:
        kicker = note.kicker().with_task_id("the-same").with_labels(delay=3_600)
        for _ in range(kicks):
            await kicker.kiq()
        await note.kicker().with_task_id("another").with_labels(delay=3_600).kiq()
        assert await backlog(broker) == kicks + 1
        assert await broker.cancel("the-same") == "cancelled"
        assert await backlog(broker) == 1
        assert await broker.cancel("the-same") == "not_found"

    run(broker, test)


def test_what_a_worker_has_is_not_delivered_again_after_its_id_was_cancelled(broker: TickwheelBroker) -> None:
    @broker.task
    async def note() -> None: ...

    async def test() -> None:
        await note.kicker().with_task_id("the-same").kiq()
        async with broker.client.subscribe(broker.topic, broker.group) as held:
            assert await held.receive(PATIENCE_S) is not None
            await note.kicker().with_task_id("the-same").with_labels(delay=3_600).kiq()
            assert await broker.cancel("the-same") == "cancelled"
        assert await backlog(broker) == 0

    run(broker, test)


def test_late_retries_and_tasks_with_a_key_are_cancelled_by_their_id(broker: TickwheelBroker) -> None:
    @broker.task
    async def note() -> None: ...

    async def test() -> None:
        kicker = note.kicker().with_labels(delay=3_600)
        await kicker.with_task_id("first").kiq()
        await kicker.with_task_id("first").with_labels(_retries=40).kiq()
        assert await broker.cancel("first") == "cancelled"
        assert await backlog(broker) == 0
        keyed = await note.kicker().with_labels(delay=3_600, key="mine").kiq()
        assert await broker.cancel(keyed) == "cancelled"
        await note.kicker().with_labels(delay=3_600, key="ours", _retries=40).kiq()
        assert await broker.cancel("ours") == "cancelled"
        assert await backlog(broker) == 0

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
