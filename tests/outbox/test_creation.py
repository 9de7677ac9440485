"""Tables that several processes make at once, as they do when they start together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import sqlalchemy as sa

from tickwheel import outbox
from tickwheel.outbox.inbox import Inbox
from tickwheel.outbox.relay.ledger import TABLE_NAME, Ledger

Make = Callable[[outbox.Database, str], object]

THREADS = 8
NAMES = 4
"""One would meet by chance only: most of a creation is waiting for the first connection."""

_numbers = count()


def _ledger(database: outbox.Database, name: str) -> None:
    Ledger(database, sa.Table(name, sa.MetaData())).create()


MAKES: dict[str, Make] = {
    "queue": lambda database, name: outbox.Queue(database, name).create(),
    "messages": lambda database, name: outbox.MessageTable(database, name).create(),
    "keys": lambda database, name: outbox.KeySpace(database, name).create(),
    "inbox": lambda database, name: Inbox(database, name).create(),
    "ledger": _ledger,
}


@pytest.mark.parametrize("kind", MAKES)
def test_many_make_the_same_tables_at_once(database: outbox.Database, kind: str) -> None:
    """All of them return, and find what a single one would have made, indexes included."""
    make = MAKES[kind]
    together = threading.Barrier(THREADS, timeout=60)

    def made(name: str) -> None:
        together.wait()
        make(database, name)

    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(NAMES):
            name = f"{kind}_{next(_numbers)}"
            if kind == "ledger":  # which has one table for all
                with database.begin() as connection:
                    connection.execute(sa.text(f"drop table if exists {TABLE_NAME}"))
            for one in [threads.submit(made, name) for _ in range(THREADS)]:
                one.result()
    alone = f"{kind}_{next(_numbers)}"
    make(database, alone)
    assert _form(database, name) == _form(database, alone)
    if kind == "ledger":
        with database.reading() as connection:
            assert connection.scalar(sa.text(f"select count(*) from {TABLE_NAME}")) == 2


def _form(database: outbox.Database, name: str) -> list[tuple[str, list[str]]]:
    """The tables whose names begin so, without that, and their indexes."""
    with database.reading() as connection:
        inspector = sa.inspect(connection)
        return sorted(
            (
                table.removeprefix(name),
                sorted(str(one["name"]).removeprefix(name) for one in inspector.get_indexes(table)),
            )
            for table in inspector.get_table_names()
            if table == name or table.startswith(f"{name}_")
        )


@pytest.mark.only_on("postgresql")  # The others have no triggers.
@pytest.mark.parametrize("kind", ["queue", "messages", "keys"])
def test_triggers_are_made_where_they_are_missing_only(database: outbox.Database, kind: str) -> None:
    """Making triggers again would wait for all transactions that use the table."""
    name = f"{kind}_{next(_numbers)}"
    MAKES[kind](database, name)
    made = _triggers(database, name)
    MAKES[kind](database, name)
    assert _triggers(database, name) == made
    with database.begin() as connection:
        table = made[0][0]
        connection.exec_driver_sql(f"alter table {table} disable trigger tickwheel_insert")
    MAKES[kind](database, name)
    again = _triggers(database, name)
    assert [one[:2] for one in again] == [one[:2] for one in made]
    assert [one for one in again if one[0] != table] == [one for one in made if one[0] != table]
    assert {one[2] for one in again if one[0] == table}.isdisjoint(one[2] for one in made)


def _triggers(database: outbox.Database, name: str) -> list[tuple[str, str, int]]:
    """Table, name and number of each trigger of tables whose names begin so."""
    asked = sa.text(
        "select tgrelid::regclass::text, tgname, oid from pg_trigger"
        " where starts_with(tgrelid::regclass::text, :name) and tgname like 'tickwheel%' order by 1, 2"
    )
    with database.reading() as connection:
        return [(row[0], row[1], row[2]) for row in connection.execute(asked, {"name": name})]
