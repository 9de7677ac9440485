"""A relay beside others: users who write to the table, a second relay, a broker that comes and goes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

import tickwheel
from tests.support.outbox.relaying import LATER_NS, Messages, check_once, in_topic, interrupted, until
from tickwheel._embedded import EmbeddedBroker
from tickwheel.outbox import Relay

LATER_MS = -(-LATER_NS // 1_000_000)


async def test_a_commit_wakes_the_relay(broker: EmbeddedBroker, messages: Messages, topic: str) -> None:
    """Nothing is polled; and when one of two relays ends, the other goes on."""
    ids = iter(range(1, 100))
    async with broker.client() as client, AsyncExitStack() as stack:

        async def arrives() -> None:
            one = next(ids)
            await messages.database.call(messages.add_ids, range(one, one + 1))

            async def is_there() -> bool:
                return len(await in_topic(client, topic)) == one

            await until(is_there)

        groups = []
        for _ in range(2):
            group = await stack.enter_async_context(anyio.create_task_group())
            group.start_soon(Relay(messages.database, "outbox", broker.url, topic, poll_s=600).run)
            groups.append(group)
        for _ in range(3):
            await arrives()
        groups[0].cancel_scope.cancel()
        for _ in range(3):
            await arrives()
        groups[1].cancel_scope.cancel()


@pytest.mark.only_on("postgresql", "mariadb")  # SQLite has one writer at a time.
async def test_a_row_that_the_user_has_locked_is_passed_over(
    broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    messages.add_ids(range(1, 4))
    async with broker.client() as client:
        relay = Relay(messages.database, "outbox", client, topic)
        with messages.database.begin() as connection:
            connection.execute(messages.table.update().where(messages.table.c.id == 2).values(priority=1))
            assert await relay.run_once() == 2
        assert await relay.run_once() == 1
        priorities = {one.key: one.priority for one in await in_topic(client, topic)}
        assert priorities == {"outbox:1": 50, "outbox:2": 1, "outbox:3": 50}


async def test_whoever_changes_a_row_while_it_is_sent_is_told_that_it_is_too_late(
    broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    messages.add_ids(range(1, 3))
    changed: list[int] = []
    async with broker.client() as client, anyio.create_task_group() as group:

        async def change() -> None:
            changed.append(await messages.database.call(lambda: messages.change(1, time_next=LATER_NS * 2)))

        async def at(step: str) -> None:
            if step == "sent":
                group.start_soon(change)

        relay = interrupted(at)(messages.database, "outbox", client, topic)
        assert await relay.run_once() == 2

        async def is_changed() -> bool:
            return bool(changed)

        await until(is_changed)
        assert changed == [0]
        assert {one.deliver_at_ms for one in await in_topic(client, topic)} == {LATER_MS}


async def test_without_a_broker_nobody_is_blocked(messages: Messages, topic: str, tmp_path: Any) -> None:
    """And everything goes on when it comes."""
    broker = tickwheel.embedded(tmp_path / "data", unix_socket=str(tmp_path / "s"))
    url = f"tickwheel+unix://{tmp_path / 's'}"
    async with anyio.create_task_group() as group:
        group.start_soon(Relay(messages.database, "outbox", url, topic, poll_s=600).run)
        for one in range(1, 6):
            await messages.database.call(messages.add_ids, range(one, one + 1))
        async with broker, broker.client() as client:
            await until(nothing_left(messages))
            await check_once(client, topic, messages, range(1, 6))
        for one in range(6, 9):  # it is away again
            await messages.database.call(messages.add_ids, range(one, one + 1))
        again = tickwheel.embedded(tmp_path / "data", unix_socket=str(tmp_path / "s"))
        async with again, again.client() as client:
            await until(nothing_left(messages))
            await check_once(client, topic, messages, range(1, 9))
            group.cancel_scope.cancel()


def nothing_left(messages: Messages) -> Callable[[], Awaitable[bool]]:
    async def is_empty() -> bool:
        return not await messages.database.call(messages.unsent)

    return is_empty
