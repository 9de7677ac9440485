"""`tickwheel outbox` on the embedded default: an SQLite file in the current directory."""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.processes.cli_harness import PATIENCE_S, Shell

USAGE, FAILED, TIMED_OUT = 2, 1, 3


@pytest.mark.promise("V46", "V87")
def test_a_message_table_from_the_command_line(local_shell: Shell) -> None:
    assert "reminders in sqlite:///app.db: made" in local_shell.text("outbox", "init", "reminders")
    later = local_shell.json("outbox", "send", "reminders", "message=later", "--in", "1h")["id"]
    now = local_shell.text("outbox", "send", "reminders", "message=now").strip()
    assert int(now) == later + 1
    lines = local_shell.text("outbox", "stream", "reminders", "--count", "1").splitlines()
    assert lines[0].split("\t") == ["due", "id", "message"]
    assert lines[1].split("\t")[1:] == [now, "now"]
    (row,) = local_shell.json("outbox", "stats")
    assert (row["table"], row["due"], row["waiting"], row["acked"]) == ("reminders", 0, 1, 1)
    assert row["next_due_ns"] > 0
    assert "reminders    0        1      1" in local_shell.text("outbox", "stats")
    short = local_shell.error(
        "outbox", "stream", "reminders", "--count", "1", "--timeout", "100ms", code=TIMED_OUT
    )
    assert short["code"] == "timed_out"


@pytest.mark.promise("V51")
def test_settings_columns_and_what_is_there_already(local_shell: Shell) -> None:
    columns = ("--column", "tenant_id:integer", "--column", "body:json", "--column", "urgent:boolean")
    made = local_shell.json("outbox", "init", "mails", *columns, "--ack-wait", "10s", "--max-backoff", "0s")
    assert made["columns"] == ["id", "tenant_id", "body", "urgent"]
    assert made["comment"].startswith("tickwheel_message,vt_ack_wait=10,vt_purge_after=86400,")
    assert local_shell.json("outbox", "init", "mails")["result"] == "unchanged"
    changed = local_shell.json("outbox", "init", "mails", "--purge-after", "1h", "--batch-size", "7")
    assert changed["result"] == "changed"
    assert "vt_ack_wait=10,vt_purge_after=3600,vt_batch_size=7," in changed["comment"]
    local_shell.run(
        "outbox", "send", "mails", "tenant_id=7", 'body={"to": "ada"}', "urgent=true", "--priority", "3"
    )
    message = json.loads(local_shell.text("outbox", "stream", "mails", "--count", "1", "--json"))
    assert (message["tenant_id"], message["body"], message["urgent"]) == (7, {"to": "ada"}, True)
    assert (message["priority"], message["epoch"]) == (3, 1)


def test_a_message_that_is_given_back_comes_again(local_shell: Shell) -> None:
    local_shell.run("outbox", "init", "mails")
    local_shell.run("outbox", "send", "mails", "message=hello")
    local_shell.run("outbox", "stream", "mails", "--count", "1", "--nack", "10ms")
    again = json.loads(local_shell.text("outbox", "stream", "mails", "--count", "1", "--json"))
    assert (again["message"], again["epoch"]) == ("hello", 2)


@pytest.mark.promise("V47")
def test_plain_sql_counts_and_a_signal_ends_a_stream_in_order(local_shell: Shell, tmp_path: Path) -> None:
    local_shell.run("outbox", "init", "mails")
    stream = local_shell.popen("outbox", "stream", "mails", "--json")
    try:
        with closing(sqlite3.connect(tmp_path / "app.db", timeout=PATIENCE_S)) as connection:
            connection.execute("insert into mails(message) values ('by hand')")
            connection.commit()
        assert stream.stdout is not None
        assert json.loads(stream.stdout.readline())["message"] == "by hand"
        stream.send_signal(signal.SIGTERM)
        _, errors = stream.communicate(timeout=PATIENCE_S)
    finally:
        if stream.poll() is None:
            stream.kill()
            stream.communicate(timeout=PATIENCE_S)
    assert (stream.returncode, errors) == (0, b"")
    assert local_shell.json("outbox", "stats")[0]["acked"] == 1


def test_an_existing_table_is_adopted(local_shell: Shell, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute(
            "create table old("
            "id text primary key, priority integer, epoch bigint, time_next bigint, time_acked bigint, body)"
        )
        connection.execute("create table plain(id integer primary key, text)")
        connection.commit()
    assert local_shell.error("outbox", "init", "old", code=FAILED)["code"] == "bad_table"
    assert local_shell.json("outbox", "init", "old", "--adopt")["result"] == "adopted"
    refused = local_shell.error("outbox", "init", "plain", "--adopt", code=FAILED)
    assert (refused["code"], "lacks the columns priority" in refused["message"]) == ("bad_table", True)
    assert local_shell.error("outbox", "init", "none", "--adopt", code=FAILED)["code"] == "table_missing"
    assert [one["table"] for one in local_shell.json("outbox", "stats")] == ["old"]


def test_mistakes_are_explained(local_shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MySQLdb", None)  # Django's tests have PyMySQL there
    assert local_shell.error("outbox", "stats", code=FAILED)["code"] == "no_database"
    assert not (tmp_path / "app.db").exists()
    local_shell.run("outbox", "init", "mails", "--column", "size:integer")
    assert local_shell.error("outbox", "stream", "other", code=FAILED)["code"] == "table_missing"
    assert local_shell.error("outbox", "send", "mails", "colour=red", code=USAGE)["code"] == "bad_argument"
    assert (
        b"is no value for size" in local_shell.run("outbox", "send", "mails", "size=big", code=USAGE).stderr
    )
    assert b"COLUMN=VALUE" in local_shell.run("outbox", "send", "mails", "hello", code=USAGE).stderr
    assert b"NAME:TYPE" in local_shell.run("outbox", "init", "x", "--column", "a", code=USAGE).stderr
    for url, code in (
        ("nonsense", "bad_database"),
        ("oracle://x", "bad_database"),
        ("sqlite://", "bad_database"),
        ("postgresql://nobody@127.0.0.1:1/x", "database_unavailable"),
        ("mariadb://nobody@127.0.0.1:1/x", "database_unavailable"),
    ):
        assert local_shell.error("outbox", "stats", "--database", url, code=FAILED)["code"] == code, url
    missing = local_shell.error(
        "outbox", "stats", "--database", "mysql+mysqldb://x@127.0.0.1:1/x", code=FAILED
    )
    assert (missing["code"], "pip install 'mysqlclient'" in missing["advice"]) == ("driver_missing", True)
