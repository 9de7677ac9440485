"""Whatever is killed, and wherever: each committed message is in the topic exactly once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

import tickwheel
from tests.support.outbox.databases import DatabaseServer
from tests.support.outbox.relaying import STEPS, Messages, RelayProcess, check_once, interrupted, until
from tests.support.processes.daemon_harness import Daemon
from tickwheel.outbox import DatabaseUnavailable, Relay

BATCH = 10
RESUMING = ("begun", "found", "reconciled", "changed", "committed")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("relay") / "data") as running:
        yield running


_topics = count()


@pytest.fixture
def topic() -> str:
    return f"killed-{next(_topics)}"


def url_of(messages: Messages) -> str:
    return messages.database.engine.url.render_as_string(hide_password=False)


async def test_a_relay_is_killed_at_each_step(daemon: Daemon, messages: Messages, topic: str) -> None:
    """Also one that takes over what another left behind."""
    where = (url_of(messages), messages.name, daemon.unix_url, topic)
    batches = iter(range(1, 10_000, BATCH))

    def kill_at(step: str) -> None:
        start = next(batches)
        messages.add_ids(range(start, start + BATCH))
        RelayProcess(*where, step=step, batch=2 * BATCH).wait_killed()

    for step in STEPS:
        kill_at(step)
        if step in ("sent", "changed"):  # the broker has the batch, the database does not know
            RelayProcess(*where, step=RESUMING[1 if step == "sent" else 2]).wait_killed()
    async with tickwheel.Client(daemon.unix_url) as client:
        await Relay(messages.database, messages.table, client, topic).run_once()
        await check_once(client, topic, messages, range(1, next(batches)))


async def test_relays_are_killed_at_random_steps(daemon: Daemon, messages: Messages, topic: str) -> None:
    """Two at a time, while the user goes on."""
    chance = random.Random(17)
    ids = iter(range(1, 10_000, BATCH))
    for _ in range(2):
        # The first works until it kills itself, or stands by until the second has.
        relays = [
            RelayProcess(
                *(url_of(messages), messages.name, daemon.unix_url, topic),
                after=chance.randint(1, 12),
                batch=chance.choice((3, BATCH)),
            )
            for _ in range(2)
        ]
        for _ in range(4):
            start = next(ids)
            messages.add_ids(range(start, start + BATCH))
        relays[0].wait_killed()
        relays[1].kill()
    async with tickwheel.Client(daemon.unix_url) as client:
        await Relay(messages.database, messages.table, client, topic).run_once()
        await check_once(client, topic, messages, range(1, next(ids)))


class Interrupter:
    """Does something once at each step of a relay, and goes on to the next step at a later batch."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.left = list(STEPS)
        self._action = action

    async def at(self, step: str) -> None:
        if self.left and step == self.left[0]:
            del self.left[0]
            await anyio.to_thread.run_sync(self._action)


async def relay_through(interrupter: Interrupter, messages: Messages, client: Any, topic: str) -> None:
    """Relays a batch for each step, and then all that is left."""
    relay = interrupted(interrupter.at)(
        messages.database, messages.table, client, topic, batch=BATCH, poll_s=0.1
    )
    messages.add_ids(range(1, BATCH * len(STEPS) + 1))

    async def is_done() -> bool:
        try:
            return not interrupter.left and not await messages.database.call(messages.unsent)
        except DatabaseUnavailable:
            return False

    async with anyio.create_task_group() as group:
        group.start_soon(relay.run)
        await until(is_done)
        group.cancel_scope.cancel()
    await check_once(client, topic, messages, range(1, BATCH * len(STEPS) + 1))


async def test_the_broker_is_killed_at_each_step(tmp_path: Path, topic: str) -> None:
    with Daemon(tmp_path / "data") as daemon, closing(Messages(f"sqlite:///{tmp_path}/app.db")) as messages:

        def kill() -> None:
            daemon.kill()
            daemon.start()

        async with tickwheel.Client(daemon.unix_url) as client:
            await relay_through(Interrupter(kill), messages, client, topic)


async def test_the_database_is_killed_at_each_step(
    daemon: Daemon, database_server: DatabaseServer, topic: str
) -> None:
    def kill() -> None:
        database_server.kill()
        database_server.start()

    with database_server.database() as url:
        messages = Messages(url)
        async with tickwheel.Client(daemon.unix_url) as client:
            await relay_through(Interrupter(kill), messages, client, topic)
        messages.close()
