"""Messages of one time keep the order in which they were written, also where their ids are random."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from tests.support.outbox.relaying import LATER_NS, in_topic
from tickwheel._embedded import EmbeddedBroker
from tickwheel.outbox import Database, MessageTable, Relay, open_database
from tickwheel.outbox.sequence import SEQUENCE

WHEN = datetime(2031, 5, 1, 9, tzinfo=UTC)
ROWS = 60
_names = count()

IDS: dict[str, Any] = {
    "uuid": (sa.Uuid(), uuid4),
    "text": (sa.String(40), lambda: str(uuid4())),
    "bytes": (sa.LargeBinary(16).with_variant(sa.BINARY(16), "mysql", "mariadb"), lambda: uuid4().bytes),
}


def table_of(database: Database, ids: str) -> MessageTable:
    table = MessageTable(database, f"random_{next(_names)}")
    table.create(
        [
            sa.Column("id", IDS[ids][0], primary_key=True),
            sa.Column("message", sa.Text),
            sa.Column("customer", sa.String(40)),
        ]
    )
    return table


async def relayed(broker: EmbeddedBroker, database: Database, table: str | sa.Table, topic: str) -> list[Any]:
    async with broker.client() as client:
        relay = Relay(
            database, table, client, topic, body="message", order_key="customer", headers=[], batch=7
        )
        await relay.run_once()
        return await in_topic(client, topic)


@pytest.mark.parametrize("ids", IDS)
async def test_rows_of_one_time_go_in_the_order_of_writing(
    broker: EmbeddedBroker, database: Database, topic: str, ids: str
) -> None:
    table, new_id = table_of(database, ids), IDS[ids][1]
    customers = ["ada", "bob", None]
    with database.begin() as connection:
        for number in range(ROWS):
            table.send(
                connection,
                deliver_at=WHEN,
                id=new_id(),
                message=str(number),
                customer=customers[number % len(customers)],
            )
        # In one statement or several: these have other columns than their neighbours.
        rows = [
            {"id": new_id(), "message": str(ROWS + number), **({"customer": "ada"} if number % 5 else {})}
            for number in range(ROWS)
        ]
        table.send_many(connection, rows, deliver_at=WHEN)
    found = await relayed(broker, database, table.name, topic)
    assert [one.body for one in found] == [str(number).encode() for number in range(2 * ROWS)]
    assert {one.deliver_at for one in found} == {WHEN}
    mine = [int(one.body) for one in found if one.order_key == "ada"]
    assert mine == sorted(mine)


async def test_a_row_that_gets_the_time_of_others_has_its_place_among_them(
    broker: EmbeddedBroker, database: Database, topic: str
) -> None:
    table = table_of(database, "uuid")
    ids = [uuid4() for _ in range(ROWS)]
    with database.begin() as connection:
        for number, row_id in enumerate(ids):
            late = timedelta(days=number % 3)
            table.send(connection, deliver_at=WHEN + late, id=row_id, message=str(number))
    with database.begin() as connection:
        for row_id in ids:
            table.reschedule(connection, [row_id], deliver_at=WHEN)
    found = await relayed(broker, database, table.name, topic)
    assert [int(one.body) for one in found] == list(range(ROWS))


async def test_what_is_streamed_comes_in_that_order(database: Database) -> None:
    table = table_of(database, "uuid")
    past = datetime(2021, 5, 1, 9, tzinfo=UTC)
    with database.begin() as connection:
        table.send_many(
            connection, [{"id": uuid4(), "message": str(number)} for number in range(ROWS)], deliver_at=past
        )
    assert SEQUENCE not in table.columns
    seen: list[str] = []
    async with table.stream() as stream:
        async for message in stream:
            seen.append(message["message"])
            await message.ack()
            if len(seen) == ROWS:
                break
    assert seen == [str(number) for number in range(ROWS)]


@pytest.mark.parametrize("rowid", [True, False])
async def test_tables_of_the_users_own_on_sqlite(
    broker: EmbeddedBroker, tmp_path: Any, topic: str, rowid: bool
) -> None:
    """SQLite numbers rows by itself, unless a table says that it shall not; what is written there has milliseconds."""
    database = open_database(f"sqlite:///{tmp_path}/a.db")
    table = sa.Table(
        "own",
        sa.MetaData(),
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("priority", sa.SmallInteger, server_default="50"),
        sa.Column("epoch", sa.BigInteger, server_default="0"),
        sa.Column("time_next", sa.BigInteger),
        sa.Column("time_acked", sa.BigInteger),
        sa.Column("message", sa.Text),
        sa.Column("customer", sa.Text),
        sqlite_with_rowid=rowid,
    )
    ids = [UUID(int=ROWS - number) for number in range(ROWS)]
    with database.begin() as connection:
        table.create(connection)
        for number, row_id in enumerate(ids):
            connection.execute(table.insert().values(id=row_id, time_next=LATER_NS, message=str(number)))
    found = [int(one.body) for one in await relayed(broker, database, table, topic)]
    database.close()
    assert found == sorted(found, reverse=not rowid)
