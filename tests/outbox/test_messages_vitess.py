"""The statements of Vitess's document, as they stand there."""

from __future__ import annotations

import json
from functools import partial

import pytest
import sqlalchemy as sa

from tests.support.outbox.messages import (
    engine_of,
    eventually,
    execute,
    get,
    message_table,
    rows,
    same_table,
    send,
)
from tickwheel.outbox import BadTable, LeaseLost, MessageSettings, MessageTable

COMMENT = (
    "vitess_message,vt_min_backoff=30,vt_max_backoff=3600,vt_ack_wait=30,vt_purge_after=86400,"
    "vt_batch_size=10,vt_cache_size=10000,vt_poller_interval=30"
)
SETTINGS = MessageSettings(
    ack_wait_ms=30_000,
    min_backoff_ms=30_000,
    max_backoff_ms=3_600_000,
    purge_after_ms=86_400_000,
    batch_size=10,
    cache_size=10_000,
    poller_interval_ms=30_000,
)
DOCUMENT = f"""
create table my_message(
  # required columns
  id bigint NOT NULL COMMENT 'often an event id, can also be auto-increment or a sequence',
  priority tinyint NOT NULL DEFAULT '50' COMMENT 'lower number priorities process first',
  epoch bigint NOT NULL DEFAULT '0' COMMENT 'Vitess increments this each time it sends the message, and is used for incremental backoff doubling',
  time_next bigint DEFAULT 0 COMMENT 'the earliest time the message will be sent in epoch nanoseconds. Must be null if time_acked is set',
  time_acked bigint DEFAULT NULL COMMENT 'the time the message was acked in epoch nanoseconds. Must be null if time_next is set',

  # add as many custom fields here as required
  # optional - these are suggestions
  tenant_id bigint COMMENT 'offers a nice way to segment your messages',
  message json,

  # required indexes
  primary key(id),
  index poller_idx(time_acked, priority, time_next desc)

  # add any secondary indexes or foreign keys - no restrictions
) comment '{COMMENT}'
"""  # noqa: E501
ELSEWHERE = """
create table my_message(
  id bigint NOT NULL, priority smallint NOT NULL DEFAULT '50', epoch bigint NOT NULL DEFAULT '0',
  time_next bigint DEFAULT 0, time_acked bigint DEFAULT NULL, tenant_id bigint, message json, primary key(id)
)
"""
REFERENCES = "references tenant (id)"
INSERT = """insert into my_message(id, message) values(1, '{"message": "hello world"}')"""
INSERT_LATER = (
    """insert into my_message(id, message, time_next) values(2, '{"message": "hello world"}', :future_time)"""
)
ACK = (
    "update my_message set time_acked = :time_acked, time_next = null where id in :ids and time_acked is null"
)
RESCHEDULE = (
    "update my_message set priority = :priority, time_next = :time_next, epoch = :epoch"
    " where id in :ids and time_acked is null"
)


def run_sql(url: str, *statements: str) -> None:
    """What a user does with any client of the database."""
    with engine_of(url) as engine, engine.begin() as connection:
        for one in statements:
            connection.exec_driver_sql(one)


def make(url: str, comment: str = COMMENT) -> None:
    """The document's table, or where SQL is another, the same with its means."""
    if url.startswith("mariadb"):
        run_sql(url, DOCUMENT.replace(COMMENT, comment))
    elif url.startswith("postgresql"):
        run_sql(url, ELSEWHERE, f"comment on table my_message is '{comment}'")
    else:
        settings_row = (
            "create table tickwheel_message_tables (name varchar(255) primary key, comment text not null)"
        )
        run_sql(
            url,
            ELSEWHERE,
            settings_row,
            f"insert into tickwheel_message_tables values ('my_message', '{comment}')",
        )


def with_ids(table: MessageTable, sql: str, **values: object) -> int:
    """Executes a statement with a list of ids."""
    with table.database.begin() as connection:
        bound = sa.text(sql).bindparams(sa.bindparam("ids", expanding=True))
        return connection.execute(bound, values).rowcount


@pytest.mark.promise("V17", "V39", "V68", "V89")
@pytest.mark.parametrize("adopted", [True, False])
async def test_the_document(database_url: str, adopted: bool) -> None:
    """Also if nobody ever said that it is ours: a hub does what is needed to be woken."""
    make(database_url)
    with same_table(database_url, "my_message") as table:
        if adopted:
            table.adopt()
        assert table.settings == SETTINGS
        assert table.columns == ("id", "tenant_id", "message")
        async with table.hub() as hub, hub.subscribe() as stream:
            await eventually(lambda: hub.stats.looks > 0)
            execute(table, INSERT.replace(":", "\\:"))
            future_time = table.database.now_ns() + 3_600_000_000_000
            later = INSERT_LATER.replace('": ', '"\\: ')
            execute(table, later, future_time=future_time)
            message = await get(stream)
            assert (message.id, message.priority, message.epoch, message["tenant_id"]) == (1, 50, 1, None)
            body = message["message"]
            assert (json.loads(body) if isinstance(body, str) else body) == {"message": "hello world"}
            now = table.database.now_ns()
            assert with_ids(table, ACK, ids=[1], time_acked=now) == 1
            assert with_ids(table, ACK, ids=[1], time_acked=now) == 0
            assert with_ids(table, RESCHEDULE, ids=[1, 2], priority=10, time_next=now, epoch=0) == 1
            message = await get(stream)
            assert (message.id, message.priority, message.epoch) == (2, 10, 1)
            await message.ack()
        assert table.stats().acked == 2


