"""Queries through the real daemon, the SDK and the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pyarrow.ipc
import pyarrow.parquet
import pytest

import tickwheel
from tests.support.clients.waiting import until
from tests.support.processes.cli_harness import Serve, Shell
from tests.support.processes.daemon_harness import Daemon
from tickwheel.errors import BadArgument, BadQuery, QueryFailed, QueryTimeout, QueryUnavailable

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "query.md"
ENDLESS = "select sum(a % 7) from range(1000000000000) as numbers(a)"


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Frames are small."""
    return {"max_frame_bytes": 5 << 20}


@pytest.fixture
def daemon(fresh_daemon: Daemon) -> Daemon:
    """Each test has its own."""
    return fresh_daemon


def fill(client: tickwheel.sync.Client) -> None:
    """Ten orders: two acked by `billing`, three more leased at most, five for later."""
    client.send_many("orders", [b"due %d" % n for n in range(5)], headers={"customer": "ada"})
    client.send_many(
        "orders", [b"later %d" % n for n in range(5)], keys=[f"k{n}" for n in range(5)], delay_ms=3_600_000
    )
    with client.subscribe("orders", "billing") as subscription:
        for _ in range(5):
            next(iter(subscription)).ack()


@pytest.mark.promise("V73")
def test_sdk_daemon_and_sync_client(daemon: Daemon) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        before = datetime.now(UTC)
        fill(client)
        result = client.query(
            "select state, count(*) as n, min(time_next) as next from orders group by state order by state"
        )
        assert [column.name for column in result.columns] == ["state", "n", "next"]
        assert [column.type for column in result.columns] == ["VARCHAR", "BIGINT", "TIMESTAMP WITH TIME ZONE"]
        assert [row[:2] for row in result] == [["acked", 5], ["scheduled", 5]]
        assert result.rows[0][2] is None
        assert before + timedelta(minutes=59) < result.rows[1][2] < before + timedelta(minutes=61)
        assert (len(result), result.truncated) == (2, False)
        arrow = client.query_arrow("select state, time_next from orders where key = $key", {"key": "k3"})
        (row,) = arrow.table().to_pylist()
        assert (row["state"], row["time_next"], arrow.truncated) == ("scheduled", result.rows[1][2], False)
        one = client.query(
            "select key, body, \"group\", headers->>'customer' as c from orders where key = 'k3'"
        )
        assert one.dicts() == [{"key": "k3", "body": b"later 3", "group": "billing", "c": None}]
        assert client.query("select count(*) from orders where headers->>'customer' = 'ada'").rows == [[5]]
        assert client.query("select topic, count(*) from messages group by topic").rows == [["orders", 10]]


async def test_async_client(daemon: Daemon, tmp_path: Path) -> None:
    async with tickwheel.Client(daemon.unix_url) as client:
        await client.send("t", b"x", key="k")
        assert (await client.query("select key, body_bytes from t")).rows == [["k", 1]]
        evil = "k' or '1' = '1"
        asked = "select key from t where key = ?"
        assert (await client.query(asked, ["k"])).rows == [["k"]]
        assert (await client.query(asked, [evil])).rows == [], "a parameter is a value, never SQL"
        moment = datetime(2030, 5, 1, 9, tzinfo=UTC)
        given = {"n": 7, "b": b"\x00", "t": moment, "none": None, "several": ["k", "l"]}
        result = await client.query(
            "select $n + 1, $b, $t, $none, (select key from t where key in (select unnest($several)))", given
        )
        assert result.rows == [[8, b"\x00", moment, None, "k"]]
        for parameters in ([], ["k", "l"], {"key": "k"}):
            with pytest.raises(BadQuery):
                await client.query(asked, parameters)
    shell = Shell(tmp_path, daemon.url)
    assert shell.json("query", asked, "--param", "k") == [{"key": "k"}]
    sql = "select key, $n + 1 as n from t where key = $key"
    assert shell.json("query", sql, "--param", "key=k", "--param", "n=4") == [{"key": "k", "n": 5}]


def test_embedded_and_test_broker(tmp_path: Path) -> None:
    with tickwheel.embedded(tmp_path / "own") as broker, broker.sync_client() as client:
        fill(client)
        assert client.query("select count(*) from orders").rows == [[10]]


@pytest.mark.promise("V47")
@pytest.mark.parametrize(
    "sql",
    [
        "selec 1",
        "select * from nowhere",
        "delete from orders",
        "create table x as select 1",
        "select * from read_csv('/etc/passwd')",
        "copy (select 1) to 'out.csv'",
        "attach 'x.db'",
        "select 1; select 2",
    ],
)
async def test_refusals_are_typed_and_leave_the_connection(daemon: Daemon, sql: str) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.send("orders", b"x")
        with pytest.raises(BadQuery) as caught:
            await client.query(sql)
        assert caught.value.code == "bad_query"
        assert "describe messages" in caught.value.advice
        assert (await client.query("select count(*) from orders")).rows == [[1]]


