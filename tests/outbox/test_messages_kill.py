"""kill -9 of consumers and of the database at random moments: nothing is lost, and no effect happens twice."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from itertools import islice

import pytest
import sqlalchemy as sa
import trio

from tests.support.clients.forking import Programs
from tests.support.outbox.databases import OUTBOX, DatabaseServer
from tests.support.outbox.message_consumer import EFFECTS, PROGRAM, TABLE, do
from tests.support.outbox.messages import PATIENCE_S, eventually, message_table
from tests.support.run.profile import amount, limit_s, seed
from tickwheel.outbox import DatabaseUnavailable, LeaseLost, MessageTable
from tickwheel.outbox.messages.hub import Hub

KILLS = amount("consumer_kills")
SERVER_KILLS = amount("server_kills")
COLUMNS = [sa.Column("job", sa.BigInteger)]
QUICK = {"ack_wait_ms": 700, "max_backoff_ms": 700, "poller_interval_ms": 1_000, "batch_size": 5}


def effects(table: MessageTable) -> Counter[int]:
    with table.database.reading() as connection:
        return Counter(connection.execute(sa.select(EFFECTS.c.job)).scalars())


def done_by(table: MessageTable, process: int) -> int:
    counted = sa.select(sa.func.count()).where(EFFECTS.c.process == process)
    with table.database.reading() as connection:
        return int(connection.execute(counted).scalar_one())


async def test_killed_consumers(database_url: str) -> None:
    drawn = seed("messages kill")
    chance = random.Random(drawn)
    print(f"seed {drawn}")
    sent = 0
    with (
        message_table(database_url, TABLE, COLUMNS, **QUICK) as table,
        Programs(PROGRAM, database_url, modules=OUTBOX) as consumers,
    ):
        EFFECTS.create(table.database.engine)
        numbers = iter(range(1, KILLS + 3))
        running = [(consumers.start(str(number)), number) for number in islice(numbers, 2)]
        for _ in range(KILLS):
            victim, number = running.pop(0)
            with trio.fail_after(2 * PATIENCE_S):
                while not done_by(table, number):
                    if sent - table.stats().acked < 100:  # a slow machine is not buried
                        with table.database.begin() as connection:
                            table.send_many(connection, [{"job": sent + one} for one in range(20)])
                        sent += 20
                    await trio.sleep(0.05)
            await trio.sleep(chance.random() * 0.1)
            victim.kill()
            number = next(numbers)
            running.append((consumers.start(str(number)), number))
        with trio.fail_after(2 * PATIENCE_S):
            await eventually(lambda: table.stats().acked == sent)
        assert effects(table) == dict.fromkeys(range(sent), 1)


class Load:
    """A producer, and a consumer that uses a hub through everything."""

    def __init__(self, table: MessageTable) -> None:
        self.table = table
        self.sent: list[int] = []
        self.acked: set[int] = set()
        self.stopping = self.has_stopped = False

    async def produce(self) -> None:
        """A job is sent when its commit was confirmed, and otherwise sent again if it is not there."""
        number = 0
        while not self.stopping:
            number += 1
            while True:
                try:
                    await trio.to_thread.run_sync(self._send, number)
                    break
                except DatabaseUnavailable:
                    await trio.sleep(0.05)
            self.sent.append(number)
            await trio.sleep(0.005)
        self.has_stopped = True

    def _send(self, number: int) -> None:
        column = self.table.table.c.job
        with self.table.database.begin() as connection:
            if connection.execute(sa.select(column).where(column == number)).first() is None:
                self.table.send(connection, job=number)

    async def consume(self, hub: Hub) -> None:
        """Every other job is acked together with an effect, the rest alone."""
        async with hub.subscribe() as stream:
            async for message in stream:
                job = message["job"]
                with suppress(LeaseLost, DatabaseUnavailable):
                    if job % 2:
                        effect = sa.insert(EFFECTS).values(job=job, process=0)
                        await trio.to_thread.run_sync(do, self.table, effect, message)
                    else:
                        await message.ack()
                    self.acked.add(job)

    def not_acked(self) -> int:
        """How many messages the table has yet to deliver."""
        stats = self.table.stats()
        return stats.due + stats.waiting


@pytest.mark.promise("V58")
@pytest.mark.timeout(limit_s(300))
async def test_a_killed_database(database_server: DatabaseServer) -> None:
    url = database_server.create_database()
    with message_table(url, TABLE, COLUMNS, **QUICK) as table:
        EFFECTS.create(table.database.engine)
        load = Load(table)
        with trio.fail_after(PATIENCE_S * (4 + SERVER_KILLS)):
            async with table.hub() as hub, trio.open_nursery() as nursery:
                nursery.start_soon(load.consume, hub)
                nursery.start_soon(load.produce)
                for _ in range(SERVER_KILLS):
                    enough = len(load.acked) + 40
                    await eventually(lambda: len(load.acked) > enough)  # noqa: B023
                    failures = hub.stats.failures
                    await trio.to_thread.run_sync(database_server.kill)
                    hub.ring(None)
                    await eventually(lambda: hub.stats.failures > failures)  # noqa: B023
                    await trio.to_thread.run_sync(database_server.start)
                enough = len(load.acked) + 40
                await eventually(lambda: len(load.acked) > enough)
                load.stopping = True
                await eventually(lambda: load.has_stopped and load.not_acked() == 0)
                nursery.cancel_scope.cancel()
            assert hub.stats.failures > 0
        with table.database.reading() as connection:
            jobs = Counter(
                connection.execute(
                    sa.select(table.table.c.job).where(table.table.c.time_acked.is_not(None))
                ).scalars()
            )
        assert jobs == dict.fromkeys(load.sent, 1)
        assert load.acked <= jobs.keys()
        assert effects(table) == {job: 1 for job in load.sent if job % 2}
    database_server.drop_database(url)
