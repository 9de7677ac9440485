"""`tickwheel cancel`, `reschedule` and `redeliver`: change messages after they were sent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.filters import filter_arguments, filter_options, report_counts
from tickwheel_cli.shared.options import selected_messages, selection_options, time_arguments, time_options
from tickwheel_cli.shared.output import print_json
from tickwheel_cli.shared.session import current_session, shared_options


@click.command()
@selection_options
@filter_options
@click.option("--stop", is_flag=True, help="Also end the redelivery of what was delivered and not acked.")
@shared_options
def cancel(
    names: tuple[str, ...], topic: str | None, keys: tuple[str, ...], stop: bool, **where: Any
) -> None:
    """Cancel messages that are not delivered yet, by id, by topic and key, or all that a filter means.

    \b
    tickwheel cancel 1042 1043
    tickwheel cancel reminders --key renewal-17
    tickwheel cancel reminders --due-from 2031-05-01T00:00Z --due-until 2031-05-02T00:00Z --dry-run

    The answer is exact: cancelled, stopped, already_delivered, already_acked, already_cancelled, expired
    or not_found. A message that is cancelled frees its key: a cancel that is repeated by id answers
    already_cancelled, one by key not_found. The exit code is 0 only when each answer is one of cancelled,
    stopped and already_cancelled.
    """
    filtered = filter_arguments(names, topic, keys, where)
    if filtered is not None:
        with current_session().client() as client:
            report_counts(
                client.cancel_where(filtered.topic, stop=stop, **filtered.options), dry_run=where["dry_run"]
            )
        return
    selection = selected_messages(names, topic, keys)
    with current_session().client() as client:
        results = client.cancel(**selection, stop=stop)
    _report(selection, results, good={"cancelled", "stopped", "already_cancelled"})


@click.command()
@selection_options
@time_options
@click.option("--priority", type=click.IntRange(0, 255), help="A new priority. Lower is first.")
@filter_options
@shared_options
def reschedule(
    names: tuple[str, ...],
    topic: str | None,
    keys: tuple[str, ...],
    delay: timedelta | None,
    moment: datetime | None,
    priority: int | None,
    **where: Any,
) -> None:
    """Give messages that are not delivered yet a new time, a new priority, or both.

    \b
    tickwheel reschedule 1042 --in 10m
    tickwheel reschedule reminders --key renewal-17 --at 2031-06-01T09:00+02:00
    tickwheel reschedule reminders --due-until 2031-05-02T00:00Z --in 1h --priority 10

    The answer is exact: rescheduled, already_delivered, already_acked, already_cancelled, expired or
    not_found. The exit code is 0 only when everything was rescheduled.
    """
    change = time_arguments(delay, moment) | ({} if priority is None else {"priority": priority})
    filtered = filter_arguments(names, topic, keys, where)
    selection = None if filtered is not None else selected_messages(names, topic, keys)
    if not change:
        raise click.UsageError("a new time is needed: --in 10m or --at 2031-05-01T09:00+02:00, or --priority")
    with current_session().client() as client:
        if filtered is not None:
            report_counts(
                client.reschedule_where(filtered.topic, **change, **filtered.options),
                dry_run=where["dry_run"],
            )
            return
        assert selection is not None
        results = client.reschedule(**selection, **change)
    _report(selection, results, good={"rescheduled"})


@click.command()
@selection_options
@time_options
@click.option("--acked", is_flag=True, help="Also to groups that have acknowledged it.")
@click.option("--keep-attempts", is_flag=True, help="Do not count the attempts from 0 again.")
@filter_options
@shared_options
def redeliver(
    names: tuple[str, ...],
    topic: str | None,
    keys: tuple[str, ...],
    delay: timedelta | None,
    moment: datetime | None,
    acked: bool,
    keep_attempts: bool,
    group: str | None,
    **where: Any,
) -> None:
    """Deliver messages again that were delivered before, now or at a time.

    \b
    tickwheel redeliver 1042 --group billing
    tickwheel redeliver orders --key order-17 --acked --in 5m
    tickwheel redeliver orders --state waiting --epoch-min 3

    Whoever holds such a message loses it. The answer is exact: redelivered, waiting (it is to be delivered
    anyway), already_acked, already_cancelled, expired or not_found.
    """
    options = {"acked": acked, "keep_attempts": keep_attempts, **time_arguments(delay, moment)}
    # A group says where to deliver again, and alone does not make a filter of ids or keys.
    is_filter = any(where.values()) or (group is not None and not keys and not all(map(str.isdecimal, names)))
    filtered = filter_arguments(names, topic, keys, {**where, "group": group}) if is_filter else None
    selection = None if filtered is not None else selected_messages(names, topic, keys)
    with current_session().client() as client:
        if filtered is not None:
            report_counts(
                client.redeliver_where(filtered.topic, **options, **filtered.options),
                dry_run=where["dry_run"],
            )
            return
        assert selection is not None
        results = client.redeliver(**selection, group=group, **options)
    _report(selection, results, good={"redelivered", "waiting"})


def _report(selection: dict[str, Any], results: Sequence[str], good: set[str]) -> None:
    field, names = ("id", selection["ids"]) if "ids" in selection else ("key", selection["keys"])
    if current_session().json:
        print_json([{field: name, "result": result} for name, result in zip(names, results, strict=True)])
    else:
        for name, result in zip(names, results, strict=True):
            click.echo(f"{name}: {result.replace('_', ' ')}")
    if not set(results) <= good:
        raise CommandFailed(ExitCode.FAILED)
