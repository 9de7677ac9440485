"""Topic settings from the command line: each can be given, changed and taken back, and holds."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from tests.support.processes.cli_harness import Shell
from tests.support.processes.daemon_harness import PATIENCE_S

FAILED = 1
SETTINGS: dict[str, tuple[str, float, str, float]] = {
    "ack_wait_ms": ("10s", 10_000, "20s", 20_000),
    "min_backoff_ms": ("15s", 15_000, "25s", 25_000),
    "max_backoff_ms": ("1m", 60_000, "0s", 0),
    "purge_after_ms": ("2d", 172_800_000, "0s", 0),
    "retention_ms": ("30d", 2_592_000_000, "1h", 3_600_000),
    "spread_ms": ("1m", 60_000, "2m", 120_000),
    "max_attempts": ("5", 5, "6", 6),
    "batch_size": ("10", 10, "20", 20),
    "cache_size": ("10000", 10_000, "99", 99),
    "priority": ("7", 7, "0", 0),
    "rate": ("50", 50, "0.5", 0.5),
    "max_body_bytes": ("64KiB", 65_536, "1MiB", 1_048_576),
}
"""By wire name: one value as it is typed and as it is kept, and another."""


def flags(column: int) -> list[str]:
    """Every setting as a flag with its value."""
    return [text for name, values in SETTINGS.items() for text in (f"--{option(name)}", str(values[column]))]


def option(name: str) -> str:
    return name.removesuffix("_ms").replace("_", "-")


def stats_of(shell: Shell, topic: str) -> dict[str, Any]:
    (found,) = [one for one in shell.json("topics", "list") if one["name"] == topic]
    assert isinstance(found, dict)
    return found


def wait_ready(shell: Shell, topic: str, messages: int) -> None:
    """Until so many messages are in their topic."""
    end = time.monotonic() + PATIENCE_S
    while stats_of(shell, topic)["ready"] < messages:
        assert time.monotonic() < end


def test_each_setting_is_given_changed_and_taken_back(shell: Shell) -> None:
    made = shell.json("topics", "create", "all", *flags(0))
    assert made["settings"] == {name: values[1] for name, values in SETTINGS.items()}
    changed = shell.json("topics", "set", "all", *flags(2))
    assert changed["settings"] == {name: values[3] for name, values in SETTINGS.items()}
    assert changed["effective"] == changed["settings"]
    shown = shell.text("topics", "show", "all")
    assert all(name.removesuffix("_ms") in shown for name in SETTINGS)
    assert "(the broker's)" not in shown
    assert re.search("purge_after +0s\n", shown)
    assert re.search("max_backoff +none\n", shown)
    unset = [text for name in SETTINGS for text in ("--unset", option(name))]
    assert shell.json("topics", "set", "all", *unset)["settings"] == {}
    assert shell.json("topics", "show", "all")["effective"]["ack_wait_ms"] == 30_000
    assert "all" in {one["name"] for one in shell.json("topics", "list")}
    shell.run("topics", "delete", "all", "--yes")
    assert "all" not in {one["name"] for one in shell.json("topics", "list")}


def test_one_bad_value_changes_nothing(shell: Shell) -> None:
    before = shell.json("topics", "create", "careful", "--rate", "5")
    error = shell.error("topics", "set", "careful", "--rate", "6", "--ack-wait", "0s", code=FAILED)
    assert error["code"] == "bad_topic_settings"
    assert shell.json("topics", "show", "careful") == before


@pytest.mark.promise("V13")
def test_priority_body_size_and_pause(shell: Shell) -> None:
    shell.run("topics", "create", "small", "--priority", "9", "--max-body-bytes", "5B")
    assert shell.error("send", "small", "too long", code=FAILED)["code"] == "body_too_large"
    shell.run("topics", "pause", "small")
    shell.run("send", "small", "short")
    wait_ready(shell, "small", 1)
    assert shell.text("receive", "small", "--timeout", "500ms") == ""
    shell.run("topics", "resume", "small")
    (line,) = shell.text("receive", "small", "--count", "1", "--json").splitlines()
    assert (json.loads(line)["body"], json.loads(line)["priority"]) == ("short", 9)


def test_backoff_and_attempts(shell: Shell) -> None:
    waits = ("--ack-wait", "1m", "--min-backoff", "100ms", "--max-backoff", "200ms")
    shell.run("topics", "create", "fails", *waits, "--max-attempts", "3")
    shell.run("send", "fails", "x")
    for epoch in (1, 2, 3):
        (line,) = shell.text(
            "receive", "fails", "--count", "1", "--json", "--nack", "2s", "--error", f"no {epoch}"
        ).splitlines()
        assert json.loads(line)["epoch"] == epoch
    (letter,) = shell.text("dead", "list", "fails").splitlines()[1:]
    assert letter.split()[1:5] == ["default", "3", "no", "3"]


def test_the_rate_holds(shell: Shell) -> None:
    shell.run("topics", "create", "slow", "--rate", "20")
    lines = b'{"body": "x"}\n' * 60
    assert shell.json("send", "slow", "--from-file", "-", stdin=lines)["sent"] == 60
    wait_ready(shell, "slow", 60)
    started = time.monotonic()
    assert len(shell.text("receive", "slow", "--count", "30", "--raw").split()) == 30
    assert time.monotonic() - started >= (30 - 3) / 20, (
        "the rate is not exceeded, but for a tenth of a second"
    )


def test_spread_makes_a_ramp_of_a_herd(shell: Shell) -> None:
    shell.run("topics", "create", "herd", "--spread", "1d")
    lines = b'{"body": "x"}\n' * 200
    for topic in ("herd", "crowd"):
        assert shell.json("send", topic, "--from-file", "-", stdin=lines)["sent"] == 200
    wait_ready(shell, "crowd", 200)
    stats = stats_of(shell, "herd")
    assert stats["scheduled"] + stats["ready"] == 200
    assert stats["scheduled"] >= 150, "most are due hours later"


def test_retention_ends_what_nobody_acks(shell: Shell) -> None:
    shell.run("topics", "create", "short-lived", "--retention", "300ms")
    sent = shell.text("send", "short-lived", "x").strip()
    end = time.monotonic() + PATIENCE_S + 60
    while shell.json("browse", "short-lived"):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert shell.run("cancel", sent, code=FAILED).stdout.decode() == f"{sent}: expired\n"
