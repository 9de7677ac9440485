"""A hub that waits asks for nothing, and a commit wakes it though its poller sleeps for an hour."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from pymysql.constants import COMMAND

from tests.support.outbox.messages import (
    PATIENCE_S,
    engine_of,
    eventually,
    get,
    message_table,
    same_table,
    send,
)
from tickwheel.outbox import MessageTable
from tickwheel.outbox.messages import hub as hubs
from tickwheel.outbox.statistics_watch import Echoes
from tickwheel.outbox.watch import PollWatch, Ring

FUTURE_ROWS = 100_000
IDLE_S = 3
INDEXES = (
    pytest.param("(time_acked, priority, time_next)", marks=pytest.mark.only_on("sqlite", "mariadb")),
    pytest.param(
        "(priority, time_next, id) where time_acked is null", marks=pytest.mark.only_on("postgresql")
    ),
)
"""The indexes that the how-to recommends for tables that are made by SQL."""


def fill(table: MessageTable) -> None:
    """Many messages of next year, by the database itself."""
    at = table.database.now_ns() + 365 * 86_400 * 1_000_000_000
    numbers = {
        "sqlite": "with recursive n(i) as (select 1 union all select i + 1 from n where i < :n) select i from n",
        "postgresql": "select i from generate_series(1, :n) as n(i)",
        "mariadb": "select seq as i from seq_1_to_100000 where seq <= :n",
    }[table.database.kind]
    with table.database.begin() as connection:
        connection.execute(
            sa.text(
                f"insert into reminders (message, time_next) select 'later', :at + i from ({numbers}) as numbers"
            ),
            {"at": at, "n": FUTURE_ROWS},
        )


@contextmanager
def counting(table: MessageTable, url: str) -> Iterator[Callable[[], int]]:
    """A count of the statements that the hub executes; the server's own where asking for it is not one."""
    executed: list[str] = []
    sa.event.listen(table.database.engine, "before_cursor_execute", lambda *given: executed.append(given[2]))
    if table.database.kind != "mariadb":
        yield lambda: len(executed)
        return
    with engine_of(url) as engine, engine.connect() as connection:
        driver = connection.connection.driver_connection

        def count() -> int:
            driver._execute_command(COMMAND.COM_STATISTICS, b"")  # type: ignore[union-attr]
            said = driver._read_packet().get_all_data()  # type: ignore[union-attr]
            return int(re.findall(rb"Questions: (\d+)", said)[0])

        yield count


@pytest.mark.promise("V97")
async def test_idle_with_many_future_messages(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "_CHECK_INTERVAL_S", 3_600.0)  # its statements are not counted
    with message_table(database_url) as table, same_table(database_url) as user:
        fill(table)
        async with table.hub() as hub, hub.subscribe() as stream:
            with counting(table, database_url) as count:
                before = -1
                with anyio.fail_after(PATIENCE_S):
                    while before != (before := hub.stats.looks):  # the echoes of the start
                        await anyio.sleep(1.6)
                start, looks = count(), hub.stats.looks
                assert await stream.receive(IDLE_S) is None
                assert count() - start < IDLE_S
                assert hub.stats.looks - looks < IDLE_S
            for text in ("one", "two", "three"):
                send(user, text)
                assert (await get(stream))["message"] == text
            with user.database.begin() as connection:
                user.send(connection, message="soon", delay=timedelta(milliseconds=200))
            assert (await get(stream))["message"] == "soon"


@pytest.mark.promise("V27", "V93")
@pytest.mark.parametrize("index", ["ours", *INDEXES])
def test_looks_read_only_the_index(database_url: str, index: str) -> None:
    """However many messages wait for their time, or are acked."""
    with message_table(database_url) as table:
        if index != "ours":
            for one in list(table.table.indexes):
                one.drop(table.database.engine)
            with table.database.engine.begin() as connection:
                connection.execute(sa.text(f"create index poller_idx on reminders {index}"))
        fill(table)
        send(table, "due")
        analyze = "analyze table reminders" if table.database.kind == "mariadb" else "analyze reminders"
        with table.database.engine.begin() as connection:
            connection.exec_driver_sql(analyze)
        statements: list[tuple[str, Any]] = []
        sa.event.listen(
            table.database.engine, "before_cursor_execute", lambda *given: statements.append(given[2:4])
        )
        with table.database.begin() as connection:
            assert len(table.statements.look(connection, table.database.now_ns(), 10).due) == 1
        explain = "explain query plan " if table.database.kind == "sqlite" else "explain "
        asked = [one for one in statements if "reminders" in one[0]]
        assert len(asked) == 2
        for statement, parameters in asked:
            with table.database.begin() as connection:
                plan = str(connection.exec_driver_sql(explain + statement, parameters).all())
            assert ("reminders_poller" if index == "ours" else "poller_idx") in plan
            assert "Seq Scan" not in plan
            assert "SCAN reminders" not in plan
            assert "'ref'" not in plan  # on MariaDB: all open messages


@pytest.mark.promise("V16")
async def test_each_single_commit_wakes(database_url: str) -> None:
    """Commits of all kinds of distances from each other: none may be missed, as the poller would not make up for it."""
    with message_table(database_url) as table, same_table(database_url) as user:
        async with table.hub() as hub, hub.subscribe() as stream:
            await eventually(lambda: hub.stats.looks > 0)
            for number in range(40):
                await anyio.sleep(number % 20 / 1000)
                send(user, str(number))
                message = await get(stream)
                assert message["message"] == str(number)
                if number % 3:
                    await message.ack()


@pytest.mark.promise("V34")
async def test_polling_is_the_fallback(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing tells of commits, the table is looked at every ``vt_poller_interval``."""

    class DeafWatch:
        look = PollWatch.look
        aside = PollWatch.aside

        async def run(self, _ring: Ring) -> None:
            await anyio.sleep_forever()

    monkeypatch.setattr("tickwheel.outbox.messages.hub.watch_table", lambda *_: DeafWatch())
    with message_table(database_url, poller_interval_ms=100) as table:
        async with table.hub() as hub, hub.subscribe() as stream:
            await eventually(lambda: hub.stats.looks > 0)
            for text in ("one", "two"):
                send(table, text)
                assert (await get(stream))["message"] == text


@pytest.mark.only_on("mariadb")  # Made by means of MariaDB.
async def test_a_commit_that_takes_long_wakes_when_it_counts(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that can be seen of it happens before others can read it."""
    with message_table(database_url) as table, engine_of(database_url) as engine:
        with table.database.engine.begin() as connection:
            connection.execute(sa.text("create table slow (id integer)"))
        async with table.hub() as hub, hub.subscribe() as stream:
            await eventually(lambda: hub.stats.looks > 0)

            def work() -> None:
                # One question to the server, at whose beginning it counts, and at whose end the message is there.
                with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    connection.execute(
                        sa.text("insert into reminders (message) select concat('slow', sleep(0.5))")
                    )

            await anyio.to_thread.run_sync(work)
            assert (await get(stream))["message"] == "slow0"


def test_echoes_come_soon_and_then_seldom() -> None:
    echoes = Echoes()
    assert not echoes.is_due(1e9)
    echoes.start(100.0)
    heard = [moment for tick in range(10_000) if echoes.is_due(moment := 100 + tick / 1000)]
    assert heard[0] == pytest.approx(100.02, abs=0.002)
    assert 5 <= len(heard) <= 10
    assert 102 < heard[-1] < 104
