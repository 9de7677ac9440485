"""``celery tickwheel``: what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from tests.support.frameworks.celery_apps import app_of, holding
from tickwheel.celery.commands import tickwheel
from tickwheel.testing import TestBroker

START = datetime(2026, 11, 21, 8, tzinfo=UTC)
USAGE, FAILED = 2, 1


@pytest.fixture
def app(shared: TestBroker, request: pytest.FixtureRequest) -> Celery:
    return app_of(request.node.name, shared.url)


def run(app: Celery, *words: str) -> Result:
    return CliRunner().invoke(tickwheel, words, obj=CLIContext(app=app, no_color=True, workdir=None))


def send(app: Celery, *args: Any, hours: int) -> str:
    return str(app.send_task("count", args, eta=START + timedelta(hours=hours)).id)


def test_celery_has_it(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "celery", "tickwheel", "--help"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert all(
        f"\n  {command} " in said for command in ("cancel", "doctor", "reschedule", "scheduled", "sweep")
    )


@pytest.mark.parametrize("command", ["cancel", "doctor", "reschedule", "scheduled"])
def test_each_command_has_help(command: str) -> None:
    result = CliRunner().invoke(tickwheel, [command, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert "--queue" in result.stdout


def test_a_list(app: Celery) -> None:
    later, sooner = send(app, 2, hours=2), send(app, 1, hours=1)
    result = run(app, "scheduled")
    assert result.stdout.splitlines() == [
        f"2026-11-21T09:00:00.000Z  {sooner}  test_a_list  count  (1,) {{}}",
        f"2026-11-21T10:00:00.000Z  {later}  test_a_list  count  (2,) {{}}",
    ]
    assert result.stderr == "2 tasks\n"
    found = json.loads(run(app, "scheduled", "--json", "--limit", "1").stdout)
    assert [(task["id"], task["eta"]) for task in found] == [(sooner, "2026-11-21T09:00:00Z")]


def test_a_cancel_says_what_became_of_each(app: Celery) -> None:
    waiting, other = send(app, hours=1), send(app, hours=1)
    running = str(app.send_task("count").id)
    with holding(app, 1):
        result = run(app, "cancel", waiting, running, "none")
    assert result.exit_code == FAILED
    assert result.stdout.splitlines() == [
        f"{waiting}  cancelled",
        f"{running}  already delivered",
        "none  unknown",
    ]
    result = run(app, "cancel", other, "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {other: "cancelled"})


def test_another_time(app: Celery) -> None:
    task_id = send(app, hours=1)
    assert (
        run(app, "reschedule", task_id, "--eta", "2031-05-01T09:00+02:00").stdout
        == f"{task_id}  rescheduled\n"
    )
    assert run(app, "scheduled").stdout.startswith("2031-05-01T07:00:00.000Z")
    result = run(app, "reschedule", task_id, "--in", "2h30m", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {task_id: "rescheduled"})
    assert run(app, "scheduled").stdout.startswith("2026-11-21T10:30:00.000Z")
    assert run(app, "reschedule", "none", "--in", "1h").exit_code == FAILED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--eta", "2031-05-01T09:00"], "does not say its UTC offset; write 2031-05-01T09:00+02:00"),
        (["--eta", "tomorrow"], "'tomorrow' is not a time; write it like 2031-05-01T09:00+02:00"),
        (["--in", "5"], "is not a duration; write for example"),
        (["--in", "1h", "--eta", "2031-05-01T09:00Z"], "either --eta or --in"),
        ([], "either --eta or --in"),
    ],
)
def test_a_time_that_is_none(app: Celery, words: list[str], said: str) -> None:
    result = run(app, "reschedule", "1", *words)
    assert result.exit_code == USAGE
    assert said in result.stderr


@pytest.mark.parametrize("words", [["scheduled"], ["cancel", "1"], ["reschedule", "1", "--in", "1s"]])
def test_without_a_broker(words: list[str]) -> None:
    app = app_of("nowhere", "tickwheel://127.0.0.1:1", broker_connection_timeout=0.05)
    result = run(app, *words)
    assert result.exit_code == FAILED
    assert result.stderr.startswith("Error: There is no connection to tickwheel://127.0.0.1:1")


def test_with_another_broker() -> None:
    result = run(app_of("elsewhere", "memory://"), "scheduled")
    assert result.exit_code == FAILED
    assert "which is not Tickwheel. Set broker_url to tickwheel://host:7411." in result.stderr


def test_the_doctor_says_what_is_wrong_in_its_exit_code(app: Celery) -> None:
    result = run(app, "doctor")
    assert result.exit_code == 0
    assert "ok       revoke: cancels at the broker\n" in result.stdout
    app.send_task("count")
    result = run(app, "doctor", "--json")
    assert result.exit_code == FAILED
    (problem,) = [one for one in json.loads(result.stdout) if one["level"] == "problem"]
    assert problem["subject"] == f"queue {app.main}"
    assert "1 due, 0 consumers" in problem["text"]
