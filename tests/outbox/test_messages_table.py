"""Making, taking, refusing and changing message tables, whatever they are called."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
import trio

from tests.support.outbox.messages import (
    engine_of,
    execute,
    fast,
    get,
    message_table,
    rolled_back,
    rows,
    same_table,
    send,
)
from tickwheel.outbox import BadTable, MessageSettings, MessageTable, NotInTransaction, TableMissing
from tickwheel.outbox.messages.schema import message_tables
from tickwheel.protocol.errors import BadArgument, BadTime, NaiveDatetime

NAMES = ["order", "Mixed Case", "semi;colon's", 'double"quote', "per%cent:colon", "käse", "x" * 60]
TIMES = {"delay", "delay_ms", "deliver_at"}
PLAIN = """
create table plain (
    id bigint not null primary key, priority smallint not null default 50, epoch bigint not null default 0,
    time_next bigint default 0, time_acked bigint, note varchar(100)
)
"""


@pytest.mark.promise("V54")
@pytest.mark.parametrize("name", NAMES)
async def test_tables_may_have_any_name(database_url: str, name: str) -> None:
    with message_table(database_url, name) as table:
        assert table.columns == ("id", "message")
        assert table.schema.is_strict
        send(table, "one")
        with trio.fail_after(30):
            async with table.stream() as stream:
                await (await get(stream)).ack()
                send(table, "two")
                message = await get(stream)
        assert message["message"] == "two"
        table.change_settings(purge_after_ms=0)
        assert table.purge() == 1
        with table.database.reading() as connection:
            assert message_tables(table.database, connection) == [name]
        table.drop()
        with pytest.raises(TableMissing):
            table.reload()


def test_settings_are_the_tables_own_and_all_can_be_changed(database_url: str) -> None:
    with message_table(database_url, batch_size=7) as table, same_table(database_url) as other:
        assert other.settings == table.settings == fast(batch_size=7)
        changed = MessageSettings(
            ack_wait_ms=1_500,
            min_backoff_ms=2_500,
            max_backoff_ms=0,
            purge_after_ms=0,
            batch_size=3,
            cache_size=4,
            poller_interval_ms=5_250,
            columns=("id", "message"),
        )
        names = list(MessageSettings.__dataclass_fields__)
        assert table.change_settings(**{name: getattr(changed, name) for name in names}) == changed
        other.reload()
        assert other.settings == changed
        with pytest.raises(BadArgument, match="nonsense"):
            table.change_settings(nonsense=1)


def test_what_would_make_the_table_unusable_is_refused_before_it_counts(database_url: str) -> None:
    with message_table(database_url) as table:
        before = table.settings
        with pytest.raises(BadTable, match="no_such"):
            table.change_settings(columns=("id", "no_such"))
        assert table.reload().settings == before


def test_create_leaves_what_is_there_and_several_may_do_it_at_once(database_url: str) -> None:
    names = [f"table{number}" for number in range(4)]

    def make(number: int) -> int:
        with message_table(database_url, names[number % 4], batch_size=7) as table:
            send(table, f"by {number}")
            return table.settings.batch_size

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(make, range(16))) == [7] * 16
    with message_table(database_url, "table0", batch_size=9) as table:
        assert table.settings.batch_size == 7
        assert table.stats().due == 4
        with table.database.reading() as connection:
            assert message_tables(table.database, connection) == names


def test_a_table_that_was_dropped_with_plain_sql_can_be_made_again(database_url: str) -> None:
    with message_table(database_url, batch_size=7) as table:
        execute(table, "drop table reminders")
    with message_table(database_url, batch_size=9) as table:
        assert table.settings.batch_size == 9


def test_adopt_takes_a_table_with_settings_and_refuses_it_without(database_url: str) -> None:
    with engine_of(database_url) as engine, engine.begin() as connection:
        connection.execute(sa.text(PLAIN))
    with same_table(database_url, "plain") as table:
        with pytest.raises(BadTable, match="comment") as caught:
            table.adopt()
        assert "outbox init" in caught.value.advice
        with pytest.raises(BadTable):
            table.create()
        with pytest.raises(BadTable, match="no_such"):
            table.adopt(fast(columns=("id", "no_such")))
        with pytest.raises(BadTable, match="comment"):
            table.reload()
        assert table.adopt(fast()).columns == ("id", "note")
        assert not table.schema.is_strict
        assert same_settings(database_url) == fast()


def same_settings(url: str) -> MessageSettings:
    with same_table(url, "plain") as table:
        return table.adopt().settings


@pytest.mark.promise("V9", "V78")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("priority smallint not null default 50,", "", "priority"),
        ("time_next bigint default 0, time_acked bigint,", "", "time_next, time_acked"),
        ("time_next bigint default 0", "time_next varchar(20)", "time_next"),
        ("epoch bigint", "epoch double precision", "epoch"),
        ("not null primary key", "not null", "unique"),
        ("id bigint not null primary key", "number bigint not null primary key", "id"),
    ],
)
def test_wrong_tables_are_refused_and_not_touched(database_url: str, old: str, new: str, said: str) -> None:
    assert old in PLAIN
    with engine_of(database_url) as engine, engine.begin() as connection:
        connection.execute(sa.text(PLAIN.replace(old, new)))
    with same_table(database_url, "plain") as table:
        with pytest.raises(BadTable, match=said) as caught:
            table.adopt(fast())
        assert caught.value.advice
        with pytest.raises(BadTable, match="comment"):
            table.reload()


@pytest.mark.promise("V101")
def test_a_table_that_is_not_there(database_url: str) -> None:
    with same_table(database_url, "nobody") as table:
        for attempt in (table.adopt, table.reload, table.drop, table.claim, table.purge, table.stats):
            with pytest.raises(TableMissing, match="nobody") as caught:
                attempt()
            assert "outbox init" in caught.value.advice


def test_own_columns_do_not_clash(database_url: str) -> None:
    with pytest.raises(BadTable, match="epoch"), message_table(database_url, columns=[sa.Column("epoch")]):
        pass


@pytest.mark.promise("V18")
@pytest.mark.parametrize("kind", ["bigint", "varchar", "uuid"])
async def test_ids_of_the_users_own(database_url: str, kind: str) -> None:
    types = {"bigint": sa.BigInteger(), "varchar": sa.String(50), "uuid": sa.Uuid()}
    ids = {
        "bigint": [1 << 62, -5],
        "varchar": ["é, 'quoted'", "plain"],
        "uuid": [uuid4(), UUID(int=1)],
    }[kind]
    columns = [sa.Column("id", types[kind], primary_key=True), sa.Column("message", sa.String(50))]
    with message_table(database_url, columns=columns) as table:
        with table.database.begin() as connection:
            assert [table.send(connection, id=one, message=str(one)) for one in ids] == ids
        async with table.stream() as stream:
            received = [await get(stream) for _ in ids]
            assert sorted(one["message"] for one in received) == sorted(map(str, ids))
            await received[0].ack()
            await received[1].nack(timedelta(hours=1))
        with table.database.begin() as connection:
            assert table.reschedule(connection, ids) == 1
            assert table.cancel(connection, ids) == 1
            assert table.ack(connection, ids) == 0


def test_ids_that_are_given_out_are_never_given_twice(database_url: str) -> None:
    with message_table(database_url) as table:
        first = send(table, "one", "two")
        with table.database.begin() as connection:
            assert table.cancel(connection, first) == 2
        assert min(send(table, "three")) > max(first)


@pytest.mark.promise("V26", "V85")
def test_user_columns_are_streamed_and_may_be_fewer(database_url: str) -> None:
    columns = [
        sa.Column("tenant_id", sa.Integer),
        sa.Column("payload", sa.LargeBinary),
        sa.Column("at", sa.DateTime),
    ]
    values = {"tenant_id": 7, "payload": b"\x00\xff", "at": datetime(2031, 1, 2, 3, 4, 5)}
    with (
        message_table(database_url, "another", columns),
        message_table(database_url, columns=columns) as table,
    ):
        with table.database.begin() as connection:
            number = table.send(connection, **values)
        (message,) = table.claim()
        assert dict(message) == {"id": number} | values
        table.change_settings(columns=("id", "payload"))
        execute(table, "update reminders set time_next = 0")
        (message,) = table.claim()
        assert dict(message) == {"id": number, "payload": b"\x00\xff"}


def test_wrong_arguments_say_what_is_wrong(database_url: str) -> None:
    with message_table(database_url) as table, table.database.begin() as connection:
        wrong = [
            ({"no_such": 1}, BadArgument, "no_such"),
            ({"epoch": 1}, BadArgument, "epoch"),
            ({"time_acked": 1}, BadArgument, "time_acked"),
            ({"time_next": None}, BadTime, "never"),
            ({"time_next": 1_935_392_400}, BadTime, "January 1970 in nanoseconds. Are seconds"),
            ({"time_next": 1_935_392_400_000}, BadTime, "January 1970 in nanoseconds. Are seconds"),
            ({"time_next": 10**18 - 1}, BadTime, "September 2001 in nanoseconds. Are seconds"),
            ({"delay_ms": 5, "deliver_at": 5}, BadTime, "Both"),
            ({"delay_ms": -1}, BadTime, "negative"),
            ({"delay": "soon"}, BadTime, "str"),
            ({"deliver_at": datetime(2031, 1, 1)}, NaiveDatetime, "zone"),
            ({"deliver_at": datetime(2262, 5, 1, tzinfo=UTC)}, BadTime, "2262"),
            ({"delay": timedelta(days=366 * 280)}, BadTime, "2262"),
        ]
        for values, kind, said in wrong:
            with pytest.raises(kind, match=said):
                table.send(connection, **values)
            with pytest.raises(kind, match=said):
                table.send_many(
                    connection,
                    [{"message": "fine"}, {name: values[name] for name in values.keys() - TIMES}],
                    **{name: values[name] for name in values.keys() & TIMES},
                )
        for call in (table.ack, table.cancel, table.reschedule):
            with pytest.raises(BadArgument, match="list"):
                call(connection, "1")
        with pytest.raises(BadArgument, match="Engine"):
            table.send(table.database.engine, message="x")  # type: ignore[arg-type]
        assert connection.execute(sa.select(table.table)).all() == []


@pytest.mark.promise("V86")
@pytest.mark.only_on("postgresql", "mariadb")  # SQLite knows no users.
def test_the_database_says_who_may_do_what(database_url: str) -> None:
    """Who may only read and update receives and acks, and sends nothing."""
    url = sa.make_url(database_url).set(username=f"consumer_{uuid4().hex[:8]}", password="secret")
    made = {
        "postgresql": f"create role {url.username} login password 'secret'",
        "mariadb": f"create user {url.username} identified by 'secret'",
    }[url.get_backend_name()]
    with message_table(database_url) as table:
        execute(table, made)
        execute(table, f"grant select, update on reminders to {url.username}")
        send(table, "a")
        with same_table(url.render_as_string(hide_password=False)) as theirs:
            batch = theirs.claim()
            with theirs.database.begin() as connection:
                batch.ack_in(connection)
            with pytest.raises(sa.exc.DBAPIError, match="denied"):
                send(theirs, "b")
        assert table.stats().acked == 1
        execute(table, f"revoke select, update on reminders from {url.username}")
        kind = "role" if table.database.kind == "postgresql" else "user"
        execute(table, f"drop {kind} {url.username}")


def test_send_many_takes_rows_of_different_columns(database_url: str) -> None:
    with message_table(database_url) as table:
        with table.database.begin() as connection:
            sent = table.send_many(
                connection,
                [{"message": "a"}, {"message": "b", "priority": 3}, {"time_next": 10**18}, {"message": "c"}],
                priority=9,
                delay=timedelta(hours=1),
            )
            assert sent == 4
            assert table.send_many(connection, []) == 0
        found = sorted(rows(table, "message", "priority", "time_next"), key=str)
        assert [one[:2] for one in found] == [("a", 9), ("b", 3), ("c", 9), (None, 9)]
        assert found[-1][2] == 10**18
        assert found[0][2] > table.database.now_ns()


@pytest.mark.parametrize("how", ["engine", "engine option", "connection", "begun"])
def test_connections_without_transactions_are_refused(database_url: str, how: str) -> None:
    made = {"isolation_level": "AUTOCOMMIT"} if how == "engine" else {}
    with message_table(database_url) as table, engine_of(database_url, **made) as engine:
        if how == "engine option":
            engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            if how in ("connection", "begun"):
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            if how == "begun":
                connection.execute(sa.select(1))
            with pytest.raises(NotInTransaction):
                table.send(connection, message="x")
            with pytest.raises(NotInTransaction):
                table.ack(connection, [1])
        assert rows(table, "id") == []


@pytest.mark.parametrize("level", ["default", "SERIALIZABLE", "AUTOCOMMIT"])
async def test_engines_of_the_user_work_as_they_are(database_url: str, level: str) -> None:
    """What the outbox does in transactions of its own has them whatever the engine does."""
    options = {} if level == "default" else {"isolation_level": level}
    with engine_of(database_url, **options) as engine:
        if level == "default" and engine.dialect.name == "sqlite":
            # The recipe of SQLAlchemy's documentation for transactions on SQLite.
            sa.event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
            sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        table = MessageTable(engine, "reminders").create(settings=fast())
        send(table, "one", "two")
        async with table.stream() as stream:
            await (await get(stream)).ack()
            with table.database.begin() as connection:
                (await get(stream)).ack_in(connection)
            with (
                engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection,
                connection.begin(),
            ):
                table.send(connection, message="three")
            message = await get(stream)
            assert message["message"] == "three"
            assert len(table.claim()) == 0
        with pytest.raises(ZeroDivisionError):
            rolled_back(table.database, message.ack_in)
        assert table.stats().waiting == 1
        table.database.close()
        with engine.connect() as connection:
            assert connection.execute(sa.select(sa.literal(1))).scalar() == 1


def test_priorities_of_64_bits(database_url: str) -> None:
    with message_table(database_url, columns=[]) as table:
        wider = {
            "postgresql": "alter table reminders alter column priority type bigint",
            "mariadb": "alter table reminders modify priority bigint not null default 50",
        }.get(table.database.kind)
        if wider is not None:
            execute(table, wider)
        table.reload()
        for priority in (1 << 40, -(1 << 40), 0):
            with table.database.begin() as connection:
                table.send(connection, priority=priority)
        assert {one.priority for one in table.claim()} == {-(1 << 40), 0, 1 << 40}


def test_an_id_that_is_too_long_is_no_other(database_url: str) -> None:
    columns = [sa.Column("id", sa.String(5), primary_key=True)]
    with message_table(database_url, columns=columns) as table, table.database.begin() as connection:
        table.send(connection, id="order")
        assert table.ack(connection, ["orders", "order17"]) == 0
        assert table.cancel(connection, ["orders"]) == 0
        assert table.ack(connection, ["order"]) == 1
