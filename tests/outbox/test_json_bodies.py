"""`json=` of what sends from a database: the body is JSON, and says so where it can."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.outbox.relaying import in_topic
from tickwheel._embedded import EmbeddedBroker
from tickwheel.errors import BadArgument
from tickwheel.outbox import KeySpace, MessageTable, Queue, Relay

VALUE = {"order": 17, "at": datetime(2031, 5, 1, 9, tzinfo=UTC), "näme": None}
TEXT = '{"order":17,"at":"2031-05-01T09:00:00Z","näme":null}'
PLAIN = {"order": 17, "at": "2031-05-01T09:00:00Z", "näme": None}
COLUMNS: dict[str, list[tuple[str, sa.types.TypeEngine[Any]]]] = {
    "text": [("message", sa.Text()), ("content-type", sa.String(100))],
    "bytes": [("body", sa.LargeBinary())],
    "json": [("message", sa.JSON())],
}


@pytest.fixture(params=COLUMNS)
def form(request: pytest.FixtureRequest) -> str:
    """What the column of the body is."""
    return str(request.param)


@pytest.fixture
def table(database_url: str, form: str) -> Iterator[MessageTable]:
    made = MessageTable(database_url, "jobs").create([sa.Column(*one) for one in COLUMNS[form]])
    yield made
    made.database.close()


async def test_a_table_and_its_relay(
    broker: EmbeddedBroker, table: MessageTable, topic: str, form: str
) -> None:
    with table.database.begin() as connection:
        table.send(connection, json=VALUE)
        table.send(connection, json=None)
        table.send(connection, json="text")
    async with broker.client() as client:
        assert await Relay(table.database, "jobs", client, topic).run_once() == 3
        async with client.subscribe(topic) as messages:
            found = [await anext(messages) for _ in range(3)]
            for message in found:
                await message.ack()
    assert [one.json() for one in found] == [PLAIN, None, "text"]
    if form != "json":  # a database writes JSON as it likes
        assert found[0].body == TEXT.encode()
    said = {} if form == "bytes" else {"content-type": "application/json"}
    assert [one.headers for one in found] == [said] * 3


async def test_headers_that_were_chosen_stay(broker: EmbeddedBroker, database_url: str, topic: str) -> None:
    columns = [sa.Column("message", sa.JSON), sa.Column("content-type", sa.String(100))]
    table = MessageTable(database_url, "jobs").create(columns)
    with table.database.begin() as connection:
        table.send(connection, json=VALUE, **{"content-type": "application/vnd.order+json"})
    async with broker.client() as client:
        await Relay(table.database, "jobs", client, topic).run_once()
        await Relay(table.database, "jobs", client, f"{topic}-none", headers=[]).run_once()
        (message,) = await in_topic(client, topic)
        assert message.headers == {"content-type": "application/vnd.order+json"}
    table.database.close()


def test_queues_and_keys(database_url: str) -> None:
    queue = Queue(database_url, "mails").create()
    space = KeySpace(queue.database, "space").create()
    with queue.database.begin() as connection:
        queue.put(connection, json=VALUE)
        queue.put(connection, json=None)
        queue.put(connection, "text")
        space.send(connection, b"k", json=VALUE)
    assert [one.body for one in queue.claim()] == [TEXT.encode(), b"null", b"text"]
    with queue.database.begin() as connection:
        for wrong, problem in (
            (lambda: queue.put(connection, "x", json=1), "Both body and json"),
            (lambda: queue.put(connection), "There is no body"),
            (lambda: queue.put(connection, json=object()), "cannot be JSON"),
            (lambda: space.send(connection, b"k", b"x", json=1), "Both value and json"),
            (lambda: space.send(connection, b"k"), "There is no body"),
            (lambda: space.send(connection, b"k", json={1j}), "cannot be JSON"),
        ):
            with pytest.raises(BadArgument, match=problem):
                wrong()
    queue.database.close()


def test_what_a_table_refuses(table: MessageTable) -> None:
    body = "message" if "message" in table.table.c else "body"
    with table.database.begin() as connection:
        with pytest.raises(BadArgument, match=f"Both {body} and json were given"):
            table.send(connection, json=1, **{body: b"x" if body == "body" else "x"})
        with pytest.raises(BadArgument, match="cannot be JSON"):
            table.send(connection, json=object())
    assert table.stats().due == 0


def test_a_column_of_the_users(tmp_path: Any) -> None:
    """A table may have had a column of this name before."""
    table = MessageTable(f"sqlite:///{tmp_path}/a.db", "jobs").create([sa.Column("json", sa.Text)])
    with table.database.begin() as connection:
        table.send(connection, json="as it is")
        assert connection.execute(sa.select(table.table.c.json)).scalar_one() == "as it is"
    without = MessageTable(table.database, "others").create([sa.Column("tenant", sa.Integer)])
    with without.database.begin() as connection, pytest.raises(BadArgument, match="no column for json"):
        without.send(connection, json=1)
    table.database.close()
