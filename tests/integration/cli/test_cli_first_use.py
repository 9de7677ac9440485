"""What a first-time user runs into: advice, exit codes, empty answers; through the real daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes.cli_harness import Serve, Shell

FAILED, USAGE = 1, 2


def send_three(shell: Shell, topic: str) -> list[str]:
    """The ids of three messages that are due."""
    return [shell.text("send", topic, body).strip() for body in ("a", "b", "c")]


@pytest.mark.parametrize("flags", [[], ["--no-ack"], ["--nack", "1h"]])
def test_what_receive_does_not_print_it_does_not_take(shell: Shell, topic: str, flags: list[str]) -> None:
    ids = send_three(shell, topic)
    assert shell.text("receive", topic, "--count", "2", "--raw", *flags).split() == ["a", "b"]
    assert shell.text("cancel", ids[2]) == f"{ids[2]}: cancelled\n"


def test_receive_goes_on_until_it_has_as_many_as_were_asked_for(shell: Shell, topic: str) -> None:
    for number in range(4):
        shell.run("send", topic, str(number), "--in", f"{number * 400}ms")
    assert shell.text("receive", topic, "--count", "4", "--raw").split() == ["0", "1", "2", "3"]
    assert [one["groups"][0]["acked"] for one in shell.json("topics") if one["name"] == topic] == [4]


def test_a_second_delivery_is_called_so(shell: Shell, topic: str) -> None:
    shell.run("send", topic, "x")
    shell.run("receive", topic, "--count", "1", "--nack", "0s")
    assert shell.text("receive", topic, "--count", "1").endswith("  x  (delivery 2)\n")


def test_a_duplicate_prints_only_its_id(shell: Shell, topic: str) -> None:
    first = shell.text("send", topic, "x", "--key", "k")
    again = shell.run("send", topic, "x", "--key", "k")
    assert again.stdout.decode() == first == f"{int(first)}\n"
    assert b"there already" in again.stderr


def test_a_repeated_cancel(shell: Shell, topic: str) -> None:
    sent = shell.text("send", topic, "x", "--in", "1h", "--key", "k").strip()
    assert shell.text("cancel", topic, "--key", "k") == "k: cancelled\n"
    assert shell.text("cancel", sent) == f"{sent}: already cancelled\n"
    assert shell.run("cancel", topic, "--key", "k", code=FAILED).stdout == b"k: not found\n"


def test_no_dead_letters(shell: Shell, topic: str) -> None:
    shell.run("send", topic, "x")
    for command in (["list"], ["replay"], ["purge", "--yes"]):
        assert shell.text("dead", command[0], topic, *command[1:]) == f"{topic} has no dead letters.\n"
    assert shell.json("dead", "list", topic) == []
    assert shell.json("dead", "replay", topic) == {}
    assert shell.json("dead", "purge", topic, "--yes") == {"matched": 0, "results": {}}
    for name in ("list", "replay"):
        assert shell.error("dead", name, "nowhere", code=FAILED)["code"] == "unknown_topic"


def test_ids_that_are_unknown_fail(shell: Shell, topic: str) -> None:
    sent = shell.text("send", topic, "x").strip()
    assert json.loads(shell.run("dead", "replay", topic, sent, "--json", code=FAILED).stdout) == {
        "not_found": 1
    }
    for name in ("commit", "rollback"):
        assert shell.run("prepared", name, sent, code=FAILED).stdout.decode() == f"{sent}: not found\n"
    first = shell.text("prepared", "send", topic, "y").strip()
    for _ in range(2):
        shell.run("prepared", "commit", first)
    shell.run("prepared", "rollback", first, code=FAILED)


@pytest.mark.parametrize("command", ["topics delete", "dead purge"])
def test_nobody_can_be_asked(shell: Shell, topic: str, command: str) -> None:
    shell.run("send", topic, "x")
    refused = shell.run(*command.split(), topic, code=USAGE)
    assert b"give --yes" in refused.stderr
    assert shell.error(*command.split(), topic, code=USAGE)["code"] == "usage"
    assert shell.json("topics", "show", topic)["messages"] == 1


@pytest.mark.parametrize(
    "command", ["topics show", "topics pause", "topics set --rate=5", "browse", "cancel --all", "dead list"]
)
def test_an_unknown_topic(shell: Shell, command: str) -> None:
    error = shell.error(*command.split(), "nowhere", code=FAILED)
    assert error["code"] == "unknown_topic"
    assert "`tickwheel topics` lists them all" in error["advice"]
    assert "auto_create" not in error["advice"]


def test_topics_are_not_cut_in_a_pipe(shell: Shell) -> None:
    name = "a-topic-with-a-name-of-" + "x" * 100
    shell.run("send", name, "x")
    assert any(line.startswith(f"{name}  ") for line in shell.text("topics").splitlines())


def test_looking_at_messages(shell: Shell, topic: str) -> None:
    (first, *_) = [shell.text("send", topic, "x", "--key", "a").strip(), *send_three(shell, topic)]
    lines = [line.split() for line in shell.text("browse", topic).splitlines()]
    assert lines[0] == ["due", "id", "state", "key", "body"]
    assert lines[1][1:] == [first, "ready", "a", "x"]
    assert lines[2][3:] == ["-", "a"]
    assert shell.text("browse", topic, "--state", "acked") == f"There are no such messages in {topic}.\n"


def test_schedules_have_a_table(shell: Shell, topic: str) -> None:
    made = ("schedules", "create", topic, "--topic", topic)
    assert b"at least 1ms" in shell.run(*made, "--every", "0s", code=USAGE).stderr
    shell.run(*made, "--every", "1h")
    lines = [line.split() for line in shell.text("schedules", "list").splitlines()]
    assert lines[0] == ["schedule", "rhythm", "topic", "next"]
    assert [topic, "every", "1h", topic] in [line[:4] for line in lines]
    shell.run("schedules", "delete", topic)


def test_settings_are_refused_in_the_units_of_the_user(shell: Shell, topic: str) -> None:
    shell.run("topics", "create", topic)
    refused = shell.error("topics", "set", topic, "--ack-wait", "400d", code=FAILED)
    assert "ack_wait: at most 366d" in refused["message"]
    refused = shell.error("topics", "set", topic, "--ack-wait", "0s", code=FAILED)
    assert "ack_wait: at least 1ms" in refused["message"]


def test_files_say_the_ordering_key_and_the_delay_level(shell: Shell, topic: str) -> None:
    lines = b'{"body": "x", "order_key": "o", "delay_level": 3}\n{"body": "y", "delay_level": 4}\n'
    assert shell.json("send", topic, "--from-file", "-", stdin=lines)["sent"] == 2
    found = shell.json("browse", topic)
    assert [one["order_key"] for one in found] == ["o", None]
    assert [one["deliver_at_ms"] - one["created_ms"] for one in found] == [10_000, 30_000]


def test_a_port_in_use_leaves_nothing_behind(tmp_path: Path) -> None:
    with Serve(tmp_path) as serve:
        port = next(url for url in serve.urls if url.startswith("tickwheel://")).rsplit(":")[-1]
        Shell(tmp_path).run("serve", "--data", "other", "--listen-port", port, code=79)
        assert not (tmp_path / "other").exists()


def test_a_socket_inside_of_a_new_directory(tmp_path: Path) -> None:
    with Serve(tmp_path, "--unix-socket", "data/inside.sock") as serve:
        assert any(url.endswith("/data/inside.sock") for url in serve.urls)
        assert (tmp_path / "data" / "inside.sock").is_socket()


def test_inspect_says_who_has_the_directory_open(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    with Serve(tmp_path):
        assert "has it open" in shell.text("inspect", "data")
        assert int(shell.json("inspect", "data")["owner"]) > 0
    shell.run("--data", "data", "stats")
    assert "has it open" not in shell.text("inspect", "data")
    assert shell.json("inspect", "data")["owner"] is None


def test_an_sql_word_as_a_column(shell: Shell, topic: str) -> None:
    pytest.importorskip("duckdb")
    refused = shell.error("query", "select group from messages", code=FAILED)
    assert '"group"' in refused["advice"]


def test_an_idle_broker_has_nothing_left_to_write(shell: Shell, topic: str) -> None:
    shell.run("send", topic, "x")
    assert "not yet on disk" not in shell.text("stats")
    assert "in their topics" in shell.text("stats")
