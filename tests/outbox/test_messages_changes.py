"""Tables that are altered, dropped or get other settings while they are streamed."""

from __future__ import annotations

import anyio
import pytest
import sqlalchemy as sa

from tests.support.outbox.messages import (
    PATIENCE_S,
    eventually,
    execute,
    fast,
    get,
    message_table,
    same_table,
    send,
)
from tickwheel.outbox import BadTable, OutboxError, TableMissing
from tickwheel.outbox.messages import hub as hubs


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The form is looked at often, so that no test waits for it."""
    monkeypatch.setattr(hubs, "_CHECK_INTERVAL_S", 0.05)


@pytest.mark.promise("V75")
async def test_settings_count_at_once_and_drop_nobody(database_url: str) -> None:
    with message_table(database_url, batch_size=1) as table, same_table(database_url) as other:
        async with table.hub() as hub, hub.subscribe() as stream:
            send(table, "a")
            first = await get(stream)
            other.change_settings(batch_size=3, ack_wait_ms=150, max_backoff_ms=150)
            await eventually(lambda: table.settings.batch_size == 3)
            send(table, "b", "c", "d", "e")
            batches = [await stream.receive_batch(PATIENCE_S) for _ in range(3)]
            assert all(batches)
            assert max(len(one or ()) for one in batches) in (2, 3)
            again = await get(stream)  # the new ack_wait counts for what is delivered from now on
            assert again.epoch > 1
            assert again.id != first.id
            await first.ack()
            assert hub.stats.failures == 0


async def test_new_columns_are_streamed(database_url: str) -> None:
    with message_table(database_url, batch_size=1) as table:
        async with table.stream() as stream:
            for number in range(8):  # often enough for a driver to prepare the statements
                send(table, str(number))
                await (await get(stream)).ack()
            with table.database.engine.begin() as connection:
                connection.execute(sa.text("alter table reminders add column extra integer default 7"))
            await eventually(lambda: "extra" in stream.fields)
            send(table, "new", extra=8)
            message = await get(stream)
            assert (message["message"], message["extra"]) == ("new", 8)
            await message.ack()


@pytest.mark.promise("V102")
@pytest.mark.parametrize("noticed_first", [True, False])
async def test_columns_that_change_their_type_or_go(
    database_url: str, noticed_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not noticed_first:
        monkeypatch.setattr(hubs, "_CHECK_INTERVAL_S", 3_600)
    columns = [sa.Column("message", sa.String(50)), sa.Column("gone", sa.Integer)]
    with message_table(database_url, columns=columns, batch_size=1) as table:
        async with table.hub() as hub, hub.subscribe() as stream:
            for number in range(12):
                send(table, str(number), gone=5)
                message = await get(stream)
                assert message["gone"] == 5
                await message.ack()
            changes = {
                "postgresql": ["alter table reminders alter column message type varchar(500)"],
                "mariadb": ["alter table reminders modify message varchar(500)"],
            }.get(table.database.kind, [])
            version = table.schema.version
            for one in [*changes, "alter table reminders drop column gone"]:
                with table.database.engine.begin() as connection:
                    connection.execute(sa.text(one))
            if noticed_first:
                await eventually(lambda: table.schema.version != version and "gone" not in stream.fields)
            for number in range(12):
                execute(table, "insert into reminders (message) values (:text)", text=f"after {number}")
                message = await get(stream)
                assert dict(message) == {"id": message.id, "message": f"after {number}"}
                await message.ack()
            assert hub.stats.sent == 24


@pytest.mark.promise("V88", "V103")
@pytest.mark.parametrize("by", ["looking", "waking"])
async def test_a_dropped_table_ends_the_streams(
    database_url: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with message_table(database_url) as table, same_table(database_url) as other:
        send(table, "a")
        if by == "waking":
            monkeypatch.setattr(hubs, "_CHECK_INTERVAL_S", 3_600)
        async with table.hub() as hub, hub.subscribe() as stream, hub.subscribe() as second:
            streams = [stream, second]
            message = None
            while message is None:
                streams.reverse()
                message = await streams[0].receive(0.1)
            other.drop()
            hub.ring(None)
            with anyio.fail_after(PATIENCE_S):
                for one in streams:
                    with pytest.raises(TableMissing, match="reminders") as caught:
                        await one.receive()
                    assert "outbox init" in caught.value.advice
            for change in (message.ack, message.nack):
                with pytest.raises((OutboxError, sa.exc.DBAPIError)):
                    await change()
            with pytest.raises(TableMissing):
                async with hub.subscribe():
                    pass


async def test_a_table_that_is_replaced_by_another_goes_on(database_url: str) -> None:
    with message_table(database_url) as table:
        async with table.hub() as hub, hub.subscribe() as stream:
            await eventually(lambda: hub.stats.looks > 0)
            with table.database.engine.begin() as connection:
                if table.database.kind == "mariadb":
                    connection.execute(sa.text("create table newer like reminders"))
                    connection.execute(sa.text("rename table reminders to older, newer to reminders"))
                else:
                    columns = [one._copy() for one in table.table.columns]
                    table.table.drop(connection)
                    newer = sa.Table("reminders", sa.MetaData(), *columns, comment=table.settings.comment())
                    newer.create(connection)
            with table.database.engine.begin() as connection:
                connection.execute(
                    sa.text(
                        "insert into reminders (id, priority, epoch, time_next, message) values (1, 5, 0, 0, 'x')"
                    )
                )
            assert (await get(stream))["message"] == "x"


async def test_settings_that_make_no_sense_end_the_streams_with_advice(database_url: str) -> None:
    with message_table(database_url) as table:
        comment = "tickwheel_message,vt_ack_wait=soon"
        sql = {
            "sqlite": f"update tickwheel_message_tables set comment = '{comment}'",
            "postgresql": f"comment on table reminders is '{comment}'",
            "mariadb": f"alter table reminders comment '{comment}'",
        }[table.database.kind]
        async with table.stream() as stream:
            execute(table, sql)
            with pytest.raises(BadTable, match="reminders"):
                await stream.receive(PATIENCE_S)
    with same_table(database_url) as table:
        table.adopt(fast())


@pytest.mark.only_on("postgresql", "mariadb")  # On SQLite the settings are kept by name.
async def test_a_renamed_table_is_woken_under_its_new_name(database_url: str) -> None:
    with message_table(database_url) as table:
        execute(table, "alter table reminders rename to memos")
    with same_table(database_url, "memos") as table:
        async with table.hub() as hub, hub.subscribe() as stream:
            await eventually(lambda: hub.stats.looks > 0)
            send(table, "a")
            assert (await get(stream))["message"] == "a"
