"""`tickwheel history`: what has happened to one message."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tickwheel.protocol.limits import MAX_HISTORY_EVENTS
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.options import DURATION
from tickwheel_cli.shared.output import print_json, printable
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.tables import left, print_table, right
from tickwheel_cli.shared.times import format_moment

if TYPE_CHECKING:
    from tickwheel import HistoryEvent, MessageHistory

_COLUMNS = (*left("time", "event", "group"), *right("epoch"), *left("what"))
_NEXT = {"sent": "due", "rescheduled": "due", "delivered": "until", "extended": "until"}
_MISSING = {
    "purged": "the log begins later: what was before has been purged",
    "limit": "there are more events: give a higher --limit",
    "time": "the log was not read to its end: give a longer --timeout",
    "damaged": "a part of the log cannot be read",
}


@click.command()
@click.argument("which", metavar="ID | TOPIC")
@click.argument("key", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_HISTORY_EVENTS),
    default=1_000,
    show_default=True,
    help="At most so many events.",
)
@click.option(
    "--timeout", type=DURATION, default="30s", show_default=True, help="How long the broker may work on it."
)
@shared_options
def history(which: str, key: str | None, limit: int, timeout: timedelta) -> None:
    """Show what has happened to one message, by its ID, or by TOPIC and KEY.

    \b
    tickwheel history 1234
    tickwheel history orders order-17 --json

    It is read from the broker's log, beside delivery. A time with ">" is a bound: the log does not say when that was,
    only that it was later. With "~" are events that are no records, but follow from others: a lease that ended, a move
    down the wheel. What is missing is said on standard error.
    """
    if key is None and not (which.isascii() and which.isdigit()):
        raise click.UsageError(f"{which!r} is no id: for a message of that topic, give its key, too")
    by: dict[str, Any] = {"id": int(which)} if key is None else {"topic": which, "key": key}
    with current_session().client() as client:
        found = client.history(**by, limit=limit, timeout=timeout.total_seconds())
    if found is None:
        what = f"{which} has no message with the key {key!r}" if key else f"There is no message {which}"
        click.echo(f"{what}, or none any more.", err=True)
        raise CommandFailed(ExitCode.FAILED)
    if current_session().json:
        print_json(found)
    else:
        _print(found)
    for reason in found.missing:
        click.echo(f"Not complete: {_MISSING.get(reason, reason)}.", err=True)


def _print(found: MessageHistory) -> None:
    click.echo(f"message {found.id} of {found.topic}")
    print_table(_COLUMNS, [_cells(event) for event in found.events])


def _cells(event: HistoryEvent) -> list[str]:
    if event.time_ms is not None:
        time = format_moment(event.time_ms)
    else:
        time = "-" if event.after_ms is None else f"> {format_moment(event.after_ms)}"
    what = [f"{_NEXT.get(event.event, 'next')} {format_moment(event.next_ms)}"] if event.next_ms else []
    if event.level is not None:
        what.append(f"to level {event.level}")
    if event.error:
        what.append(printable(event.error.encode("utf-8", "replace")))
    name = f"~ {event.event}" if event.computed else event.event
    return [time, name.replace("_", " "), event.group or "-", str(event.epoch or "-"), ", ".join(what)]
