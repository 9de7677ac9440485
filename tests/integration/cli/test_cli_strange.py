"""Commands that list messages do so whatever another program has put there."""

from __future__ import annotations

import json

import pytest

from tests.support.clients.strange import send_strange
from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import Daemon


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_dead_letters_that_others_wrote(shell: Shell, daemon: Daemon, form: list[str]) -> None:
    topic = f"strange{len(form)}"
    count = send_strange(daemon.url, topic)
    send_strange(daemon.url, f"{topic}.dead")
    for command in (["dead", "list", topic], ["browse", topic, "--limit", "1000"]):
        done = shell.run(*command, *form)
        assert done.stderr == b""
        found = json.loads(done.stdout) if form else done.stdout.splitlines()[1:]
        assert len(found) == count
        assert b"\x1b" not in done.stdout
    assert shell.run("dead", "replay", topic, *form, code=None).returncode in (0, 1)


def test_messages_that_others_wrote_are_shown_and_received(shell: Shell, daemon: Daemon) -> None:
    count = send_strange(daemon.url, "shown", keys=True)
    ids = [one["id"] for one in json.loads(shell.run("browse", "shown", "--limit", "1000", "--json").stdout)]
    assert len(ids) == count
    for message_id in ids:
        shell.run("show", str(message_id))
        shown = json.loads(shell.run("show", str(message_id), "--json").stdout)
        assert shown["id"] == message_id
    for command in ("receive", "fetch"):
        done = shell.run(command, "shown", "--group", command, "--count", str(count), "--json")
        assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ids
        assert shell.run(command, "shown", "--group", f"{command}-2", "--count", str(count)).stderr == b""


def test_what_was_sent_where_prepared_messages_lie(shell: Shell, daemon: Daemon) -> None:
    shell.run("prepared", "send", "shop", "x")
    send_strange(daemon.url, "shop.prepared")
    shell.run("browse", "shop.prepared", "--limit", "1000")
