"""Order, groups, receipts and changes of mind from the command line, through the real daemon."""

from __future__ import annotations

import json
import time
from itertools import count

import pytest

from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S
from tickwheel.protocol.receipts import Receipt, decode_receipt

pytestmark = pytest.mark.shared_daemon

FAILED, TIMED_OUT = 1, 3
_numbers = count()


def send_all(shell: Shell, topic: str, *messages: dict[str, object]) -> None:
    """Sends messages as lines of a file, and waits until those that are due are in their topic."""
    stdin = "\n".join(map(json.dumps, messages)).encode()
    assert shell.json("send", topic, "--from-file", "-", stdin=stdin)["sent"] == len(messages)
    end = time.monotonic() + PATIENCE_S
    due = len([one for one in messages if "in" not in one])
    while next(one for one in shell.json("topics") if one["name"] == topic)["ready"] < due:
        assert time.monotonic() < end


def receive(shell: Shell, topic: str, count: int, *flags: str) -> list[str]:
    """The bodies of the next messages."""
    return shell.text("receive", topic, "--count", str(count), "--raw", *flags).split()


def test_low_numbers_go_first_and_the_oldest_has_a_share(shell: Shell, topic: str) -> None:
    old = [{"body": "report", "priority": 200}] * 20
    send_all(shell, topic, *old, *[{"body": "alarm", "priority": 1}] * 40)
    first = receive(shell, topic, 16)
    assert first[:7] == ["alarm"] * 7
    assert first.count("report") == 2, "one in eight"


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", ["1", "2", "3"]), ("2020-06-01T00:00Z", ["2", "3"]), ("latest", ["3"])],
)
def test_where_a_new_group_starts(shell: Shell, topic: str, start: str, expected: list[str]) -> None:
    send_all(shell, topic, {"body": "1", "at": "2020-01-01T00:00Z"})
    send_all(shell, topic, {"body": "2", "at": "2021-01-01T00:00Z"})
    shell.run("receive", topic, "--group", "g", "--start", start, "--no-ack", "--timeout", "300ms")
    shell.run("send", topic, "3")
    assert sorted(receive(shell, topic, len(expected), "--group", "g")) == expected
    assert shell.text("receive", topic, "--group", "g", "--timeout", "300ms") == ""


def test_two_groups_get_everything_and_two_of_one_group_share(shell: Shell, topic: str) -> None:
    bodies = [str(number) for number in range(10)]
    send_all(shell, topic, *({"body": body} for body in bodies))
    assert receive(shell, topic, 4, "--group", "a") == bodies[:4]
    assert receive(shell, topic, 6, "--group", "a") == bodies[4:]
    assert receive(shell, topic, 10, "--group", "b") == bodies


def test_one_ordering_key_waits_for_its_first_message(shell: Shell, topic: str) -> None:
    for body in ("created", "paid"):
        shell.run("send", topic, body, "--order-key", "customer-7")
    assert receive(shell, topic, 1, "--nack", "2s") == ["created"]
    assert receive(shell, topic, 2) == ["created", "paid"], "also across a failure"


