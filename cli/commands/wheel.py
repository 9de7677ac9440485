"""`tickwheel wheel`: a picture of what is due when."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from cli.options import parsed_by
from cli.output import print_json, stdout_console
from cli.session import current_session, shared_options
from cli.times import parse_duration

if TYPE_CHECKING:
    from tickwheel import sync


@click.command()
@click.option("--watch", is_flag=True, help="Draw it again and again until Ctrl-C.")
@click.option(
    "--every",
    metavar="DURATION",
    callback=parsed_by(parse_duration),
    default="500ms",
    show_default=True,
    help="How often, with --watch.",
)
@shared_options
def wheel(watch: bool, every: timedelta) -> None:
    """Draw what is due when, and which slots of the wheel are occupied.

    \b
    tickwheel wheel
    tickwheel wheel --watch
    tickwheel wheel --json | jq .forecast

    Timers are messages that wait for their time, and deliveries that wait for their acknowledgement; also those
    of messages that were cancelled or acknowledged meanwhile, which stay until their time and do nothing then.
    A row of the picture is without those above it; in the JSON's forecast it counts all that is due before
    its until_ms.

    A level's strip shows its timers from now on. Each character stands for many slots and is higher the more
    timers these have; the scale is logarithmic.
    """
    with current_session().client() as client:
        if watch:
            _watch(client, every.total_seconds())
        elif current_session().json:
            print_json(client.wheel())
        else:
            from cli.wheel_picture import wheel_picture

            console = stdout_console()
            console.print(wheel_picture(client.wheel(), console.width))


def _watch(client: sync.Client, seconds: float) -> None:
    """Until Ctrl-C, which is the ordinary way to stop and no error."""
    from rich.live import Live

    from cli.wheel_picture import wheel_picture

    console = stdout_console()
    as_json = current_session().json
    try:
        if as_json or not console.is_terminal:
            while True:
                picture = client.wheel()
                print_json(picture) if as_json else console.print(wheel_picture(picture, console.width))
                time.sleep(seconds)
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                live.update(wheel_picture(client.wheel(), console.width), refresh=True)
                time.sleep(seconds)
    except KeyboardInterrupt:
        return