async def test_arguments_are_checked_before_they_are_sent(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        for sql, options in (
            ("", {}),
            ("x" * 100_001, {}),
            ("select 1", {"limit": 0}),
            ("select 1", {"timeout": 0}),
        ):
            with pytest.raises(BadArgument):
                await client.query(sql, **options)


def test_large_results_are_cut(daemon: Daemon) -> None:
    with tickwheel.sync.Client(daemon.url) as client:
        client.send_many("big", [bytes(100_000)] * 100)
        rows = client.query("select id from big order by id", limit=7)
        assert (rows.rows, rows.truncated) == ([[n] for n in range(1, 8)], True)
        bodies = client.query("select body from big")
        assert (len(bodies), bodies.truncated) == (52, True)
        assert client.query("select count(*), sum(body_bytes) from big").rows == [[100, 10_000_000]]


async def test_a_query_that_takes_too_long_is_ended(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        with pytest.raises(QueryTimeout):
            await client.query(ENDLESS, timeout=1)
        await until(lambda: processes_of(daemon) == [])


async def test_delivery_goes_on_during_a_query(daemon: Daemon) -> None:
    """On the very connection that asks; the query is still at work when everything has come."""
    async with tickwheel.Client(daemon.url) as client, anyio.create_task_group() as group:
        group.start_soon(ask_for_ever, client)
        await until(lambda: len(processes_of(daemon)) == 1)
        async with client.subscribe("stream", credit=10) as subscription:
            for number in range(200):
                await client.send("stream", b"%d" % number, delay_ms=5)
                message = await anext(subscription)
                assert message.body == b"%d" % number
                await message.ack()
        assert len(processes_of(daemon)) == 1
        group.cancel_scope.cancel()


async def test_a_query_ends_with_its_client(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client, anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(ask_for_ever, client)
        await until(lambda: len(processes_of(daemon)) == 2)
        group.cancel_scope.cancel()
    await until(lambda: processes_of(daemon) == [])
    async with tickwheel.Client(daemon.url) as client:
        assert (await client.query("select 1")).rows == [[1]]


async def test_a_process_that_dies_is_an_error_of_the_query_alone(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client, anyio.create_task_group() as group:

        async def ask() -> None:
            with pytest.raises(QueryFailed):
                await client.query(ENDLESS, timeout=60)

        group.start_soon(ask)
        await until(lambda: len(processes_of(daemon)) == 1)
        os.kill(processes_of(daemon)[0], 9)
    assert daemon.wait_for_event("query failed")["exit_code"] == -9


def test_without_duckdb_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "without" / "duckdb").mkdir(parents=True)
    (tmp_path / "without" / "duckdb" / "__init__.py").write_text(
        "raise ImportError('No module named duckdb')\n"
    )
    prelude = f"sys.path.insert(0, {str(tmp_path / 'without')!r})"
    with Daemon(tmp_path / "data", prelude=prelude) as daemon, tickwheel.sync.Client(daemon.url) as client:
        with pytest.raises(QueryUnavailable) as caught:
            client.query("select 1")
        assert "pip install 'tickwheel[query]'" in caught.value.advice
        error = Shell(tmp_path, daemon.url).error("query", "select 1", code=1)
        assert error["code"] == "query_unavailable"


async def ask_for_ever(client: tickwheel.Client) -> None:
    await client.query(ENDLESS, timeout=600)


def processes_of(daemon: Daemon) -> list[int]:
    """The running queries of a daemon."""
    parent = daemon.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").parent.parent.glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    found = []
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if b"timerlog.query" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


# The command line ---------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with Serve(tmp_path) as serve:
        shell = Shell(tmp_path, serve.urls[0])
        with tickwheel.sync.Client(serve.urls[0]) as client:
            fill(client)
            client.send("odd", b"\xff\x00", key='blob, "quoted"\n')
        yield shell


@pytest.mark.promise("V51")
def test_cli_prints_tables_json_and_csv(shell: Shell) -> None:
    sql = "select state, count(*) as n, max(time_acked) is null as none, max(key) as k from orders"
    sql += " group by state order by state"
    assert [line.split() for line in shell.text("query", sql).splitlines()] == [
        ["state", "n", "none", "k"],
        ["acked", "5", "false", "-"],
        ["scheduled", "5", "true", "k4"],
    ]
    assert shell.json("query", sql)[0] == {"state": "acked", "n": 5, "none": False, "k": None}
    assert shell.text("query", sql, "--csv") == "state,n,none,k\nacked,5,false,\nscheduled,5,true,k4\n"
    assert shell.json("query", "select key, body from odd") == [
        {"key": 'blob, "quoted"\n', "body": {"base64": "/wA="}}
    ]
    rows = list(csv.reader(io.StringIO(shell.text("query", "select key, body from odd", "--csv"))))
    assert rows == [["key", "body"], ['blob, "quoted"\n', "/wA="]]
    moment = shell.json("query", "select time_next from orders where key = 'k1'")[0]["time_next"]
    assert datetime.fromisoformat(moment) > datetime.now(UTC)


def test_cli_limits_and_errors(shell: Shell) -> None:
    cut = shell.run("query", "select id from orders", "--limit", "3", "--json")
    assert len(json.loads(cut.stdout)) == 3
    assert "more rows" in cut.stderr.decode()
    assert shell.error("query", "drop view orders", code=1)["code"] == "bad_query"
    assert shell.error("query", ENDLESS, "--timeout", "1s", code=1)["code"] == "query_timeout"
    shell.run("query", "select 1", "--json", "--csv", code=2)
    shell.run("query", "select 1", "--arrow", "--csv", code=2)
    done = shell.run("query", "select key from orders where key in ('k3', 'k4')", "--arrow", "--limit", "1")
    assert pyarrow.ipc.open_stream(done.stdout).read_all().to_pydict() == {"key": ["k3"]}
    assert b"more rows" in done.stderr
    shell.run("query", "select 1", "--limit", "0", code=2)


def test_cli_writes_files(shell: Shell) -> None:
    sql = "select key, state, body, time_next from orders order by key"
    expected = shell.json("query", sql)
    for name in ("orders.json", "orders.csv", "orders.parquet", "orders.ARROWS"):
        assert shell.text("query", sql, "--out", name) == ""
    folder = shell.directory
    assert json.loads((folder / "orders.json").read_bytes()) == expected
    assert (folder / "orders.csv").read_text() == shell.text("query", sql, "--format", "csv")
    (parquet, stream) = (
        pyarrow.parquet.read_table(folder / "orders.parquet"),
        pyarrow.ipc.open_stream((folder / "orders.ARROWS").read_bytes()).read_all(),
    )
    assert parquet["key"].to_pylist() == [row["key"] for row in expected]
    assert parquet["time_next"].to_pylist() == stream["time_next"].to_pylist()
    assert stream["body"].to_pylist() == parquet["body"].to_pylist()
    # A file is replaced whole or not at all, and nothing stays beside it.
    done = shell.run("query", sql, "--out", "orders.csv", "--format", "json", "--limit", "2")
    assert json.loads((folder / "orders.csv").read_bytes()) == expected[:2]
    assert b"more rows" in done.stderr
    shell.run("query", "select nothing", "--out", "orders.json", code=1)
    assert json.loads((folder / "orders.json").read_bytes()) == expected
    (folder / "link.json").symlink_to("orders.json")
    shell.run("query", "select 1 as one", "--out", "link.json")
    assert (folder / "link.json").is_symlink()
    assert json.loads((folder / "orders.json").read_bytes()) == [{"one": 1}]
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".orders")]
    # What is no file is written itself.
    os.mkfifo(folder / "pipe")
    pipe = os.open(folder / "pipe", os.O_RDWR)
    shell.run("query", "select 1 as one", "--format", "csv", "--out", "pipe")
    assert os.read(pipe, 100) == b"one\n1\n"
    os.close(pipe)
    for words in (
        ["--out", "orders.txt"],
        ["--out", "orders.csv", "--format", "table"],
        ["--json", "--format", "csv"],
        ["--out", str(folder)],
    ):
        shell.run("query", "select 1", *words, code=2)
    assert shell.run("query", "select 1", "--out", "nowhere/orders.csv", code=None).returncode != 0


def test_cli_on_a_directory(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.run("send", "reminders", "call Ada", "--in", "1h", "--data", "box")
    sql = "select decode(body) as body, state from reminders"
    assert shell.json("query", sql, "--data", "box") == [{"body": "call Ada", "state": "scheduled"}]


def test_the_commands_of_the_page_work(shell: Shell) -> None:
    commands = re.findall(r"^tickwheel (query .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) >= 6
    for command in commands:
        shell.run(*shlex.split(command))


def test_the_statements_of_the_page_work(shell: Shell) -> None:
    blocks = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    statements = [part.strip() for block in blocks for part in block.split(";") if part.strip()]
    assert len(statements) >= 2
    for statement in statements:
        shell.run("query", statement)


async def test_ordering_keys_and_shards(daemon: Daemon) -> None:
    async with tickwheel.Client(daemon.url) as client:
        await client.create_topic("sharded", shards=2)
        await client.send_many("sharded", [b"body"] * 20, order_keys=[f"o{n}" for n in range(20)])
        found = await client.query("select order_key, body, topic from sharded")
        assert sorted(row[0] for row in found.rows) == sorted(f"o{n}" for n in range(20))
        assert {row[1] for row in found.rows} == {b"body"}
        assert {row[2] for row in found.rows} == {"sharded/-80", "sharded/80-"}
