"""Messages as SQL tables, through the real daemon and the command line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

import tickwheel
from tests.integration.cli_harness import Shell
from tests.integration.daemon_harness import PATIENCE_S, Daemon
from tickwheel.errors import BadQuery

pytest.importorskip("duckdb", reason="queries need the extra tickwheel[query]")

AT = datetime(2031, 5, 1, 7, tzinfo=UTC)
USAGE, FAILED = 2, 1


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("query") / "data", segment_bytes="64MiB") as running:
        yield running


async def test_each_state_and_column(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic("orders", max_attempts=2)
        sent = await client.send_many(
            "orders", [b"acked", b"leased", b"nacked", b"dead"], priority=[1, 2, 3, 4]
        )
        async with client.subscribe("orders", "g", credit=100) as subscription:
            held = {}
            while len(held) < 4:
                message = await subscription.receive(PATIENCE_S)
                assert message is not None
                held[message.body] = message
            await held[b"acked"].ack(confirm=True)
            await held[b"nacked"].nack(timedelta(hours=1))
            await held[b"dead"].nack(0)
            again = await subscription.receive(PATIENCE_S)
            assert again is not None
            assert await again.nack() == "dead"
            later = await client.send(
                "orders", b"later", deliver_at=AT, key="k", headers={"n": 1}, order_key="o"
            )
            gone = await client.send("orders", b"gone", deliver_at=AT)
            await client.cancel(id=gone.id)
            result = await client.query("select * from orders order by id")
    rows = {row["body"]: row for row in result.dicts()}
    assert {body: row["state"] for body, row in rows.items()} == {
        b"acked": "acked",
        b"leased": "leased",
        b"nacked": "waiting",
        b"dead": "dead",
        b"later": "scheduled",
        b"gone": "cancelled",
    }
    assert [row["id"] for row in result.dicts()] == [*(one.id for one in sent), later.id, gone.id]
    scheduled = rows[b"later"]
    assert (scheduled["key"], scheduled["order_key"], scheduled["headers"]) == ("k", "o", '{"n":1}')
    assert scheduled["deliver_at"] == scheduled["time_next"] == AT
    assert (scheduled["topic"], scheduled["group"], scheduled["body_bytes"]) == ("orders", "g", 5)
    assert [rows[body]["priority"] for body in (b"acked", b"leased")] == [1, 2]
    assert (rows[b"dead"]["epoch"], rows[b"dead"]["attempts"]) == (2, 2)
    assert rows[b"acked"]["time_acked"] is not None
    assert rows[b"acked"]["time_next"] is None
    assert rows[b"nacked"]["time_next"] > rows[b"leased"]["time_next"]


async def test_grouping_joins_and_all_topics(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.send_many(
            "left-side", [b"x"] * 5, keys=[f"k{n}" for n in range(5)], delay=timedelta(hours=1)
        )
        await client.send_many(
            "right-side", [b"y"] * 3, keys=[f"k{n}" for n in range(3)], delay=timedelta(hours=1)
        )
        counted = await client.query('select state, count(*), min(time_next) from "left-side" group by state')
        assert counted.rows[0][:2] == ["scheduled", 5]
        joined = await client.query('select count(*) from "left-side" l join "right-side" r on l.key = r.key')
        assert joined.rows == [[3]]
        itself = await client.query('select count(*) from "left-side" a join "left-side" b on a.id = b.id')
        assert itself.rows == [[5]]
        every = await client.query("select topic, count(*) as n, sum(priority) from messages group by topic")
        assert {row["topic"]: row["n"] for row in every.dicts()}["right-side"] == 3
        limited = await client.query("select id from messages", limit=2)
        assert (len(limited.rows), limited.truncated) == (2, True)


@pytest.mark.parametrize(
    "sql",
    [
        "selekt 1",
        "select * from nowhere",
        "select 1; select 2",
        "drop table messages",
        "create table t (a int)",
        "copy (select 1) to 'here.csv'",
        "attach 'here.db'",
        "set enable_external_access = true",
        "select * from read_csv('/etc/hostname')",
        "select * from read_blob('/etc/hostname')",
        "",
    ],
)
async def test_only_one_harmless_select(daemon: Daemon, sql: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic(f"t{abs(hash(sql))}")
        with pytest.raises((BadQuery, tickwheel.TickwheelError)) as caught:
            await client.query(sql)
        assert caught.value.code in ("bad_query", "bad_request")


async def test_delivery_goes_on_beside_a_heavy_query(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.send_many("heavy", [b"x"] * 20_000, delay=timedelta(hours=1))
        finished = trio.Event()

        async def ask() -> None:
            result = await client.query(
                "select count(*) from heavy a, heavy b where a.id % 97 = b.id % 89", timeout=60_000
            )
            assert result.rows[0][0] > 0
            finished.set()

        async with trio.open_nursery() as nursery, client.subscribe("light") as subscription:
            nursery.start_soon(ask)
            delivered = 0
            while not finished.is_set() or not delivered:
                await client.send("light", b"x")
                message = await subscription.receive(PATIENCE_S)
                assert message is not None
                await message.ack()
                delivered += 1
            nursery.cancel_scope.cancel()


def test_from_the_command_line(daemon: Daemon, tmp_path: Path) -> None:
    shell = Shell(tmp_path, daemon.url)
    for number in range(3):
        shell.run("send", "rows", f"body {number}", "--in", "1h", "--priority", str(number))
    sql = "select priority, body from rows order by priority"
    assert shell.text("query", sql).split("\n")[1].split() == ["0", "body", "0"]
    assert json.loads(shell.text("query", sql, "--json"))[2] == {"priority": 2, "body": "body 2"}
    assert list(csv.reader(shell.text("query", sql, "--csv").splitlines())) == [
        ["priority", "body"],
        *([str(number), f"body {number}"] for number in range(3)),
    ]
    assert b"there are more rows" in shell.run("query", sql, "--limit", "1").stderr
    assert b"bad_query" in shell.run("query", "select nothing from rows", code=FAILED).stderr
    assert b"exclude each other" in shell.run("query", sql, "--csv", "--json", code=USAGE).stderr
