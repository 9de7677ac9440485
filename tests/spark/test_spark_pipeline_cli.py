"""`tickwheel pipeline archive`, `restore` and `reschedule` as commands, on the session of these tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import Result

import tickwheel
from tests.spark.conftest import Pipeline
from tests.support.spark.archives import work_off

if TYPE_CHECKING:
    pass


@pytest.fixture
def command(pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Runs `tickwheel pipeline …` on a data directory that no daemon has: 5 messages are acked, 2 are for later."""

    monkeypatch.chdir(tmp_path)
    with tickwheel.embedded(tmp_path / "data") as broker, broker.sync_client() as client:
        client.send_many("orders", [b"done"] * 5)
        work_off(client, "orders", 5)
        client.send_many("orders", [b"later"] * 2, delay_ms=3_600_000)

    def run(*arguments: str) -> Result:
        return pipeline(*arguments, "--data", "data")

    return run


def test_there_and_back(command: Any) -> None:
    planned = command("archive", "--older-than", "0s", "--to", "archive", "--dry-run").stdout.splitlines()
    assert planned[0].startswith("5 messages would be archived (")
    assert planned[1:] == ["  orders: 5"]
    lines = command("archive", "--older-than", "0s", "--to", "archive", "--purge").stdout.splitlines()
    assert lines[0].startswith("5 messages archived in 1 file (")
    assert lines[1:3] == ["  orders: 5", "5 messages dropped by the broker"]
    assert lines[3].endswith("of log freed")
    report = json.loads(command("archive", "--older-than", "0s", "--to", "archive", "--json").stdout)
    assert (report["messages"], report["run"], report["warnings"]) == (0, None, [])
    restore = ("restore", "--from", "archive", "--since", "2020-01-01T00:00Z")
    planned = command(*restore, "--dry-run").stdout.splitlines()
    assert planned == ["5 messages of 1 file would be restored", "  to orders.restored: 5"]
    assert json.loads(command(*restore, "--json").stdout)["stored"] == 5
    assert command(*restore).stdout.splitlines()[-1] == "0 are new there, 5 had been restored before"


def test_a_warning_is_printed(command: Any) -> None:
    done = command("archive", "--older-than", "30d", "--to", "archive")
    assert done.stderr.startswith("warning: purge_after is 86,400 s for orders, not longer than older_than")
    assert done.stdout == "0 messages archived\n"


def test_reschedule(command: Any) -> None:
    at = ("--at", "2033-01-01T00:00Z")
    done = command(
        "reschedule", "--where", "body = cast('later' as binary)", *at, "--spread", "2h", "--dry-run"
    )
    when = "2033-01-01T00:00:00.000Z to 2033-01-01T01:00:00.000Z"
    assert done.stdout == f"2 messages would be rescheduled, to {when}\n"
    done = command("reschedule", "--where", "topic = 'orders'", *at)
    assert done.stdout.splitlines() == [
        "7 messages selected, 2 rescheduled to 2033-01-01T00:00:00.000Z",
        "  5 acked already",
    ]
    report = json.loads(command("reschedule", "--where", "state = 'scheduled'", *at, "--json").stdout)
    assert (report["selected"], report["done"], report["rejected"]) == (2, 2, 0)


def test_what_is_missing_is_said(command: Any) -> None:
    with pytest.raises(click.UsageError, match="a new time is needed"):
        command("reschedule", "--where", "true")
    with pytest.raises(click.UsageError, match="name a time range"):
        command("restore", "--from", "archive")
    with pytest.raises(click.UsageError, match="soon"):
        command("archive", "--older-than", "soon", "--to", "archive")
