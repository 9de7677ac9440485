"""Connections whose driver commits each statement: a mark, an ack or a message would stay without its effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import tickwheel
from tests.support.outbox.messages import PATIENCE_S, engine_of, message_table, rolled_back, rows, send
from tickwheel.outbox import Inbox, MessageTable, NotInTransaction, Queue, open_database

HOWS = ("engine", "driver")


@contextmanager
def engine_without_transactions(url: str, how: str) -> Iterator[sa.Engine]:
    """``engine``: as SQLAlchemy has it; ``driver``: SQLAlchemy is not told."""
    options: dict[str, Any] = {"connect_args": {"autocommit": True}}
    if how == "engine":
        options = {"isolation_level": "AUTOCOMMIT"}
    elif url.startswith("sqlite"):
        options = {}
    with engine_of(url, **options) as engine:
        if not options:
            sa.event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
        yield engine


@pytest.mark.parametrize("how", HOWS)
def test_messages_are_neither_sent_nor_acked(database_url: str, how: str) -> None:
    with message_table(database_url) as table:
        send(table, "a")
        batch = table.claim()
        with engine_without_transactions(database_url, how) as engine, engine.begin() as connection:
            with pytest.raises(NotInTransaction):
                table.send(connection, message="b")
            with pytest.raises(NotInTransaction):
                batch.ack_in(connection)
            with pytest.raises(NotInTransaction):
                batch[0].ack_in(connection)
        assert rows(table, "message", "time_acked") == [("a", None)]


@pytest.mark.parametrize("how", HOWS)
def test_queues_refuse_them(database_url: str, how: str) -> None:
    with Queue(database_url, "jobs").create() as queue:
        with (
            engine_without_transactions(database_url, how) as engine,
            engine.begin() as connection,
            pytest.raises(NotInTransaction),
        ):
            queue.put(connection, "a")
        assert queue.stats().ready == 0


@pytest.mark.parametrize("how", HOWS)
async def test_no_mark_stays_of_what_was_not_done(database_url: str, how: str, tmp_path: Path) -> None:
    with (
        open_database(database_url) as database,
        engine_without_transactions(database_url, how) as engine,
        tickwheel.embedded(tmp_path / "broker") as broker,
    ):
        Inbox(database).create()
        async with broker.client() as client, client.subscribe("payments") as payments:
            await client.send("payments", b"pay")
            message = await payments.receive(PATIENCE_S)
            assert message is not None
            with engine.connect() as connection:
                with pytest.raises(NotInTransaction):
                    async with Inbox().process(message, connection):
                        raise AssertionError("its effect could not be undone")
                with connection.begin(), pytest.raises(NotInTransaction):
                    await Inbox().mark(message, connection)
            with database.engine.connect() as connection:
                async with Inbox().process(message, connection) as first:
                    assert first


@pytest.mark.parametrize("how", HOWS)
def test_transactions_of_our_own_are_some(database_url: str, how: str) -> None:
    with engine_without_transactions(database_url, how) as engine:
        table = MessageTable(engine, "reminders").create()
        with pytest.raises(ZeroDivisionError):
            rolled_back(table.database, lambda connection: table.send(connection, message="x"))
        assert rows(table, "id") == []


def test_the_recipe_for_sqlite_is_none_of_them(tmp_path: Path) -> None:
    """An event of the user's that begins the transaction."""
    url = f"sqlite:///{tmp_path / 'a.sqlite'}"
    with message_table(url) as table, engine_of(url) as engine:
        sa.event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        with engine.begin() as connection:
            table.send(connection, message="before anything was executed")
            table.send(connection, message="afterwards")
        assert len(rows(table, "id")) == 2
