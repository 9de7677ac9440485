"""What the relay makes of rows, and that it stays true to them: each is in the topic once, as the user left it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from itertools import count
from typing import Any

import anyio
import pytest
import sqlalchemy as sa

import tickwheel
from tests.support.outbox.relaying import (
    LATER_NS,
    PATIENCE_S,
    Messages,
    check_once,
    in_topic,
    interrupted,
    until,
)
from tickwheel._embedded import EmbeddedBroker
from tickwheel.outbox import BadTable, MessageSettings, MessageTable, Relay, TableMissing
from tickwheel.outbox.relay.markers import Markers

LATER_MS = -(-LATER_NS // 1_000_000)
NS_A_MS = 1_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with tickwheel.embedded(tmp_path_factory.mktemp("relay"), max_body_bytes="32KiB") as running:
        yield running


_topics = count()


@pytest.fixture
def topic() -> str:
    return f"relayed-{next(_topics)}"


class Interrupted(Exception):
    """Stands for the death of the relay."""


async def interrupt(relay_class: type[Relay], *arguments: Any, **options: Any) -> None:
    """Runs a relay that ends by Interrupted."""
    with pytest.raises(Interrupted):
        await relay_class(*arguments, **options).run_once()


def dies_at(step: str) -> type[Relay]:
    """A relay that dies at a step: its transaction is rolled back."""

    async def die(now: str) -> None:
        if now == step:
            raise Interrupted

    return interrupted(die)


# -- rows become messages --


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_committed_rows_become_messages(
    backend: str, broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    async def main() -> None:
        messages.add(
            {"message": "now", "time_next": 0, "tenant_id": 7},
            {"message": "later", "time_next": LATER_NS // NS_A_MS * NS_A_MS + 1, "priority": 3},
            {"message": "rude", "priority": -5},
        )
        with messages.database.engine.connect() as connection:
            connection.execute(messages.table.insert().values(message="never", time_next=0))
            connection.rollback()
        async with broker.client() as client:
            relay = Relay(messages.database, messages.name, client, topic)
            assert await relay.run_once() == 3
            assert await relay.run_once() == 0
            assert (relay.stats.moved, relay.stats.batches) == (3, 1)
            now, later, rude = sorted(await in_topic(client, topic), key=lambda one: one.key)
        assert [now.body, later.body, rude.body] == [b"now", b"later", b"rude"]
        assert [now.key, later.key, rude.key] == ["outbox:1", "outbox:2", "outbox:3"]
        assert [now.priority, later.priority, rude.priority] == [50, 3, 0]
        assert (now.state, later.state, later.deliver_at_ms) == (
            "ready",
            "scheduled",
            LATER_NS // NS_A_MS + 1,
        )
        assert (now.headers, later.headers) == ({"tenant_id": 7}, {"tenant_id": None})
        assert [(row[0], row[1]) for row in messages.acked()] == [(1, None), (2, None), (3, None)]
        assert all(abs(row[2] - messages.database.now_ns()) < 60 * 10**9 for row in messages.acked())

    anyio.run(main, backend=backend)


async def test_the_broker_may_have_several_urls(
    broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    messages.add({"message": "one"})
    nothing_there = "tickwheel+unix:///nonexistent.sock"
    for urls in ([nothing_there, broker.url], f"{nothing_there},{broker.url}"):
        relay = Relay(messages.database, messages.name, urls, topic)
        await relay.run_once()
    async with broker.client() as client:
        assert [one.body for one in await in_topic(client, topic)] == [b"one"]


async def test_columns_become_what_the_options_say(
    broker: EmbeddedBroker, database_url: str, topic: str
) -> None:
    messages = Messages(
        database_url,
        "jobs",
        sa.Column(
            "id",
            sa.String(400).with_variant(sa.String(400, collation="utf8mb4_bin"), "mysql", "mariadb"),
            primary_key=True,
        ),
        sa.Column("customer", sa.String(40)),
        sa.Column("data", sa.LargeBinary),
        sa.Column("secret", sa.String(40)),
        sa.Column("options", sa.JSON),
    )
    long_id = "x" * 300
    messages.add(
        {"id": "a", "customer": "ada", "data": b"\x00\xff", "secret": "s", "options": {"size": 3}},
        {"id": long_id, "customer": None, "data": None, "secret": "s", "options": None},
    )
    async with broker.client() as client:
        relay = Relay(
            messages.database, "jobs", client, topic, body="data", headers=["id"], order_key="customer"
        )
        assert await relay.run_once() == 2
        first, second = sorted(await in_topic(client, topic), key=lambda one: len(one.key))
        assert (first.body, first.headers, first.order_key) == (b"\x00\xff", {"id": "a"}, "ada")
        assert (second.body, second.headers, second.order_key) == (b"", {"id": long_id}, "")
        assert first.key == "jobs:a"
        assert re.fullmatch("jobs:[0-9a-f]{64}", second.key)

        messages.add({"id": "b", "customer": "bob", "data": b"x", "secret": "s", "options": {"size": 3}})
        whole = Relay(messages.database, "jobs", client, f"{topic}-json", columns=["id", "customer", "data"])
        assert await whole.run_once() == 1
        (third,) = await in_topic(client, f"{topic}-json")
        assert json.loads(third.body) == {"id": "b", "customer": "bob", "data": "eA=="}
        assert third.headers == {}
    messages.close()


@pytest.mark.parametrize(
    ("kind", "row_id"),
    [
        pytest.param(sa.Uuid(), uuid.UUID(int=5), id="uuid"),
        pytest.param(sa.LargeBinary(16), b"\x01\x02", id="bytes"),
        # SQLite has no exact numbers of this size.
        pytest.param(
            sa.Numeric(30, 0), 10**25, id="decimal", marks=pytest.mark.only_on("postgresql", "mariadb")
        ),
    ],
)
async def test_ids_of_any_type_are_taken_over(
    broker: EmbeddedBroker, database_url: str, topic: str, kind: Any, row_id: Any
) -> None:
    """An id comes back from the broker as what it was."""
    if database_url.startswith("mariadb") and isinstance(row_id, bytes):
        kind = sa.dialects.mysql.VARBINARY(16)  # type: ignore[attr-defined]
    messages = Messages(
        database_url, "things", sa.Column("id", kind, primary_key=True), sa.Column("body", sa.Text)
    )
    messages.add({"id": row_id, "body": "thing"})
    async with broker.client() as client:
        await interrupt(dies_at("sent"), messages.database, "things", client, topic)
        relay = Relay(messages.database, "things", client, topic)
        assert (await relay.run_once(), relay.stats.resumed) == (1, 1)
        assert [one.body for one in await in_topic(client, topic)] == [b"thing"]
        assert messages.unsent() == []
    messages.close()


async def test_what_cannot_be_relayed_is_said_at_once(
    broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    database = messages.database
    with database.begin() as connection:
        connection.execute(sa.text("create table plain (id integer primary key)"))
    for arguments, options, error in [
        (("nothing", broker.url, topic), {}, TableMissing),
        (("plain", broker.url, topic), {}, BadTable),
        (("outbox", broker.url, topic), {"body": "nothing"}, BadTable),
    ]:
        with pytest.raises(error):
            await Relay(database, *arguments, **options).run_once()
        with pytest.raises(error):
            await Relay(database, *arguments, **options).run()
    for options in ({"batch": 0}, {"poll_s": 0}, {"send_timeout_s": -1}):
        with pytest.raises(tickwheel.errors.BadArgument):
            Relay(database, "outbox", broker.url, topic, **options)
    with pytest.raises(tickwheel.errors.BadTopicName):
        Relay(database, "outbox", broker.url, "no topic")


# -- after an interruption --


async def test_messages_follow_what_the_user_did_to_their_rows(
    broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    """The relay died between the broker and the commit; then the user changed, deleted and added rows."""
    messages.add_ids(range(1, 8))
    async with broker.client() as client:
        await interrupt(dies_at("changed"), messages.database, "outbox", client, topic)
        assert messages.change(2, time_next=LATER_NS + 10**9) == 1
        assert messages.change(3, priority=9) == 1
        messages.delete(4)
        assert messages.change(5, message="another") == 1
        messages.change(6, time_next=None, time_acked=1)  # whoever acks by hand wants nothing else of it
        messages.add_ids(range(8, 9))
        relay = Relay(messages.database, "outbox", client, topic)
        assert await relay.run_once() == 6
        found = {one.key: one for one in await in_topic(client, topic)}
        assert sorted(found) == [f"outbox:{one}" for one in (1, 2, 3, 5, 6, 7, 8)]
        assert found["outbox:2"].deliver_at_ms == LATER_MS + 1_000
        assert (found["outbox:3"].priority, found["outbox:5"].body) == (9, b"another")
        assert messages.unsent() == []
        stats = relay.stats
        assert (stats.resumed, stats.rescheduled, stats.cancelled, stats.too_late) == (1, 2, 2, 0)


async def test_what_was_delivered_meanwhile_is_too_late(
    broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    messages.add({"message": "a", "time_next": 0}, {"message": "b", "time_next": 0})
    async with broker.client() as client, client.subscribe(topic) as subscription:
        await interrupt(dies_at("sent"), messages.database, "outbox", client, topic)
        with anyio.fail_after(PATIENCE_S):
            bodies = {(await anext(subscription)).body for _ in range(2)}
        assert bodies == {b"a", b"b"}
        messages.change(1, time_next=LATER_NS)
        messages.delete(2)
        relay = Relay(messages.database, "outbox", client, topic)
        assert (await relay.run_once(), relay.stats.too_late) == (1, 2)
        assert len(await in_topic(client, topic)) == 2


async def test_the_broker_may_forget_keys_while_the_relay_is_down(
    broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    """Everything was delivered, acked and purged before the relay came back."""
    async with broker.client() as client:
        await client.create_topic(topic, purge_after=0)
        messages.add(*({"message": "x", "time_next": 0} for _ in range(20)))
        await interrupt(dies_at("sent"), messages.database, "outbox", client, topic)
        async with client.subscribe(topic) as subscription:
            received = 0
            async for batch in subscription.batches():
                await batch.ack(confirm=True)
                received += len(batch)
                if received == 20:
                    break
        first_id = (await in_topic(client, topic))[0].id
        place = await client.log_place()
        await client.drop(place.log_id, [(first_id, 20)], done_before=LATER_MS)
        assert await in_topic(client, topic) == []
        relay = Relay(messages.database, "outbox", client, topic)
        assert (await relay.run_once(), relay.stats.resumed) == (20, 1)
        assert await in_topic(client, topic) == []
        assert messages.unsent() == []


async def test_the_late_send_of_a_relay_that_was_given_up_does_not_count(
    broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    """It had lost its locks, and its batch reached the broker just before another relay's batch of the same number."""
    messages.add_ids(range(1, 7))
    async with broker.client() as client:
        late: list[Any] = []

        class LateMarkers(Markers):
            async def send(self, number: int, *batch: Any) -> None:
                if not late:
                    late.append(batch)
                    topic, shape, rows, outdated = batch
                    await super().send(number, topic, shape, rows[:2], outdated)
                await super().send(number, *batch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tickwheel.outbox.relay.batch.Markers", LateMarkers)
            relay = Relay(messages.database, "outbox", client, topic)
            assert await relay.run_once() == 6
        assert relay.stats.resumed == 1
        await check_once(client, topic, messages, range(1, 7))


# -- keys that are taken --


async def test_an_id_that_is_used_again_is_another_message(
    broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    """As SQLite gives them after a purge; the broker still knows the key of the first."""
    messages.add_ids(range(1, 6))
    async with broker.client() as client:
        relay = Relay(messages.database, "outbox", client, topic)
        assert await relay.run_once() == 5
        for one in range(1, 6):
            messages.delete(one)
        messages.add_ids(range(3, 9))
        assert await relay.run_once() == 6
        bodies = sorted(one.body for one in await in_topic(client, topic))
        assert bodies == sorted(f"message {one}".encode() for one in (*range(1, 6), *range(3, 9)))
        assert relay.stats.renamed == 3
        assert messages.unsent() == []


async def test_a_database_that_has_forgotten_commits_doubles_nothing(
    broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    """It was restored from an earlier state, or a replica took over that lagged behind."""
    messages.add_ids(range(1, 21))
    async with broker.client() as client:
        assert await Relay(messages.database, "outbox", client, topic, batch=5).run_once() == 20
        with messages.database.begin() as connection:
            connection.execute(sa.text("update tickwheel_relay set batch = 1"))
            forgotten = messages.table.update().where(messages.table.c.id > 5)
            connection.execute(forgotten.values(time_acked=None, time_next=LATER_NS))
        messages.add_ids(range(21, 26))
        relay = Relay(messages.database, "outbox", client, topic, batch=5)
        await relay.run_once()
        await check_once(client, topic, messages, range(1, 26))
        assert relay.stats.duplicates == 15


async def test_databases_with_tables_of_the_same_name(
    broker: EmbeddedBroker, messages: Messages, topic: str, tmp_path: Any
) -> None:
    other = Messages(f"sqlite:///{tmp_path / 'other.sqlite'}")
    async with broker.client() as client:
        for one in (messages, other):
            one.add_ids(range(1, 4))
            assert await Relay(one.database, "outbox", client, topic).run_once() == 3
        assert len(await in_topic(client, topic)) == 6
    other.close()


# -- rows that are refused --


async def test_refused_rows_wait_and_block_nobody(
    broker: EmbeddedBroker, messages: Messages, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tickwheel.outbox.relay.aside._FIRST_S", 3_600.0)
    messages.add({"message": "too large", "time_next": 1, "tenant_id": 1})
    messages.change(1, message="x" * 32_769)
    messages.add_ids(range(2, 12))
    messages.change(5, time_next=2**63 - 1_000)
    async with broker.client() as client:
        relay = Relay(messages.database, "outbox", client, topic, batch=2)
        assert await relay.run_once() == 10  # the year 2262 is allowed
        assert messages.unsent() == [1]
        assert (relay.stats.set_aside, relay.stats.refused) == (1, 1)
        assert await relay.run_once() == 0
        assert relay.stats.refused == 1  # not yet again
        monkeypatch.undo()
        relay = Relay(messages.database, "outbox", client, topic, batch=2)
        assert await relay.run_once() == 0
        assert (relay.stats.set_aside, messages.unsent()) == (1, [1])

        async def is_empty() -> bool:
            return await relay.run_once() >= 0 and not messages.unsent()

        messages.change(1, message="x" * 32_768)
        await until(is_empty)
        assert relay.stats.set_aside == 0
        await check_once(client, topic, messages, range(1, 12))


async def test_more_refused_rows_than_a_statement_can_name(
    broker: EmbeddedBroker, messages: Messages, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are due before all others, and fill more than a batch."""
    monkeypatch.setattr("tickwheel.outbox.relay.store._HIDDEN_MAX", 2)
    messages.add(*({"id": one, "message": "x" * 32_769, "time_next": 5} for one in range(1, 10)))
    messages.add_ids(range(10, 16))
    async with broker.client() as client:
        relay = Relay(messages.database, "outbox", client, topic, batch=3)
        assert await relay.run_once() == 6
        assert messages.unsent() == list(range(1, 10))
        assert sorted(one.key for one in await in_topic(client, topic)) == [
            f"outbox:{one}" for one in range(10, 16)
        ]


async def test_a_message_table_says_which_columns_count(
    broker: EmbeddedBroker, database_url: str, topic: str
) -> None:
    columns = [sa.Column(name, sa.String(50)) for name in ("message", "tenant", "secret")]
    settings = MessageSettings(columns=("id", "message", "tenant"))
    with MessageTable(database_url, "mails").create(columns, settings) as table:
        with table.database.begin() as connection:
            table.send(connection, message="hello", tenant="ada", secret="s")
        async with broker.client() as client:
            assert await Relay(table.database, "mails", client, topic).run_once() == 1
            (sent,) = await in_topic(client, topic)
        assert (sent.body, sent.headers) == (b"hello", {"tenant": "ada"})
        assert table.stats().acked == 1


async def test_large_rows_go_in_several_batches(
    broker: EmbeddedBroker, messages: Messages, topic: str
) -> None:
    messages.add(*({"message": "x" * 32_000} for _ in range(300)))
    async with broker.client() as client:
        relay = Relay(messages.database, "outbox", client, topic)
        assert await relay.run_once() == 300
        assert relay.stats.batches >= 3
        await check_once(client, topic, messages, range(1, 301))
