"""Delivery semantics from the command line: topics, receipts, changes, transactions, through the real daemon."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import ANY

import pytest

from tests.support.processes.cli_harness import Shell
from tickwheel import sync

USAGE = 2
FAILED = 1


@pytest.fixture(scope="module")
def daemon_settings() -> dict[str, Any]:
    """Prepared messages are asked about soon."""
    return {"check_after": "100ms"}


def parsed(shell: Shell, *arguments: str, stdin: bytes = b"") -> object:
    """What a command prints with --json."""
    return json.loads(shell.text(*arguments, "--json", stdin=stdin))


def test_topics(shell: Shell) -> None:
    made = parsed(
        shell, "topics", "create", "bills", "--ack-wait", "10s", "--max-attempts", "5", "--rate", "50"
    )
    assert isinstance(made, dict)
    assert made["settings"] == {"ack_wait_ms": 10_000, "max_attempts": 5, "rate": 50}
    shown = shell.text(
        "topics", "set", "bills", "--spread", "1m", "--unset", "rate", "--unset", "max-attempts"
    )
    assert "spread          1m\n" in shown
    assert "rate            none\n" in shown
    assert "max_backoff     1h  (the broker's)" in shown
    assert "purge_after     0s\n" in shell.text("topics", "set", "bills", "--purge-after", "0s")
    assert '"max_attempts":3,' in shell.text("topics", "set", "bills", "--max-attempts", "3", "--json")
    assert "(paused)" in shell.text("topics", "pause", "bills")
    assert "bills (paused)" in shell.text("topics")
    assert "(paused)" not in shell.text("topics", "resume", "bills")
    assert shell.text("topics", "show", "bills").startswith("bills\n")
    bad = shell.run("topics", "set", "bills", "--min-backoff", "1h", "--max-backoff", "1s", code=FAILED)
    assert b"below min_backoff" in bad.stderr
    assert b"nothing to change" in shell.run("topics", "set", "bills", code=USAGE).stderr
    assert b"topic_exists" in shell.run("topics", "create", "bills", code=FAILED).stderr
    assert "deleted bills" in shell.text("topics", "delete", "bills", "--yes")
    assert b"unknown_topic" in shell.run("topics", "show", "bills", code=FAILED).stderr


def test_receive_takes_no_attempt_of_what_it_does_not_print(shell: Shell) -> None:
    shell.text("topics", "create", "few", "--max-attempts", "1")
    shell.text("send", "few", "--from-file", "-", stdin=b'{"body": "a"}\n{"body": "b"}\n{"body": "c"}\n')
    taken = [shell.text("receive", "few", "--count", "1", "--raw") for _ in range(3)]
    assert sorted(text.strip() for text in taken) == ["a", "b", "c"]
    assert "few.dead" not in shell.text("topics")


def test_the_comment_of_a_vitess_table(shell: Shell) -> None:
    comment = "vitess_message,vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=10,vt_cache_size=99"
    refused = shell.run("topics", "create", "vt", "--vitess", comment, code=FAILED)
    assert b"lacks vt_poller_interval" in refused.stderr
    made = parsed(shell, "topics", "create", "vt", "--vitess", comment + ",vt_poller_interval=1")
    assert isinstance(made, dict)
    assert made["settings"]["cache_size"] == 99


def test_shards_order_keys_levels_and_start(shell: Shell) -> None:
    shell.run("topics", "create", "events", "--shards", "2")
    for number in range(8):
        shell.run("send", "events", f"e{number}", "--key", f"k{number}", "--order-key", "one")
    (shard,) = [one for one in ("-80", "80-") if _count(shell, f"events/{one}")]
    received = shell.text("receive", "events", "--group", "g", "--shard", shard, "--count", "8", "--raw")
    assert received.split() == [f"e{number}" for number in range(8)], "one ordering key: one shard, in order"
    assert (
        b"unknown_shard"
        in shell.run("receive", "events", "--shard", "80", "--count", "1", code=FAILED).stderr
    )
    sent = shell.text("send", "levels", "later", "--delay-level", "3").strip()
    found = parsed(shell, "browse", "levels")
    assert isinstance(found, list)
    assert str(found[0]["id"]) == sent
    assert found[0]["deliver_at_ms"] - found[0]["created_ms"] == 10_000
    shell.run("send", "history", "old", "--at", "2020-01-01T00:00Z")
    shell.run("receive", "history", "--group", "new", "--start", "latest", "--timeout", "300ms")
    assert b"is not a time" in shell.run("receive", "history", "--start", "noon", code=USAGE).stderr


def _count(shell: Shell, topic: str) -> int:
    topics = parsed(shell, "topics", "list")
    assert isinstance(topics, list)
    return next(int(one["messages"]) for one in topics if one["name"] == topic)


def test_a_list_that_is_cut_says_so(shell: Shell) -> None:
    for number in range(3):
        shell.run("send", "listed", str(number))
    found = shell.run("browse", "listed", "--limit", "2")
    (place,) = re.findall(r"There are more: --after (\d+), or a higher --limit\.", found.stderr.decode())
    rest = shell.run("browse", "listed", "--limit", "2", "--after", place)
    assert rest.stderr == b""
    assert len((found.stdout + rest.stdout).decode().splitlines()) == 2 + 3
    shell.run("topics", "create", "broken", "--max-attempts", "1")
    with (
        sync.Client(shell.environment["TICKWHEEL_URL"]) as client,
        client.subscribe("broken", "g") as messages,
    ):
        client.send_many("broken", [b"x"] * 3)
        for _, message in zip(range(3), messages, strict=False):
            message.nack(give_up=True, error="no")
    assert b"There are more: --after " in shell.run("dead", "list", "broken", "--limit", "2").stderr
    assert shell.run("dead", "list", "broken", "--limit", "3").stderr == b""
    assert b"There are more letters" in shell.run("dead", "replay", "broken", "--limit", "2").stderr
    assert shell.run("dead", "replay", "broken", "--limit", "1").stderr == b""
    assert b"There may be earlier lines" in shell.run("audit", "--limit", "1").stderr
    assert b"There may be later lines" in shell.run("audit", "--limit", "1", "--after", "1").stderr


def test_dead_letters(shell: Shell) -> None:
    shell.run("topics", "create", "fragile", "--max-attempts", "1", "--ack-wait", "50ms")
    shell.run("send", "fragile", "broken")
    shell.run("receive", "fragile", "--group", "g", "--count", "1", "--no-ack")
    listed = ""
    for _ in range(100):
        listed = shell.run("dead", "list", "fragile", code=None).stdout.decode()
        if "broken" in listed:
            break
    assert [line.split() for line in listed.splitlines()] == [
        ["id", "group", "attempts", "error", "original", "key", "body"],
        [ANY, "g", "1", "no", "ack", ANY, "-", "broken"],
    ]
    dead = listed.split()[12]
    assert shell.text("show", dead).startswith(f"message {dead} of fragile, dead\n")
    assert shell.text("dead", "replay", "fragile").strip() == "replayed: 1"
    assert shell.text("dead", "list", "fragile") == "fragile has no dead letters.\n"
    assert "0 messages match" in shell.text("dead", "purge", "fragile", "--yes")


def test_changes_by_filter(shell: Shell) -> None:
    for number in range(6):
        shell.run("send", "plans", f"p{number}", "--in", "1h", "--priority", str(number))
    assert shell.text("cancel", "plans", "--priority-max", "1", "--dry-run") == "2 messages match\n"
    assert parsed(shell, "cancel", "plans", "--priority-max", "1") == {
        "matched": 2,
        "results": {"cancelled": 2},
    }
    assert "rescheduled: 4" in shell.text("reschedule", "plans", "--all", "--in", "0s")
    assert len(shell.text("receive", "plans", "--group", "g", "--count", "4", "--raw").split()) == 4
    assert "redelivered: 4" in shell.text("redeliver", "plans", "--state", "acked", "--acked", "--group", "g")
    assert len(shell.text("receive", "plans", "--group", "g", "--count", "4", "--raw").split()) == 4
    assert b"exactly one topic" in shell.run("cancel", "17", "--all", code=USAGE).stderr
    assert b"a new time is needed" in shell.run("reschedule", "plans", "--all", code=USAGE).stderr


def test_a_transaction_is_all_or_nothing(shell: Shell) -> None:
    shell.run("send", "alarms", "wake", "--in", "1h", "--key", "a1")
    good = b'{"send": {"topic": "bed", "body": "made", "in": "1h"}}\n{"cancel": {"topic": "alarms", "key": "a1"}}\n'
    assert shell.text("transaction", "-", stdin=good).startswith("committed; 1 send\n")
    refused = shell.run("transaction", "-", stdin=good, code=FAILED)
    assert b"transaction_refused" in refused.stderr
    found = parsed(shell, "browse", "bed")
    assert isinstance(found, list)
    assert len(found) == 1
    bad = b'{"sned": {}}\n\n{"cancel": {"id": 1, "in": "1h"}}\n{"send": {"topic": "bed"}}\nnone\n'
    wrong = shell.error("transaction", "-", stdin=bad, code=FAILED)
    assert wrong["code"] == "bad_line"
    assert [line.split(":")[0] for line in wrong["message"].splitlines()] == [
        f"line {n}" for n in (1, 3, 4, 5)
    ]
    assert '"cancel" has no field "in"' in wrong["message"]
    assert '"send" needs "body"' in wrong["message"]


def test_prepared_messages(shell: Shell) -> None:
    first = shell.text("prepared", "send", "orders", "paid", "--key", "o1").strip()
    second = shell.text("prepared", "send", "orders", "cancelled").strip()
    assert f"{first}: committed as " in shell.text("prepared", "commit", first)
    assert shell.text("prepared", "rollback", second) == f"{second}: rolled back\n"
    shell.run("prepared", "send", "orders", "later", "--key", "o3", "--check-after", "1h")
    waits = [one["deliver_at_ms"] - one["created_ms"] for one in shell.json("browse", "orders.prepared")]
    assert 3_600_000 in waits
    by_key = ("--topic", "orders", "--key", "o3")
    assert "o3: committed as " in shell.text("prepared", "commit", *by_key)
    answer = shell.run("prepared", "rollback", *by_key, code=FAILED).stdout
    assert answer == b"o3: already committed\n"
    assert shell.text("receive", "orders", "--count", "1", "--raw") == "paid\n"
