"""What the demonstration shows: live pictures, plain lines, and the summary with its verdict."""

from __future__ import annotations

import dataclasses
import io
import json
import shlex
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from rich.console import Console, RenderableType

from tickwheel_cli.demo import dashboard
from tickwheel_cli.demo.flights import Flight
from tickwheel_cli.demo.ledger import Ledger, Summary
from tickwheel_cli.demo.view import LiveView, PlainView, day_part, summary_view, year_part

HOUR_MS = 3_600_000
MORNING_MS = 1_372_932_000_000  # 4 July 2013, 06:00 in New York


def flights() -> list[Flight]:
    return [
        Flight(
            key=f"key-{hour}",
            carrier="UA",
            number=str(100 + hour),
            tail="N1",
            origin="EWR",
            destination="ORD",
            scheduled_ms=MORNING_MS + hour * HOUR_MS,
            departed_ms=None,
        )
        for hour in range(4)
    ]


def ledger() -> Ledger:
    made = Ledger(("board", "auditor"), np.arange(4, dtype=np.int64) * 1_000)
    made.name_messages(np.arange(1, 5, dtype=np.int64))
    return made


def text_of(picture: RenderableType, width: int = 100) -> str:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(picture)
    return capture.get()


def terminal(width: int = 100) -> Console:
    return Console(file=io.StringIO(), width=width, height=40, force_terminal=True)


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_board_of_a_day(width: int) -> None:
    view = LiveView(terminal(width), day_part(flights(), {"ORD": "Chicago"}, 4_320))
    books = ledger()
    before = text_of(view.picture(MORNING_MS, books), width)
    books.arrived("board", np.array([1]), np.array([0]), 2.5)
    after = text_of(view.picture(MORNING_MS, books), width)
    assert "Departures from New York, Thursday 4 July 2013" in after
    assert "06:00 EDT  4,320x" in after
    assert before.index("UA 100") < before.index("Departed")
    assert after.index("UA 100") > after.index("Departed")
    assert "1 of 4 delivered" in after
    assert "p50 2.5 ms" in after
    assert len(before.splitlines()) == len(after.splitlines()) <= 30
    assert max(map(len, after.splitlines())) <= width


def test_the_live_bars_of_a_year() -> None:
    view, books = LiveView(terminal(), year_part(np.array([0, 0, 6, 11]), 100)), ledger()
    books.arrived("board", np.array([1, 3]), np.array([0, 2_000]), 2_001.0)
    shown = text_of(view.picture(MORNING_MS, books)).splitlines()
    rows = {line.split()[0]: line for line in shown if line.strip()}
    assert rows["January"].endswith("1 of 2")
    assert rows["July"].count("█") > rows["January"].count("█") > 0
    assert "0 of 1" in rows["December"]


def test_a_live_view_takes_and_gives_back_the_terminal() -> None:
    console = terminal()
    view = LiveView(console, day_part(flights(), {}, 4_320))
    view.begin()
    view.scheduled(4, 4, 0.5)
    view.refresh(MORNING_MS, ledger())
    view.end()
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "scheduled 4 of 4 departures, 8/s" in shown
    assert "UA 103" in shown


def test_plain_lines_come_when_an_hour_is_over_and_at_the_end() -> None:
    out = io.StringIO()
    view = PlainView(Console(file=out, width=100), MORNING_MS, by_month=False)
    books = ledger()
    view.begin()
    view.scheduled(2, 4, 0.5)
    view.scheduled(4, 4, 0.5)
    view.refresh(MORNING_MS + 1, books)
    books.arrived("board", np.array([1, 2]), np.array([0, 1_000]), 1_001.0)
    view.refresh(MORNING_MS + HOUR_MS, books)
    books.arrived("board", np.array([3]), np.array([2_000]), 2_001.0)
    view.end()
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "scheduled 4 of 4 departures, 8/s, each safe on disk",
        "Thu 06:00",
        "Thu 07:00",
    ]
    assert "2 departed,       2 of 4 so far" in lines[1]
    assert "1 departed,       3 of 4 so far" in lines[2]


def summary(**changes: Any) -> Summary:
    books = ledger()
    for group in books.books:
        for index in range(4):
            books.arrived(group, np.array([index + 1]), np.array([index * 1_000]), index * 1_000 + 1.5)
    plain = Summary(
        what=f"Departures of {date(2013, 7, 4):%-d %B %Y}",
        speed=4_320,
        scheduled=4,
        schedule_seconds=0.5,
        schedule_rate=8,
        rescheduled=1,
        cancelled=0,
        changes_too_late=0,
        replay_seconds=20.0,
        groups=books.audit(),
        foreign=0,
        body_bytes=400,
        scheduled_bytes=640,
        log_bytes=1_000,
        disk_bytes=1 << 20,
    )
    return dataclasses.replace(plain, **changes)


def test_a_good_summary() -> None:
    good = summary()
    shown = text_of(summary_view(good))
    assert good.passed
    assert "Nothing lost, nothing twice, nothing early." in shown
    assert "160 bytes" in shown
    assert "1.50 ms" in shown


@pytest.mark.parametrize("fault", ["duplicates", "missing", "cancelled_but_delivered", "early"])
def test_any_fault_of_any_group_fails(fault: str) -> None:
    groups = dict(summary().groups)
    groups["auditor"] = dataclasses.replace(groups["auditor"], **{fault: 1})
    bad = summary(groups=groups)
    assert not bad.passed
    assert "FAILED" in text_of(summary_view(bad))


def test_messages_that_nobody_sent_fail() -> None:
    assert not summary(foreign=1).passed


def test_the_summary_as_json() -> None:
    plain = json.loads(json.dumps(summary().to_json()))
    assert plain["passed"] is True
    assert plain["bytes_a_message"] == 160.0
    assert plain["groups"]["auditor"]["delivered"] == 4


# -- the dashboard ------------------------------------------------------------------------------------------


@pytest.fixture
def _command() -> Iterator[None]:
    with click.Context(click.Command("demo")):
        yield


@pytest.mark.usefixtures("_command")
def test_it_ends_by_saying_how_to_get_the_dashboard(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/tickwheel", "demo"])
    dashboard.tell_how_to_watch(None, ["--year"])
    assert capsys.readouterr().out.splitlines()[-1] == "  .venv/bin/tickwheel demo --web --year"
    dashboard.tell_how_to_watch(Path("my data"), ["--year"])
    assert capsys.readouterr().out.splitlines()[-1] == "  .venv/bin/tickwheel serve --data 'my data' --web"
    monkeypatch.setattr(sys, "argv", ["/x/tickwheel/__main__.py", "demo"])
    monkeypatch.setattr(dashboard, "find_spec", lambda name: None)
    dashboard.tell_how_to_watch(None, [])
    said = capsys.readouterr().out.splitlines()
    python = shlex.quote(sys.executable)
    assert said[-1] == f"  {python} -m tickwheel demo --web"
    assert "  " + python + " -m pip install 'tickwheel[web]'" in said


@pytest.mark.usefixtures("_command")
def test_without_a_terminal_the_dashboard_ends_by_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "UNSEEN_STAY_S", 0.01)
    dashboard.stay("http://127.0.0.1:7413", None)
    assert capsys.readouterr().out.endswith("http://127.0.0.1:7413/ for 0.01 s, or until Ctrl-C.\n")
