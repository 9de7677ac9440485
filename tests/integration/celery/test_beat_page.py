"""The page on beat and on tasks that wait: its program, its pieces and its commands, as they are written."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from celery.bin.celery import celery
from click.testing import CliRunner

import tickwheel.celery
from tests.integration.documents.test_how_to import ROOT, blocks
from tests.support.processes.cli_harness import Shell
from tickwheel.celery.beat.scheduler import TickwheelScheduler
from tickwheel.celery.commands import tickwheel as commands
from tickwheel.testing import TestBroker, broker

PAGE = ROOT / "docs" / "how-to" / "celery-beat.md"
URL = "tickwheel://127.0.0.1:7411"
ID = "0f5c7a4e-7a2f-4a53-9d0d-3a5f0c3c9a11"


@pytest.fixture(scope="module")
def shared() -> Iterator[TestBroker]:
    with broker() as running:
        yield running


@pytest.fixture(scope="module")
def tasks(shared: TestBroker) -> Iterator[ModuleType]:
    """The program of the page."""
    (program,) = blocks(PAGE, "py")
    assert URL in program
    module = ModuleType("tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tasks", module)
        exec(compile(program.replace(URL, shared.url), "tasks.py", "exec"), module.__dict__)
        yield module


def app_of(tasks: ModuleType) -> Celery:
    app = tasks.app
    assert isinstance(app, Celery)
    return app


def test_the_pieces(tasks: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    (piece,) = blocks(PAGE, "python")
    around: dict[str, Any] = {}
    exec(compile(piece, PAGE.name, "exec"), around)
    assert f"{around['task'].id} shop.remind ('order 18',)" in capsys.readouterr().out
    assert [one.id for one in tickwheel.celery.scheduled(app_of(tasks))] == [around["task"].id]
    tickwheel.celery.cancel(app_of(tasks), around["task"].id)


def test_the_commands(
    tasks: ModuleType, shared: TestBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(celery.commands, "tickwheel", commands)  # an installation has it by its entry point
    app = app_of(tasks)
    tasks.remind.apply_async(("order 19",), countdown=3600, task_id=ID)
    for line in "".join(blocks(PAGE, "sh")).splitlines():
        words = shlex.split(line)
        assert words[:3] == ["celery", "-A", "tasks"]
        if words[3] == "beat":  # as a program: tests/integration/celery/test_beat.py
            assert app.conf.beat_scheduler == "tickwheel"
            beat = TickwheelScheduler(app)
            beat.tick()
            beat.close()
            continue
        result = CliRunner().invoke(celery, words[1:])
        assert result.exit_code == 0, (line, result.output)
        if words[4] == "doctor":
            assert "ok       beat: the broker keeps 3 of 3 entries" in result.output
    with shared.sync_client() as client:
        names = {one.name for one in client.schedules()}
        assert names == {"celery.poll", "celery.report", "celery.shop.backend_cleanup"}
        shell = Shell(tmp_path, shared.url)
        shell.run("schedules", "pause", "celery.report")
        for option, value in (
            ("overlap", "skip"),
            ("catch-up", "all"),
            ("window", "10m"),
            ("until", "2031-01-01T00:00Z"),
        ):
            assert f"--{option}" in PAGE.read_text()
            shell.run("schedules", "set", "celery.report", f"--{option}", value)
        before = client.schedule("celery.report")
        beat = TickwheelScheduler(app)
        beat.tick()
        beat.close()
        assert client.schedule("celery.report") == before