@pytest.mark.promise("S20")
def test_giving_back_with_a_delay_and_a_reason(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", topic, "--max-attempts", "2")
    shell.run("send", topic, "x")
    started = time.monotonic()
    assert receive(shell, topic, 1, "--nack", "2s", "--error", "not yet") == ["x"]
    (line,) = shell.text(
        "receive", topic, "--count", "1", "--json", "--nack", "0s", "--error", "never"
    ).splitlines()
    assert time.monotonic() - started >= 2
    assert json.loads(line)["epoch"] == 2
    (letter,) = shell.json("dead", "list", topic)
    story = letter["headers"]["tickwheel-dead"]
    assert [error for _, _, error in story["history"]] == ["not yet", "never"]
    assert shell.json("dead", "replay", topic, str(letter["id"])) == {"replayed": 1}
    assert receive(shell, topic, 1) == ["x"]


def test_giving_up_and_giving_back_uncounted(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", topic, "--max-attempts", "1")
    shell.run("send", topic, "x")
    for _ in range(2):
        assert receive(shell, topic, 1, "--nack", "0s", "--uncounted") == ["x"]
    assert shell.json("dead", "list", topic) == []
    assert receive(shell, topic, 1, "--give-up", "--error", "no such customer") == ["x"]
    (letter,) = shell.json("dead", "list", topic)
    assert letter["headers"]["tickwheel-dead"]["error"] == "no such customer"


def test_dead_letters_are_dropped_for_good(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", topic, "--max-attempts", "1")
    send_all(shell, topic, *[{"body": "x"}] * 3)
    assert len(receive(shell, topic, 3, "--nack", "0s")) == 3
    assert shell.text("dead", "purge", topic, "--dry-run") == "3 messages match\n"
    assert shell.json("dead", "purge", topic, "--yes")["matched"] == 3
    assert shell.json("dead", "list", topic) == []
    assert shell.json("dead", "replay", topic) == {}


def test_what_was_delivered_can_only_be_stopped(shell: Shell, topic: str) -> None:
    sent = shell.text("send", topic, "x", "--key", "k").strip()
    assert receive(shell, topic, 1, "--nack", "1h") == ["x"]
    assert shell.run("cancel", sent, code=FAILED).stdout.decode() == f"{sent}: already delivered\n"
    moved = shell.run("reschedule", topic, "--key", "k", "--in", "0s", code=FAILED)
    assert moved.stdout == b"k: already delivered\n"
    assert shell.text("cancel", sent, "--stop") == f"{sent}: stopped\n"
    assert shell.text("cancel", sent) == f"{sent}: already cancelled\n"


def test_redeliver_by_id_by_key_and_at_a_time(shell: Shell, topic: str) -> None:
    sent = [shell.text("send", topic, body, "--key", body).strip() for body in ("a", "b")]
    assert receive(shell, topic, 2, "--nack", "1h") == ["a", "b"]
    again = shell.json("redeliver", *sent)
    assert [one["result"] for one in again] == ["redelivered"] * 2
    assert receive(shell, topic, 2) == ["a", "b"]
    refused = shell.run("redeliver", topic, "--key", "a", code=FAILED)
    assert refused.stdout == b"a: already acked\n"
    assert shell.text("redeliver", topic, "--key", "a", "--acked", "--in", "1s") == "a: redelivered\n"
    (line,) = shell.text("receive", topic, "--count", "1", "--json").splitlines()
    assert (json.loads(line)["body"], json.loads(line)["epoch"]) == ("a", 3)


@pytest.mark.promise("V72")
def test_many_ids_and_keys_at_once(shell: Shell, topic: str) -> None:
    send_all(shell, topic, *({"body": key, "key": key, "in": "1h"} for key in "abcd"))
    ids = [str(one["id"]) for one in shell.json("browse", topic)]
    moved = shell.json("reschedule", *ids[:2], "--in", "0s", "--priority", "3")
    assert [one["result"] for one in moved] == ["rescheduled"] * 2
    (line, _) = shell.text("receive", topic, "--count", "2", "--json").splitlines()
    assert json.loads(line)["priority"] == 3
    gone = shell.run("cancel", topic, "--key", "c", "--key", "d", "--key", "e", "--json", code=FAILED)
    assert [one["result"] for one in json.loads(gone.stdout)] == ["cancelled", "cancelled", "not_found"]


def test_fetching_once(shell: Shell, topic: str) -> None:
    assert b"there was no message" in shell.run("fetch", topic, code=TIMED_OUT).stderr
    sent = int(shell.text("send", topic, "x", "--key", "k"))
    (line,) = shell.text("fetch", topic, "--wait", "30s", "--lease", "1h", "--json").splitlines()
    found = json.loads(line)
    assert (found["id"], found["body"], found["key"], found["epoch"], found["attempt"]) == (
        sent,
        "x",
        "k",
        1,
        1,
    )
    (group,) = shell.json("groups", "list", topic)
    receipt = Receipt(group["group_id"], sent, 1)
    assert (decode_receipt(topic, "default", found["receipt"]), group["leased"]) == (receipt, 1)
    shell.run("send", topic, "y")
    assert shell.text("fetch", topic, "--wait", "30s", "--ack", "--count", "5").rstrip().endswith("y")
    shell.run("fetch", topic, code=TIMED_OUT)


def test_receipts_are_settled(shell: Shell, topic: str) -> None:
    send_all(shell, topic, *({"body": key} for key in "abcdef"))
    wanted = ("--count", "6", "--wait", "30s", "--lease", "1h")
    lines = shell.text("fetch", topic, *wanted).splitlines()
    a, b, c, d, e, f = (line.partition("(receipt ")[2].removesuffix(")") for line in lines)
    ids = [decode_receipt(topic, "default", receipt).id for receipt in (a, b)]
    assert shell.text("ack", topic, "default", a, b) == f"{ids[0]}: acked\n{ids[1]}: acked\n"
    assert shell.json("ack", topic, "default", a) == [{"receipt": a, "id": ids[0], "result": "already_acked"}]
    assert shell.json("nack", topic, "default", c, "--in", "0s", "--error", "busy")[0]["result"] == "nacked"
    assert shell.json("nack", topic, "default", d, "--give-up")[0]["result"] == "dead"
    assert shell.json("extend", topic, "default", e, "--by", "2h")[0]["result"] == "extended"
    assert shell.json("nack", topic, "default", f, "--in", "0s", "--uncounted")[0]["result"] == "nacked"
    stale = shell.run("ack", topic, "default", e, d, "--json", code=FAILED)
    assert [one["result"] for one in json.loads(stale.stdout)] == ["acked", "stale_receipt"]
    again = shell.run("fetch", topic, "--count", "2", "--wait", "30s", "--json").stdout
    found = [json.loads(line) for line in again.splitlines()]
    assert [(one["body"], one["epoch"], one["attempt"]) for one in found] == [("c", 2, 2), ("f", 2, 1)]
    acked = shell.run("ack", topic, "default", "-", "--json", stdin=again + b"\n")
    assert [one["result"] for one in json.loads(acked.stdout)] == ["acked", "acked"]
    for wrong in ("12", "12:1", "", a[:-1], "B" + a[1:]):
        assert b"is no receipt" in shell.run("ack", topic, "default", wrong, code=2).stderr
    for wrong in (b'{"id": 5}', b"5", a.encode()):
        assert (
            b'no object with a "receipt"'
            in shell.run("ack", topic, "default", "-", stdin=wrong, code=2).stderr
        )
    assert b"is no receipt of group other" in shell.run("ack", topic, "other", a, code=2).stderr