@pytest.mark.promise("V5", "V19", "V22", "V23", "V24", "V25", "V56", "V73", "V91")
def test_the_columns_of_a_message(database_url: str) -> None:
    """What the document says of each, at each step of a message's life."""
    with message_table(database_url, ack_wait_ms=60_000) as table:
        (number,) = send(table, "a")

        def columns() -> list[object]:
            """Times in seconds from now."""
            (row,) = rows(table, "id", "priority", "epoch", "time_next", "time_acked")
            now = table.database.now_ns()
            return [*row[:3], *(None if one is None else (one - now) / 1e9 for one in row[3:])]

        about = partial(pytest.approx, abs=20)
        assert columns() == [number, 50, 0, about(0), None]
        (message,) = table.claim()
        assert columns() == [number, 50, 1, about(60), None]
        with table.database.begin() as connection:
            assert table.ack(connection, [number, number + 1]) == 1
            assert table.ack(connection, [number]) == 0
        assert columns() == [number, 50, 1, None, about(0)]
        with pytest.raises(LeaseLost), table.database.begin() as connection:
            message.ack_in(connection)
        send(table, "b")
        for both in ("time_acked = 5", "time_next = null"):  # exactly one of the two is null
            with pytest.raises(sa.exc.DBAPIError):
                execute(table, f"update reminders set {both} where message = 'b'")
        with table.database.reading() as connection:
            analysis = sa.text(
                "select count(*), min(time_acked) from reminders where time_acked is not null and message = 'a'"
            )
            assert tuple(connection.execute(analysis).one()) == (1, rows(table, "time_acked")[0][0])


@pytest.mark.promise("V92")
async def test_other_indexes_and_foreign_keys(database_url: str) -> None:
    make(database_url)
    run_sql(database_url, "create table tenant (id bigint primary key)", "insert into tenant values (6)")
    if database_url.startswith("sqlite"):  # where tables get no foreign keys later
        made = ELSEWHERE.replace("tenant_id bigint", f"tenant_id bigint {REFERENCES}")
        run_sql(database_url, "drop table my_message", made)
    else:
        run_sql(database_url, f"alter table my_message add foreign key (tenant_id) {REFERENCES}")
    run_sql(database_url, "create unique index one_a_tenant on my_message (tenant_id, priority)")
    with same_table(database_url, "my_message") as table:
        table.adopt()
        insert = "insert into my_message (id, tenant_id, priority) values (:id, 6, :id)"
        async with table.stream() as stream:
            for number in (1, 2):
                execute(table, insert, id=number)
                message = await get(stream)
                assert (message.id, message["tenant_id"]) == (number, 6)
                await message.ack()
        table.change_settings(purge_after_ms=0)
        assert table.purge() == 2


@pytest.mark.promise("V38")
async def test_vt_message_cols(database_url: str) -> None:
    make(database_url, f"{COMMENT},vt_message_cols=id|message")
    with same_table(database_url, "my_message") as table:
        table.adopt()
        execute(table, "insert into my_message (id, tenant_id) values (5, 6)")
        async with table.stream() as stream:
            assert stream.fields == ("id", "message")
            assert dict(await get(stream)) == {"id": 5, "message": None}


@pytest.mark.promise("V36", "V90")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("vt_ack_wait=30,", "", "vt_ack_wait"),
        ("vt_batch_size=10,", "vt_batch_size=0,", "vt_batch_size"),
        ("vitess_message", "some_message", "comment"),
        (COMMENT, f"{COMMENT},vt_message_cols=message|id", "start with id"),
        (COMMENT, f"{COMMENT},vt_message_cols=id|nobody", "nobody"),
        (COMMENT, "", "comment"),
    ],
)
def test_comments_that_vitess_refuses_too(database_url: str, old: str, new: str, said: str) -> None:
    make(database_url, COMMENT.replace(old, new))
    with same_table(database_url, "my_message") as table:
        for attempt in (table.adopt, table.reload, table.claim):
            with pytest.raises(BadTable, match=said):
                attempt()


@pytest.mark.promise("V94")
async def test_an_epoch_of_null_is_zero(database_url: str) -> None:
    make(database_url)
    run_sql(
        database_url,
        *(["alter table my_message modify epoch bigint"] if database_url.startswith("mariadb") else []),
        *(
            ["alter table my_message alter column epoch drop not null"]
            if database_url.startswith("postgresql")
            else []
        ),
    )
    if database_url.startswith("sqlite"):
        run_sql(
            database_url,
            "drop table my_message",
            ELSEWHERE.replace("epoch bigint NOT NULL DEFAULT '0'", "epoch bigint"),
        )
    with same_table(database_url, "my_message") as table:
        table.adopt()
        execute(table, "insert into my_message (id, epoch) values (5, null)")
        assert [one.epoch for one in table.claim()] == [1]
