"""`tickwheel cancel`, `reschedule` and `redeliver`: change messages after they were sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click

from tickwheel import ChangeResult
from tickwheel_broker.exit_codes import ExitCode
from tickwheel_cli.shared.failures import CommandFailed
from tickwheel_cli.shared.filters import (
    Filtered,
    filter_arguments,
    filter_options,
    report_counts,
    where_arguments,
)
from tickwheel_cli.shared.options import selected_messages, selection_options, time_arguments, time_options
from tickwheel_cli.shared.output import print_result
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
    from tickwheel.sync import Client

    which = filter_arguments(names, topic, keys, where) or selected_messages(names, topic, keys)
    by_filter, by_name = partial(Client.cancel_where, stop=stop), partial(Client.cancel, stop=stop)
    good = {"cancelled", "stopped", "already_cancelled"}
    _change(which, by_filter, by_name, good=good, dry_run=where["dry_run"])


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
    which = filter_arguments(names, topic, keys, where) or selected_messages(names, topic, keys)
    if not change:
        raise click.UsageError("a new time is needed: --in 10m or --at 2031-05-01T09:00+02:00, or --priority")
    from tickwheel.sync import Client

    by_filter, by_name = partial(Client.reschedule_where, **change), partial(Client.reschedule, **change)
    _change(which, by_filter, by_name, good={"rescheduled"}, dry_run=where["dry_run"])


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
    is_filter = bool(where_arguments(where)) or (
        group is not None and not keys and not all(map(str.isdecimal, names))
    )
    filtered = filter_arguments(names, topic, keys, {**where, "group": group}) if is_filter else None
    which = filtered or selected_messages(names, topic, keys)
    from tickwheel.sync import Client

    by_filter = partial(Client.redeliver_where, **options)
    by_name = partial(Client.redeliver, group=group, **options)
    _change(which, by_filter, by_name, good={"redelivered", "waiting"}, dry_run=where["dry_run"])


def _change(
    which: Filtered | dict[str, Any],
    by_filter: Callable[..., ChangeResult],
    by_name: Callable[..., Sequence[str]],
    *,
    good: set[str],
    dry_run: bool,
) -> None:
    """Changes what a filter means and prints counts, or what ids or keys name and prints the answer to each."""
    with current_session().client() as client:
        if isinstance(which, Filtered):
            report_counts(by_filter(client, which.topic, **which.options), dry_run=dry_run)
            return
        results = by_name(client, **which)
    field, names = ("id", which["ids"]) if "ids" in which else ("key", which["keys"])
    answers = list(zip(names, results, strict=True))
    print_result(
        [{field: name, "result": result} for name, result in answers],
        *(f"{name}: {result.replace('_', ' ')}" for name, result in answers),
    )
    if not set(results) <= good:
        raise CommandFailed(ExitCode.FAILED)
