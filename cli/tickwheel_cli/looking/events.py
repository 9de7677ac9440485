"""`tickwheel events`: what happens at the broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from tickwheel.blocking.interruptions import uninterrupted
from tickwheel.protocol.limits import MAX_HISTORY_EVENTS
from tickwheel_cli.shared.options import Parsed, parse_place
from tickwheel_cli.shared.output import print_json, printable
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.times import format_moment

if TYPE_CHECKING:
    from tickwheel import EventsTail, LoggedEvent

_FOLLOW_S = 1.0
_GAP = "Something came before these events that is gone: it was purged, or cannot be read."
_NEXT = {"sent": "due", "rescheduled": "due", "delivered": "until"}


def _parse_place(text: str) -> Any:
    if text in ("earliest", "latest"):
        return text
    return parse_place(text)


@click.command()
@click.option(
    "--from",
    "start",
    type=Parsed("PLACE", _parse_place),
    help="earliest, latest, or the place with which an earlier run ended.  [default: earliest; with --follow latest]",
)
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_HISTORY_EVENTS),
    default=1_000,
    show_default=True,
    help="At most so many (at a time, with --follow).",
)
@click.option("--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@shared_options
def events(start: Any, limit: int, follow: bool) -> None:
    """Print what has happened: each send, delivery, ack and so on, from the log. With tokens it takes query:*.

    \b
    tickwheel events --limit 20
    tickwheel events --follow
    tickwheel events --follow --json | jq 'select(.event == "dead")'
    tickwheel events --follow --from 123456.0

    Only what is safe on disk is told. At the end, on standard error, stands the place from which --from goes on.
    """
    place: Any = start or ("latest" if follow else "earliest")
    with current_session().client() as client:
        try:
            while True:
                found = client.events(place, limit=limit)
                with uninterrupted():  # what is printed is not told again from the place that is printed last
                    _print(found)
                    place = found.next
                if not follow:
                    break
                if not found.more:
                    time.sleep(_FOLLOW_S)
        except KeyboardInterrupt:  # the ordinary way to stop, and no error
            pass
    if not isinstance(place, str):
        click.echo(f"next: {place[0]}.{place[1]}", err=True)


def _print(found: EventsTail) -> None:
    if found.has_gap:
        click.echo(_GAP, err=True)
    for event in found.events:
        print_json(event) if current_session().json else click.echo(_line(event))


def _line(event: LoggedEvent) -> str:
    words = [
        "-" if event.time_ms is None else format_moment(event.time_ms),
        event.event,
        str(event.id or "-"),
        event.topic or "-",
    ]
    if event.group:
        words.append(f"{event.group} epoch {event.epoch}")
    if event.next_ms is not None:
        words.append(f"{_NEXT.get(event.event, 'next')} {format_moment(event.next_ms)}")
    if event.error:
        words.append(printable(event.error.encode("utf-8", "replace")))
    return "  ".join(words)
