"""`tickwheel cancel` and `tickwheel reschedule`: change messages that are not delivered yet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from broker.exit_codes import ExitCode
from cli.failures import CommandFailed
from cli.options import selected_messages, selection_options, time_arguments, time_options
from cli.output import print_json
from cli.session import current_session, shared_options


@click.command()
@selection_options
@shared_options
def cancel(names: tuple[str, ...], topic: str | None, keys: tuple[str, ...]) -> None:
    """Cancel messages that are not delivered yet, by id or by topic and key.

    \b
    tickwheel cancel 1042 1043
    tickwheel cancel reminders --key renewal-17

    The answer is exact: cancelled, already_delivered, already_cancelled or not_found.
    The exit code is 0 only when everything was cancelled, now or before.
    """
    selection = selected_messages(names, topic, keys)
    with current_session().client() as client:
        results = client.cancel(**selection)
    _report(selection, results, good={"cancelled", "already_cancelled"})


@click.command()
@selection_options
@time_options
@shared_options
def reschedule(
    names: tuple[str, ...],
    topic: str | None,
    keys: tuple[str, ...],
    delay: timedelta | None,
    moment: datetime | None,
) -> None:
    """Give messages that are not delivered yet a new time.

    \b
    tickwheel reschedule 1042 --in 10m
    tickwheel reschedule reminders --key renewal-17 --at 2031-06-01T09:00+02:00

    The answer is exact: rescheduled, already_delivered, already_cancelled or not_found.
    The exit code is 0 only when everything was rescheduled.
    """
    selection = selected_messages(names, topic, keys)
    time = time_arguments(delay, moment)
    if not time:
        raise click.UsageError("a new time is needed: --in 10m or --at 2031-05-01T09:00+02:00")
    with current_session().client() as client:
        results = client.reschedule(**selection, **time)
    _report(selection, results, good={"rescheduled"})


def _report(selection: dict[str, Any], results: Sequence[str], good: set[str]) -> None:
    field, names = ("id", selection["ids"]) if "ids" in selection else ("key", selection["keys"])
    if current_session().json:
        print_json([{field: name, "result": result} for name, result in zip(names, results, strict=True)])
    else:
        for name, result in zip(names, results, strict=True):
            click.echo(f"{name}: {result.replace('_', ' ')}")
    if not set(results) <= good:
        raise CommandFailed(ExitCode.FAILED)
