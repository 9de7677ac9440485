"""`tickwheel wheel`: a picture of what is due when."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from tickwheel_cli.shared.options import DURATION
from tickwheel_cli.shared.output import print_json, stdout_console
from tickwheel_cli.shared.session import current_session, shared_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tickwheel import sync
    from tickwheel.stats import Wheel


@click.command()
@click.option("--watch", is_flag=True, help="Draw it again and again until Ctrl-C.")
@click.option("--every", type=DURATION, default="500ms", show_default=True, help="How often, with --watch.")
@click.option(
    "--within",
    "horizons",
    type=DURATION,
    multiple=True,
    help="Count what is due so long from now, and no more; may be repeated.",
)
@shared_options
def wheel(watch: bool, every: timedelta, horizons: tuple[timedelta, ...]) -> None:
    """Draw what is due when, and which slots of the wheel are occupied.

    \b
    tickwheel wheel
    tickwheel wheel --watch
    tickwheel wheel --within 24h --within 90s
    tickwheel wheel --json | jq .forecast

    What is due is counted to the millisecond: messages that wait for their time, and leases, which end unless
    somebody acknowledges. What is acked, cancelled or moved does not count; its timers are left over on the levels
    until their time. A row of the picture is without those above it; in the JSON's forecast, and with
    --within, it counts all that is due at its until_ms or before.

    A level's strip shows its timers from now on. Each character stands for many slots and is higher the more
    timers these have; the scale is logarithmic.
    """
    wanted = sorted(set(horizons)) or None
    with current_session().client() as client:
        if watch:
            _watch(client, every.total_seconds(), wanted)
        elif current_session().json:
            print_json(client.wheel(horizons=wanted))
        else:
            console = stdout_console()
            console.print(_picture(client.wheel(horizons=wanted), console.width, wanted))


def _picture(found: Wheel, width: int, wanted: list[timedelta] | None) -> RenderableType:
    from tickwheel_cli.looking.wheel_picture import due_table, wheel_picture

    return wheel_picture(found, width) if wanted is None else due_table(found.forecast)


def _watch(client: sync.Client, seconds: float, wanted: list[timedelta] | None) -> None:
    """Until Ctrl-C, which is the ordinary way to stop and no error."""
    from rich.live import Live

    console = stdout_console()
    as_json = current_session().json
    try:
        if as_json or not console.is_terminal:
            while True:
                found = client.wheel(horizons=wanted)
                print_json(found) if as_json else console.print(_picture(found, console.width, wanted))
                time.sleep(seconds)
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                found = client.wheel(horizons=wanted)
                live.update(_picture(found, console.width, wanted), refresh=True)
                time.sleep(seconds)
    except KeyboardInterrupt:
        return
