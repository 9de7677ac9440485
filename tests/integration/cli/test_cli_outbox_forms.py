"""`tickwheel outbox relay`, `queue` and `keys`, on an SQLite file in the current directory."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.support.processes.cli_harness import PATIENCE_S, Serve, Shell

USAGE, FAILED, TIMED_OUT = 2, 1, 3


def test_a_relay_moves_what_is_there_to_the_broker_once(local_shell: Shell) -> None:
    local_shell.run("outbox", "init", "mails", "--column", "message:text", "--column", "tenant:integer")
    local_shell.run("outbox", "send", "mails", "message=now", "tenant=7")
    local_shell.run("outbox", "send", "mails", "message=later", "--in", "1h", "--priority", "9")
    relay = ("outbox", "relay", "--table", "mails", "--to", "mails", "--once", "--data", "data")
    assert "moved 2 messages" in local_shell.text(*relay)
    assert local_shell.json(*relay)["moved"] == 0
    (message,) = [
        json.loads(line)
        for line in local_shell.text(
            "receive", "mails", "--count", "1", "--data", "data", "--json"
        ).splitlines()
    ]
    assert (message["body"], message["headers"]) == ("now", {"tenant": 7})
    (later,) = local_shell.json("browse", "mails", "--state", "scheduled", "--data", "data")
    assert later["priority"] == 9
    assert [one["acked"] for one in local_shell.json("outbox", "stats")] == [2]
    refused = local_shell.error(
        "outbox", "relay", "--table", "none", "--to", "x", "--once", "--data", "data", code=FAILED
    )
    assert refused["code"] == "table_missing"


def test_a_relay_between_a_named_database_and_a_named_broker(local_shell: Shell, tmp_path: Path) -> None:
    database = ("--database", f"sqlite:///{tmp_path / 'shop.db'}")
    local_shell.run("outbox", "init", "mails", *database)
    local_shell.run("outbox", "send", "mails", "message=hello", *database)
    with Serve(tmp_path) as broker:
        relay = ("outbox", "relay", "--table", "mails", "--to", "mails", "--url", broker.urls[0], *database)
        assert local_shell.json(*relay, "--once")["moved"] == 1
        running = local_shell.popen(*relay, "--json")
        try:
            assert running.stderr is not None
            assert running.stderr.readline() == b"Relaying until Ctrl-C.\n"
            local_shell.run("outbox", "send", "mails", "message=again", *database)
            received = ("receive", "mails", "--count", "2", "--raw", "--url", broker.urls[0])
            assert local_shell.text(*received) == "hello\nagain\n"
            running.send_signal(signal.SIGTERM)
            output, errors = running.communicate(timeout=PATIENCE_S)
        finally:
            if running.poll() is None:
                running.kill()
                running.communicate(timeout=PATIENCE_S)
        assert (running.returncode, errors, json.loads(output)["moved"]) == (0, b"", 1)
    own = local_shell.error(
        "outbox",
        "relay",
        "--table",
        "mails",
        "--to",
        "tickwheel.relay",
        "--data",
        "d",
        *database,
        code=USAGE,
    )
    assert own["code"] == "bad_argument"


def test_what_a_database_refuses_is_explained(local_shell: Shell) -> None:
    local_shell.run("outbox", "init", "mails")
    local_shell.run("outbox", "send", "mails", "id=1", "message=x")
    again = local_shell.error("outbox", "send", "mails", "id=1", "message=x", code=FAILED)
    assert (again["code"], "UNIQUE" in again["message"]) == ("database_refused", True)
    assert local_shell.error("outbox", "keys", "scan", code=FAILED)["code"] == "table_missing"


def test_a_queue(local_shell: Shell) -> None:
    assert "queue jobs in sqlite:///app.db" in local_shell.text("outbox", "queue", "init", "jobs")
    assert local_shell.text("outbox", "queue", "put", "jobs", "one", "two") == "1\n2\n"
    assert local_shell.text("outbox", "queue", "put", "jobs", stdin=b"three\nfour\n") == "3\n4\n"
    assert local_shell.text("outbox", "queue", "take", "jobs", "--count", "2", "--raw") == "one\ntwo\n"
    lines = local_shell.text("outbox", "queue", "take", "jobs", "--count", "1", "--no-ack").splitlines()
    assert lines == ["3  three"]
    again = json.loads(local_shell.text("outbox", "queue", "take", "jobs", "--count", "1", "--json"))
    assert (again["id"], again["body"], again["epoch"]) == (3, "three", 2)
    counts = local_shell.json("outbox", "queue", "stats", "jobs")
    assert (counts["ready"], counts["leased"]) == (1, 0)
    assert "ready    1" in local_shell.text("outbox", "queue", "stats", "jobs")
    late = local_shell.error(
        "outbox", "queue", "take", "jobs", "--count", "2", "--timeout", "300ms", code=TIMED_OUT
    )
    assert "1 of 2 messages" in late["message"]
    assert local_shell.error("outbox", "queue", "put", "none", "x", code=FAILED)["code"] == "table_missing"


def test_keys(local_shell: Shell) -> None:
    assert "key space tickwheel_keys" in local_shell.text("outbox", "keys", "init", "--split", "m")
    local_shell.run("outbox", "keys", "put", "users/17", "ada")
    local_shell.run("outbox", "keys", "put", "users/18", "grace")
    assert local_shell.text("outbox", "keys", "get", "users/17") == "ada\n"
    assert local_shell.text("outbox", "keys", "scan", "users/") == "users/17\tada\nusers/18\tgrace\n"
    assert local_shell.json("outbox", "keys", "increment", "visits", "--by", "3") == {
        "key": "visits",
        "value": 3,
    }
    assert local_shell.text("outbox", "keys", "delete", "users/18") == "deleted\n"
    assert local_shell.error("outbox", "keys", "get", "users/18", code=FAILED)["code"] == "no_such_key"
    assert (
        local_shell.error("outbox", "keys", "increment", "users/17", code=FAILED)["code"] == "not_an_integer"
    )

    local_shell.run("outbox", "keys", "send", "users/17", "hello", "--sender", "users/1")
    assert local_shell.text("outbox", "keys", "reap", "users/17") == ""
    services = local_shell.popen("outbox", "keys", "run", "--json")
    try:
        reaped: list[str] = []
        for _ in range(200):
            reaped = local_shell.text("outbox", "keys", "reap", "users/17", "--json").splitlines()
            if reaped:
                break
        services.send_signal(signal.SIGINT)
        output, errors = services.communicate(timeout=PATIENCE_S)
    finally:
        if services.poll() is None:
            services.kill()
            services.communicate(timeout=PATIENCE_S)
    assert [(json.loads(line)["sender"], json.loads(line)["body"]) for line in reaped] == [
        ("users/1", "hello")
    ]
    assert (services.returncode, errors, json.loads(output)) == (0, b"", {"moved": 1, "executed": 0})
    stats = local_shell.json("outbox", "keys", "stats")
    assert (stats["keys"], stats["inbox_messages"], stats["failed_operations"]) == (2, 0, 0)
    assert "none" in local_shell.text("outbox", "keys", "failed")
    assert local_shell.json("outbox", "keys", "failed", "--retry") == {"retried": 0}
    both = ("--no-dispatcher", "--no-executor")
    assert b"nothing to run" in local_shell.run("outbox", "keys", "run", *both, code=USAGE).stderr
