"""What saves a user of the command line a look into the manual."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from tests.support.processes.cli_harness import Shell
from tickwheel_cli.messages.send import _due_text, _report_one


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["sned", "t", "x"], "There is no command 'sned'. Did you mean send?"),
        (["topics", "crate", "t"], "There is no command 'crate'. Did you mean create?"),
        (["dead", "lst"], "There is no command 'lst'. Did you mean list?"),
        (["xyzzy"], "There is no command 'xyzzy'."),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_command_that_is_mistyped(shell: Shell, words: list[str], meant: str, form: list[str]) -> None:
    done = shell.run(*form, *words, code=2)
    said = json.loads(done.stderr)["error"]["message"] if form else done.stderr.decode()
    assert meant in said
    assert ("Did you mean" in said) == ("Did you mean" in meant)


def test_groups_of_commands_list_what_there_is(shell: Shell) -> None:
    assert shell.run("schedules").stdout == b"There are no schedules yet.\n"
    assert shell.run("endpoints").stdout == b"There are no endpoints yet.\n"
    shell.run("schedules", "create", "nightly", "--topic", "jobs", "--cron", "@daily")
    shell.run("endpoints", "set", "shop", "--topic", "jobs", "--to", "https://shop.example/")
    for name in ("schedules", "endpoints"):
        assert shell.run(name).stdout == shell.run(name, "list").stdout
        assert len(json.loads(shell.run(name, "--json").stdout)) == 1
    shell.run("schedules", "delete", "nightly", "--yes", code=None)


@pytest.mark.parametrize(
    ("nickname", "cron"),
    [("@hourly", "0 * * * *"), ("@Daily", "0 0 * * *"), ("@weekly", "0 0 * * 0"), ("@yearly", "0 0 1 1 *")],
)
def test_nicknames_of_rhythms(shell: Shell, nickname: str, cron: str) -> None:
    name = nickname[1:]
    shell.run("schedules", "create", name, "--topic", "jobs", "--cron", nickname)
    assert json.loads(shell.run("schedules", "show", name, "--json").stdout)["cron"] == cron


def test_show_takes_the_topic_as_an_option(shell: Shell) -> None:
    message_id = (
        shell.run("send", "orders", "paid", "--key", "order-17", "--in", "1h").stdout.decode().strip()
    )
    shown = shell.run("show", "orders", "--key", "order-17").stdout
    assert shell.run("show", "--topic", "orders", "--key", "order-17").stdout == shown
    assert shell.run("show", message_id, "--topic", "orders").stdout == shown
    shell.run("show", message_id, "--topic", "others", code=1)
    shell.run("show", "orders", "--topic", "orders", "--key", "order-17", code=2)
    shell.run("show", code=2)


def test_a_transaction_as_http_takes_it(shell: Shell) -> None:
    shell.run("send", "reminders", "old", "--key", "order-17", "--in", "1h")
    moved = shell.run("send", "reminders", "later", "--in", "1h").stdout.decode().strip()
    shell.run("send", "orders", "x")
    fetched = json.loads(shell.run("fetch", "orders", "--group", "billing", "--json").stdout)
    given: dict[str, Any] = {
        "id": "order-17",
        "sends": [
            {"topic": "invoices", "body": {"order": 17}, "delay": "1h"},
            {
                "topic": "invoices",
                "text": "tea",
                "deliver_at": "2031-05-01T09:00:00+02:00",
                "headers": {"h": 1},
            },
            {"topic": "invoices", "base64": "AP8="},
        ],
        "cancels": [{"topic": "reminders", "key": "order-17"}],
        "reschedules": [{"id": moved, "delay": "2h"}],
        "acks": [{"topic": "orders", "group": "billing", "receipts": [fetched["receipt"]]}],
    }
    done = shell.run("transaction", "-", stdin=json.dumps(given, indent=2).encode())
    assert done.stdout.startswith(b"committed; 3 sends")
    ids = json.loads(shell.run("browse", "invoices", "--json").stdout)
    assert [one.get("body") for one in ids] == ['{"order":17}', "tea", None]
    assert [one["headers"] for one in ids] == [
        {"content-type": "application/json"},
        {"content-type": "text/plain; charset=utf-8", "h": 1},
        {},
    ]
    cancelled = json.loads(
        shell.run("show", "reminders", "--key", "order-17", "--json", code=None).stdout or "{}"
    )
    assert cancelled.get("state", "cancelled") == "cancelled"
    again = json.loads(shell.run("transaction", "-", "--json", stdin=json.dumps(given).encode()).stdout)
    assert again["ids"] == [[one["id"]] for one in ids], "it was committed before"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sends": [{"topic": "t"}]}, b"sends[0]: give exactly one of body, text, base64"),
        ({"sends": [{"text": "x"}]}, b'sends[0]: "topic" is missing'),
        ({"sends": [{"topic": "t", "text": "x", "in": "1h"}]}, b'sends[0]: there is no field "in"'),
        ({"sends": [{"topic": "t", "text": "x", "delay": "soon"}]}, b"sends[0]: 'soon' is not a duration"),
        ({"sends": {}}, b'"sends" is no list'),
        ({"cancels": [5]}, b"cancels[0]: it is no object"),
        ({"acks": [{"topic": "t", "group": "g", "receipts": ["x"]}]}, b"acks[0]: "),
    ],
)
def test_a_transaction_of_http_that_is_wrong(shell: Shell, given: Any, said: bytes) -> None:
    done = shell.run("transaction", "-", stdin=json.dumps(given).encode(), code=1)
    assert said in done.stderr


def test_what_a_terminal_is_told_of_a_send(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.run("send", "told", "x", "--in", "90s").stdout.strip().isdigit()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("tickwheel_cli.messages.send.current_session", _Text)
    _report_one("told", _Sent(), "due in 1 min 30 s")
    assert tuple(capsys.readouterr()) == ("17\n", "message 17 of told, due in 1 min 30 s\n")


class _Text:
    json = False


class _Sent:
    id, duplicate, differs = 17, False, False


def test_when_a_message_is_due() -> None:
    from datetime import UTC, datetime, timedelta

    assert _due_text(None, None, None) == "due now"
    assert _due_text(timedelta(seconds=90), None, None) == "due in 1 min 30 s"
    assert _due_text(None, datetime(2031, 5, 1, tzinfo=UTC), None) == "due 2031-05-01T00:00:00.000Z"
    assert _due_text(None, None, 3) == "due after delay level 3"


def test_the_help_of_serve_has_sections(shell: Shell) -> None:
    text = shell.run("serve", "--help").stdout.decode()
    found = re.findall(r"^([A-Z][^\n:]*):$", text, re.MULTILINE)
    assert found[:5] == ["Listening", "Security", "Storage", "Limits", "Delivery"]
    assert found[-1] == "Options"
    assert text.index("--listen-port") < text.index("Security:") < text.index("--tls-certificate")
    assert text.index("Options:") < text.index("--config FILE")


def test_a_body_of_json(shell: Shell) -> None:
    message_id = (
        shell.run("send", "json", '{"order": 17}', "--body-json", "--header", "x=1").stdout.decode().strip()
    )
    shown = json.loads(shell.run("show", message_id, "--json").stdout)
    assert (shown["body"], shown["headers"]) == (
        '{"order": 17}',
        {"content-type": "application/json", "x": "1"},
    )
    assert b"no JSON" in shell.run("send", "json", "{order: 17}", "--body-json", code=2).stderr
