"""Values that somebody wrote with SQL, and columns that are too narrow: one row never stops the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

import tickwheel
from tests.support.outbox.messages import eventually, execute, fast, get, get_many, rows
from tickwheel.outbox import BadTable, Database, MessageTable, Relay
from tickwheel.outbox.messages import candidates as pure
from tickwheel.outbox.messages.backoff import next_epoch
from tickwheel.protocol.errors import BadArgument

LAST = (1 << 63) - 1
NUMBERS = count()
COLUMNS = {
    "id": "bigint not null primary key",
    "priority": "smallint not null default 50",
    "epoch": "bigint not null default 0",
    "time_next": "bigint default 0",
    "time_acked": "bigint",
}


@contextmanager
def made(database: Database, **settings: object) -> Iterator[MessageTable]:
    """A message table of our own in the shared database."""
    table = MessageTable(database, f"poison{next(NUMBERS)}").create(settings=fast(**settings))
    yield table
    table.drop()


@contextmanager
def plain(database: Database, **columns: str) -> Iterator[MessageTable]:
    """A table that SQL made, not adopted."""
    name = f"poison{next(NUMBERS)}"
    parts = ", ".join(f"{column} {kind}" for column, kind in (COLUMNS | columns).items())
    with database.begin() as connection:
        connection.execute(sa.text(f"create table {name} ({parts})"))
    yield MessageTable(database, name)
    with database.begin() as connection:
        connection.execute(sa.text(f"drop table {name}"))


def insert(table: MessageTable, *ids: int) -> None:
    values = ", ".join(f"({one})" for one in ids)
    execute(table, f"insert into {table.name} (id) values {values}")


def claimed(table: MessageTable, limit: int = 100) -> list[object]:
    return [one.id for one in table.claim(limit)]


NARROW = {
    "postgresql": {
        "epoch": ["smallint"],
        "id": ["smallint"],
        "time_next": ["smallint", "integer"],
        "time_acked": ["integer"],
    },
    "mariadb": {
        "epoch": ["tinyint", "smallint", "mediumint", "tinyint unsigned"],
        "id": ["tinyint", "mediumint unsigned"],
        "time_next": ["int", "int unsigned"],
        "time_acked": ["int"],
    },
}


@pytest.mark.only_on("postgresql", "mariadb")  # SQLite has no narrow columns.
def test_narrow_columns_are_not_adopted_and_the_statement_that_is_named_widens_them(
    database: Database,
) -> None:
    for column, kinds in NARROW[database.kind].items():
        for kind in kinds:
            rest = COLUMNS[column].partition(" ")[2]
            with plain(database, **{column: f"{kind} {rest}"}) as table:
                with pytest.raises(BadTable, match=rf"{column} is .*, which ends at") as caught:
                    table.adopt(fast())
                with pytest.raises(BadTable, match="no message table"):
                    table.reload()
                alter = caught.value.advice.partition(": ")[2]
                execute(table, alter)
                assert table.adopt(fast()).columns == ("id",)
                insert(table, 1)
                assert claimed(table) == [1]


def test_wide_enough_columns_are_adopted(database: Database) -> None:
    kinds = {
        "sqlite": ["tinyint", "smallint", "unsigned big int"],
        "postgresql": ["integer"],
        "mariadb": ["int", "int unsigned", "bigint unsigned"],
    }
    for kind in kinds[database.kind]:
        with plain(
            database, epoch=f"{kind} not null default 0", priority=f"{kind} not null default 50"
        ) as table:
            table.adopt(fast())
            insert(table, 1)
            execute(table, f"update {table.name} set epoch = 2147483646")
            for epoch in (2147483647, 2147483647 if kind in ("int", "integer") else 2147483648):
                assert [one.epoch for one in table.claim()] == [epoch]
                execute(table, f"update {table.name} set time_next = 0")


def test_a_narrow_epoch_of_a_table_from_before_counts_to_its_end(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    narrow = {"sqlite": "bigint", "postgresql": "smallint", "mariadb": "tinyint"}[database.kind]
    last = {"sqlite": LAST, "postgresql": 32767, "mariadb": 127}[database.kind]
    with plain(database) as table:
        table.adopt(fast())
        insert(table, 1, 2)
        if database.kind == "postgresql":
            execute(table, f"alter table {table.name} alter column epoch type {narrow}")
        if database.kind == "mariadb":
            execute(table, f"alter table {table.name} modify epoch {narrow} not null default 0")
        table.reload()
        assert ("would not be adopted: epoch" in caplog.text) is (database.kind != "sqlite")
        execute(table, f"update {table.name} set epoch = {last - 1} where id = 1")
        for _ in range(3):
            batch = table.claim()
            assert {one.id: one.epoch for one in batch}[1] == last
            execute(table, f"update {table.name} set time_next = 0")
        batch = table.claim()
        assert len(batch) == 2
        batch.ack()
        assert table.stats().acked == 2


@pytest.mark.parametrize("start", [LAST, LAST - 1, -1, -LAST - 1])
async def test_epochs_at_the_ends_of_their_column(database: Database, start: int) -> None:
    with made(database, ack_wait_ms=60_000, max_backoff_ms=0) as table:
        execute(table, f"insert into {table.name} (message, epoch) values ('bad', {start}), ('good', 0)")
        async with table.stream() as stream:
            received = await get_many(stream, 2)
            found = {one["message"]: one for one in received}
            assert found["bad"].epoch == (LAST if start > 0 else 1)
            await found["good"].ack()
            await found["bad"].nack()
            again = await get(stream)
            assert again["message"] == "bad"
            await again.ack()
        assert table.stats().acked == 2


def test_counting_stops_at_the_end() -> None:
    assert [next_epoch(one, 127) for one in (-5, 0, 1, 126, 127, 300)] == [1, 1, 2, 127, 127, 300]


REFUSING = {
    "sqlite": [
        "create trigger stop_{name} before update on {name} when old.message = 'bad'"
        " begin select raise(abort, 'not this one'); end"
    ],
    "postgresql": [
        "create or replace function stop() returns trigger language plpgsql as"
        " $$begin raise exception 'not this one'; end$$",
        "create trigger stop before update on {name} for each row when (old.message = 'bad')"
        " execute function stop()",
    ],
    "mariadb": [
        "create trigger stop_{name} before update on {name} for each row"
        " if old.message = 'bad' then signal sqlstate '45000' set message_text = 'not this one'; end if"
    ],
}


async def test_a_row_that_the_database_refuses_is_set_aside(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(database, batch_size=3) as table:
        for one in REFUSING[database.kind]:
            execute(table, one.format(name=table.name))
        texts = ["good", "bad", "good", "good", "bad"]
        with database.begin() as connection:
            assert table.send_many(connection, [{"message": text} for text in texts]) == 5
        async with table.hub() as hub, hub.subscribe() as stream:
            for one in await get_many(stream, 3):
                assert one["message"] == "good"
                await one.ack()
            assert hub.stats.failures == 0
            # What comes while those are due is not held up, and the table is not asked without end.
            looks = hub.stats.looks
            assert await stream.receive(0.3) is None
            assert hub.stats.looks - looks < 10
            later = table.database.now_ns() + 100_000_000
            execute(table, f"insert into {table.name} (message, time_next) values ('later', {later})")
            assert (await get(stream))["message"] == "later"
        told = [one.message for one in caplog.records if "cannot be claimed" in one.message]
        assert len(told) == 2
        assert all("not this one" in one and "cancel it" in one for one in told)
        assert claimed(table) == []
        monkeypatch.setattr(pure, "_FIRST_ASIDE_S", 0.0)
        another = MessageTable(database, table.name)
        for _ in range(2):
            assert claimed(another, 1) in ([], [4])
        kind = "" if database.kind != "postgresql" else f" on {table.name}"
        execute(table, f"drop trigger {'stop' if kind else 'stop_' + table.name}{kind}")
        assert [one["message"] for one in MessageTable(database, table.name).claim()][:2] == ["bad", "bad"]


def test_what_is_set_aside_is_tried_more_and_more_seldom() -> None:
    aside = pure.SetAside()
    bad, good = pure.Candidate(1, 50, 0, 0), pure.Candidate(2, 50, 0, 0)
    at_s, pauses = 0.0, []
    for _ in range(9):
        aside.add(1, at_s)
        start_s = at_s
        assert aside.rest([bad, good], at_s) == [good]
        while aside.rest([bad], at_s) == []:
            at_s += 30
        pauses.append(at_s - start_s)
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]
    assert [aside.is_news(one) for one in (1, 1, 2)] == [True, False, True]
    aside.remove([1])
    assert len(aside) == 0


WRONG = [
    ("time_next", "'soon'"),
    ("time_next", "9e999"),
    ("time_next", "-9e999"),
    ("time_next", "5.5"),
    ("time_next", "x'00'"),
    ("priority", "'high'"),
    ("priority", "50.5"),
    ("epoch", "'many'"),
    ("epoch", "1e30"),
]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("column", "value"), WRONG)
async def test_texts_and_fractions_in_columns_of_sqlite(
    database: Database, column: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    with made(database, poller_interval_ms=50) as table:
        execute(table, f"insert into {table.name} (message, {column}) values ('bad', {value}), ('good', 0)")
        async with table.stream() as stream:
            wanted = 1 if value == "9e999" else 2  # at the end of all times, that is
            received = await get_many(stream, wanted)
            assert "good" in {one["message"] for one in received}
            for one in received:
                await one.ack()
            assert await stream.receive(0.05) is None
        assert "or a wrong one" in caplog.text
        (kinds,) = rows(table, column)[:1]
        assert all(isinstance(one, int | None) for one in kinds)
        assert table.stats().acked == wanted


@pytest.mark.parametrize("value", [-LAST - 1, -1, LAST])
async def test_times_at_the_ends_of_their_column(database: Database, value: int) -> None:
    with made(database) as table:
        execute(table, f"insert into {table.name} (message, time_next) values ('odd', {value}), ('plain', 0)")
        stats = table.stats()
        assert (stats.next_due_ns == LAST) if value == LAST else (stats.oldest_due_ns == value)
        async with table.stream() as stream:
            received = await get_many(stream, 1 if value == LAST else 2)
            assert "plain" in {one["message"] for one in received}


async def test_nulls_and_priorities_at_the_ends_of_a_column(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    free = {
        "id": "integer" if database.kind == "sqlite" else "bigint",
        "priority": "bigint",
        "epoch": "bigint",
    }
    with plain(database, **free) as table:
        execute(table, f"create unique index {table.name}_id on {table.name} (id)")
        table.adopt(fast(poller_interval_ms=50))
        execute(
            table,
            f"insert into {table.name} (id, priority, epoch, time_next) values (1, null, 0, 0), (2, 50, null, 0),"
            f" (3, 50, 0, null), (null, 50, 0, 0), (4, {LAST}, 0, 0), (5, {-LAST - 1}, 0, 0)",
        )
        async with table.stream() as stream:
            received = await get_many(stream, 5)
            assert {one.id: one.priority for one in received} == {1: 50, 2: 50, 3: 50, 4: LAST, 5: -LAST - 1}
            for one in received:
                await one.ack()
        assert "1 messages have no id" in caplog.text
        assert table.stats().waiting == 1


@pytest.mark.only_on("sqlite", "postgresql")  # MariaDB's floats are numbers.
def test_no_number_in_a_float_is_delivered(database: Database) -> None:
    value = {"sqlite": "9e999", "postgresql": "'NaN'"}[database.kind]
    name = f"poison{next(NUMBERS)}"
    table = MessageTable(database, name).create([sa.Column("price", sa.Double)], fast())
    execute(table, f"insert into {name} (price) values ({value}), (1.5)")
    assert sorted(str(one["price"]) for one in table.claim()) in (["1.5", "inf"], ["1.5", "nan"])


def test_numbers_that_a_column_cannot_hold_are_refused(database: Database) -> None:
    with made(database) as table, database.begin() as connection:
        id_ = table.send(connection, message="a")
        last = LAST if database.kind == "sqlite" else 32_767
        for priority in (last + 1, -last - 2, 1 << 70, 1.5, "5", True):
            with pytest.raises(BadArgument, match="priority"):
                table.send(connection, message="b", priority=priority)  # type: ignore[arg-type]
            with pytest.raises(BadArgument, match="priority"):
                table.send_many(connection, [{"message": "b", "priority": priority}])
            with pytest.raises(BadArgument, match="priority"):
                table.reschedule(connection, [id_], priority=priority)  # type: ignore[arg-type]
        for epoch in (LAST + 1, -1, 0.5):
            with pytest.raises(BadArgument, match="epoch"):
                table.reschedule(connection, [id_], epoch=epoch)  # type: ignore[arg-type]
        assert table.reschedule(connection, [id_], epoch=LAST, priority=last) == 1


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_relay_passes_over_times_that_are_none(database: Database, tmp_path: Path) -> None:
    with made(database) as table:
        execute(
            table,
            f"insert into {table.name} (message, time_next) values ('a', 'soon'), ('b', 9e999), ('c', -9e999),"
            f" ('d', {LAST}), ('e', {-LAST - 1}), ('f', 0)",
        )
        async with tickwheel.embedded(tmp_path) as broker, broker.client() as client:
            relay = Relay(database, table.name, client, "shop")
            assert await relay.run_once() == 3
        assert table.stats().acked == 3


async def test_a_row_that_cannot_be_deleted_keeps_no_other(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with made(database, purge_after_ms=0, poller_interval_ms=50) as table:
        triggers = [one.replace("before update", "before delete") for one in REFUSING[database.kind]]
        for one in triggers:
            execute(table, one.format(name=table.name))
        texts = ["bad", *["good"] * 20, "bad", *["good"] * 5]
        with database.begin() as connection:
            table.send_many(connection, [{"message": text} for text in texts])
            assert table.ack(connection, range(1, 28)) == 27
        assert table.purge() == 25
        assert (table.purge(), table.stats().acked) == (0, 2)
        told = [one.message for one in caplog.records if "cannot be deleted: " in one.message]
        assert len(told) == 2
        assert all("not this one" in one for one in told)
        with database.begin() as connection:
            table.send_many(connection, [{"message": "later"}] * 3)
        async with table.hub() as hub, hub.subscribe() as stream:
            for one in await get_many(stream, 3):
                await one.ack()
            await eventually(lambda: hub.stats.purged == 3)
            assert hub.stats.failures == 0
        name = table.name
        execute(table, f"drop trigger stop on {name}" if len(triggers) == 2 else f"drop trigger stop_{name}")
        assert MessageTable(database, name).purge() == 2
