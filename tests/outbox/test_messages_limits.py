"""Servers that refuse for a while: a statement took too long, or the server is read only. Consumers wait."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.support.outbox.databases import DatabaseServer
from tests.support.outbox.messages import engine_of, eventually, get, message_table, send
from tickwheel.outbox import Database, DatabaseBusy, DatabaseUnavailable, MessageTable, open_database

LIMITED = {
    "postgresql": {"options": "-c statement_timeout=300"},
    "mariadb": {"init_command": "set max_statement_time=0.3"},
}
LOCK = {"postgresql": "lock table reminders", "mariadb": "lock tables reminders write"}


async def test_a_statement_that_takes_too_long_ends_no_consumer(database_server: DatabaseServer) -> None:
    with database_server.database() as url, message_table(url, batch_size=1) as table:
        kind = table.database.kind
        with engine_of(url, connect_args=LIMITED[kind]) as engine:
            limited = MessageTable(engine, "reminders")
            async with limited.hub() as hub, hub.subscribe() as stream:
                send(table, "a")
                await (await get(stream)).ack()
                with table.database.engine.connect() as connection:
                    connection.execute(sa.text(LOCK[kind]))
                    failures = hub.stats.failures
                    hub.ring(None)
                    await eventually(lambda: hub.stats.failures > failures)
                    if kind == "mariadb":
                        connection.execute(sa.text("unlock tables"))
                send(table, "b")
                assert (await get(stream))["message"] == "b"


def execute_all(database: Database, *texts: str) -> None:
    with database.begin() as connection:
        for text in texts:
            connection.execute(sa.text(text))


def test_what_a_server_refuses_for_a_while_is_typed(database_server: DatabaseServer) -> None:
    slow = {
        "postgresql": "select pg_sleep(9)",
        "mariadb": f"select count(*) from {', '.join(f'information_schema.collations c{i}' for i in range(5))}",
    }
    with database_server.database() as url, open_database(url) as database:
        with engine_of(url, connect_args=LIMITED[database.kind]) as engine, pytest.raises(DatabaseBusy):
            execute_all(open_database(engine), slow[database.kind])
        if database.kind == "postgresql":
            with pytest.raises(DatabaseUnavailable, match="read-only"):
                execute_all(database, "set transaction read only", "create table t (a int)")
