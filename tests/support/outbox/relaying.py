"""What tests of the relay share: a message table, what lies in a topic, and a relay that ends where a test says."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import sqlalchemy as sa

import tickwheel
from tests.support.clients import forking
from tests.support.outbox.databases import OUTBOX
from tickwheel.errors import UnknownTopic
from tickwheel.outbox import Database, Relay, open_database
from tickwheel.outbox.relay.batch import BatchMover
from tickwheel.outbox.watch import notify_statements

PATIENCE_S: Final = 60.0
LATER_NS: Final = time.time_ns() + 3_600 * 10**9
STEPS: Final = ("begun", "selected", "sent", "changed", "committed")
"""Of a batch; those of one that is taken over are begun, found, reconciled, changed, committed."""


class Messages:
    """A message table in a user's database, as Vitess has it."""

    def __init__(self, url: str, name: str = "outbox", *columns: sa.Column[Any]) -> None:
        self.database: Database = open_database(url)
        self.name = name
        small = sa.BigInteger().with_variant(sa.Integer, "sqlite")
        own = columns or (sa.Column("tenant_id", sa.Integer), sa.Column("message", sa.Text))
        has_id = any(column.name == "id" for column in own)
        self.table = sa.Table(
            name,
            sa.MetaData(),
            *(() if has_id else (sa.Column("id", small, primary_key=True),)),
            sa.Column("priority", sa.SmallInteger, nullable=False, server_default="50"),
            sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
            sa.Column("time_next", sa.BigInteger, server_default="0"),
            sa.Column("time_acked", sa.BigInteger),
            *own,
            sa.Index(f"{name}_time_next", "time_next"),
        )
        with self.database.begin() as connection:
            self.table.create(connection)
            if self.database.kind == "postgresql":
                for statement in notify_statements(self.table, "time_next"):
                    connection.execute(sa.text(statement))

    def add(self, *rows: dict[str, Any]) -> None:
        """A transaction of the user's that adds messages, for an hour from now unless they say when."""
        with self.database.begin() as connection:
            for row in rows:
                connection.execute(self.table.insert().values({"time_next": LATER_NS} | row))

    def add_ids(self, ids: range) -> None:
        """Messages with these ids."""
        self.add(*({"id": one, "message": f"message {one}"} for one in ids))

    def change(self, row_id: Any, **values: Any) -> int:
        """A transaction of the user's that changes a message that is not acked; how many rows it found."""
        mine = sa.and_(self.table.c.id == row_id, self.table.c.time_acked.is_(None))
        with self.database.begin() as connection:
            return connection.execute(self.table.update().where(mine).values(**values)).rowcount

    def delete(self, row_id: Any) -> None:
        """A transaction of the user's that deletes a message."""
        with self.database.begin() as connection:
            connection.execute(self.table.delete().where(self.table.c.id == row_id))

    def unsent(self) -> list[Any]:
        """The ids of those that are not acked."""
        columns = self.table.c
        with self.database.reading() as connection:
            rows = connection.execute(sa.select(columns.id).where(columns.time_acked.is_(None)))
            return sorted(row[0] for row in rows)

    def acked(self) -> list[tuple[Any, ...]]:
        """(id, time_next, time_acked) of those that are."""
        columns = self.table.c
        chosen = sa.select(columns.id, columns.time_next, columns.time_acked)
        with self.database.reading() as connection:
            rows = connection.execute(chosen.where(columns.time_acked.is_not(None)).order_by(columns.id))
            return [tuple(row) for row in rows]

    def close(self) -> None:
        """Closes its connections."""
        self.database.close()


async def in_topic(client: tickwheel.Client, topic: str) -> list[Any]:
    """All messages of a topic."""
    found: list[Any] = []
    while True:
        try:
            page = await client.browse(topic, after_id=found[-1].id if found else 0, limit=10_000)
        except UnknownTopic:
            return found
        found += page
        if len(page) < 10_000:
            return found


async def check_once(client: tickwheel.Client, topic: str, messages: Messages, ids: range) -> None:
    """Each of these is in the topic exactly once, and nothing else is; all are acked in the table."""
    keys = Counter(message.key for message in await in_topic(client, topic))
    assert keys == Counter(f"{messages.name}:{one}" for one in ids)
    assert messages.unsent() == []


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits until it is so."""
    with anyio.fail_after(PATIENCE_S):
        while not await condition():
            await anyio.sleep(0.02)


def interrupted(action: Callable[[str], Awaitable[None]]) -> type[Relay]:
    """A relay that does something at each of its steps."""

    class InterruptedMover(BatchMover):
        async def at(self, step: str) -> None:
            await action(step)

    class InterruptedRelay(Relay):
        _mover_class = InterruptedMover

    return InterruptedRelay


# -- a relay in a process of its own --


class RelayProcess:
    """A relay that kills itself at a step: its ``after``-th, or the first of this name."""

    def __init__(self, *arguments: Any, step: str = "", after: int = 0, **options: Any) -> None:
        given = json.dumps([arguments, options, step, after])
        self._process = forking.start(_PROGRAM, given, modules=OUTBOX)

    def wait_killed(self) -> None:
        """Waits until it has killed itself."""
        assert self._process.wait(PATIENCE_S) == -signal.SIGKILL

    def kill(self) -> None:
        """Kills it, unless it was faster."""
        self._process.kill()
        assert self._process.wait(PATIENCE_S) == -signal.SIGKILL


_PROGRAM: Final = (
    "import sys; from tests.support.outbox.relaying import relay_until; relay_until(sys.argv[1])"
)


def relay_until(given: str) -> None:
    """The program of such a process."""
    arguments, options, wanted, after = json.loads(given)
    steps = 0

    async def kill(step: str) -> None:
        nonlocal steps
        steps += 1
        if step == wanted or steps == after:
            os.kill(os.getpid(), signal.SIGKILL)

    anyio.run(interrupted(kill)(*arguments, **options).run)
