"""What tests of message tables share: tables that are closed afterwards, and a short patience."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

import anyio
import sqlalchemy as sa

from tickwheel.outbox import Database, MessageSettings, MessageTable
from tickwheel.outbox.messages.stream import Message, Stream

PATIENCE_S: Final = 60.0
"""How long a test waits for what must come; far more than it takes, because machines are busy."""
NEVER_MS: Final = 3_600_000
"""Nothing in these tests waits for the poller."""


def fast(**changes: Any) -> MessageSettings:
    """Settings for tests: nothing happens by polling, and waits are short."""
    settings = {"ack_wait_ms": NEVER_MS, "max_backoff_ms": NEVER_MS, "poller_interval_ms": NEVER_MS}
    return MessageSettings(**(settings | changes))


@contextmanager
def message_table(
    url: str, name: str = "reminders", columns: Sequence[sa.Column[Any]] | None = None, **settings: Any
) -> Iterator[MessageTable]:
    """A new message table."""
    table = MessageTable(url, name)
    try:
        yield table.create(columns, fast(**settings))
    finally:
        table.database.close()


@contextmanager
def same_table(url: str, name: str = "reminders") -> Iterator[MessageTable]:
    """A table that is there, as another process sees it."""
    table = MessageTable(url, name)
    try:
        yield table
    finally:
        table.database.close()


@contextmanager
def engine_of(url: str, **options: Any) -> Iterator[sa.Engine]:
    """An engine as a user would make it."""
    engine = sa.create_engine(url, **options)
    try:
        yield engine
    finally:
        engine.dispose()


def send(table: MessageTable, *texts: str, **options: Any) -> list[Any]:
    """Sends one message for each text in one transaction; their ids."""
    with table.database.begin() as connection:
        return [table.send(connection, message=text, **options) for text in texts]


def rolled_back(database: Database, *steps: Callable[[sa.Connection], object]) -> None:
    """Does some steps in a transaction, and then thinks better of it: raises ZeroDivisionError, or what a step does."""
    with database.begin() as connection:
        for step in steps:
            step(connection)
        raise ZeroDivisionError


def with_effect(
    database: Database | sa.Engine, effect: sa.Insert, *steps: Callable[[sa.Connection], object]
) -> None:
    """An effect and what belongs to it, in one transaction."""
    with database.begin() as connection:
        connection.execute(effect)
        for step in steps:
            step(connection)


def execute(table: MessageTable, sql: str, **values: Any) -> int:
    """Plain SQL in a transaction, as a user would write it; how many rows it changed."""
    with table.database.begin() as connection:
        return connection.execute(sa.text(sql), values).rowcount


def rows(table: MessageTable, *columns: str) -> list[tuple[Any, ...]]:
    """The table's rows, by id."""
    chosen = [table.table.c[name] for name in columns]
    with table.database.reading() as connection:
        return [tuple(row) for row in connection.execute(sa.select(*chosen).order_by(table.table.c.id))]


async def get(stream: Stream) -> Message:
    """The next message."""
    message = await stream.receive(PATIENCE_S)
    assert message is not None, "nothing came"
    return message


async def get_many(stream: Stream, count: int) -> list[Message]:
    """The next messages."""
    return [await get(stream) for _ in range(count)]


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits until something that no event tells of is so."""
    end = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < end, "it did not happen"
        await anyio.sleep(0.01)
