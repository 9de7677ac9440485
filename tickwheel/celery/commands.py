"""``celery tickwheel``: tasks that wait at the broker, and what may be wrong.

The program ``celery`` imports this by its entry point, and with it the URLs that Kombu is to know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import click
import msgspec

from tickwheel.protocol.errors import TickwheelError
from tickwheel.protocol.moments import parse_moment
from tickwheel.protocol.units import parse_duration_ms

_NOT_ALL: Final = 1

_queue_option = click.option(
    "-Q",
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Look through this queue as well as those of the app (task_queues, or the default one).",
)
_json_option = click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def tickwheel() -> None:
    """Tasks that wait at a broker of Tickwheel, and what may be wrong."""


@tickwheel.command()
@_queue_option
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="At most so many."
)
@_json_option
@click.pass_context
def scheduled(context: click.Context, queues: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List tasks that wait for their time, those first that are due first."""
    from tickwheel.celery.control import scheduled as found

    with _failures():
        tasks = found(_app(context), queues=queues, limit=limit)
    if as_json:
        _print_json(tasks)
        return
    for task in tasks:
        eta = task.eta.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        origin = f" (beat: {task.entry})" if task.entry else ""
        click.echo(f"{eta}  {task.id}  {task.queue}  {task.name}  {task.args} {task.kwargs}{origin}")
    noun = "task" if len(tasks) == 1 else "tasks"
    click.echo(
        f"{len(tasks):,} {noun}" if len(tasks) < limit else f"the first {len(tasks):,} {noun}", err=True
    )


@tickwheel.command()
@click.argument("task_ids", metavar="TASK_ID...", nargs=-1, required=True)
@_queue_option
@_json_option
@click.pass_context
def cancel(context: click.Context, task_ids: Sequence[str], queues: tuple[str, ...], as_json: bool) -> None:
    """Cancel tasks that no worker was given yet. Exit code 1: at least one was not cancelled."""
    from tickwheel.celery.control import cancel as cancelled
    from tickwheel.celery.waiting import Outcome

    with _failures():
        outcomes = cancelled(_app(context), task_ids, queues=queues)
    _print_outcomes(outcomes, as_json)
    done = (Outcome.CANCELLED, Outcome.ALREADY_CANCELLED)
    if any(outcome not in done for outcome in outcomes.values()):
        context.exit(_NOT_ALL)


@tickwheel.command()
@click.argument("task_id")
@click.option("--eta", metavar="TIME", help="When: 2031-05-01T09:00+02:00, with an offset or Z.")
@click.option("--in", "countdown", metavar="DURATION", help="Instead: in how long, as 90s, 2h30m or 7d.")
@_queue_option
@_json_option
@click.pass_context
def reschedule(
    context: click.Context,
    task_id: str,
    eta: str | None,
    countdown: str | None,
    queues: tuple[str, ...],
    as_json: bool,
) -> None:
    """Give a task that no worker was given yet another time. Exit code 1: it was not changed."""
    from tickwheel.celery.control import reschedule as rescheduled
    from tickwheel.celery.waiting import Outcome

    with _failures():
        outcome = rescheduled(_app(context), task_id, _when(eta, countdown), queues=queues)
    _print_outcomes({task_id: outcome}, as_json)
    if outcome is not Outcome.RESCHEDULED:
        context.exit(_NOT_ALL)


@tickwheel.command()
@_queue_option
@_json_option
@click.pass_context
def doctor(context: click.Context, queues: tuple[str, ...], as_json: bool) -> None:
    """Look at the app, its broker, queues and schedules. Exit code 1: there is a problem."""
    from tickwheel.celery.doctor import examine

    app = _app(context)
    app.loader.import_default_modules()
    with _failures():
        findings = list(examine(app, queues))
    if as_json:
        _print_json(findings)
    else:
        for one in findings:
            click.echo(f"{one.level:<8} {one.subject}: {one.text}")
            if one.advice:
                click.echo(f"{'':<8} {one.advice}")
    if any(one.level == "problem" for one in findings):
        context.exit(_NOT_ALL)


@tickwheel.command()
@click.option(
    "--idle",
    metavar="DURATION",
    default="1d",
    show_default=True,
    help="What was neither read nor written for so long.",
)
@click.option("--dry-run", is_flag=True, help="Only say which.")
@_json_option
@click.pass_context
def sweep(context: click.Context, idle: str, dry_run: bool, as_json: bool) -> None:
    """Delete topics of results (rpc://) that processes left which were killed."""
    from tickwheel.celery.broker import client_of
    from tickwheel.celery.replies import ReplyTopics

    try:
        duration = timedelta(milliseconds=parse_duration_ms(idle))
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"--idle: {error}.") from None
    with _failures(), client_of(_app(context), "celery sweep") as client:
        found = ReplyTopics(client).sweep(duration, dry_run=dry_run)
    if as_json:
        _print_json(found)
        return
    for name in found:
        click.echo(name)
    noun = "topic" if len(found) == 1 else "topics"
    click.echo(f"{len(found):,} {noun} {'would be deleted' if dry_run else 'deleted'}", err=True)


def _app(context: click.Context) -> Any:
    return context.obj.app


def _when(eta: str | None, countdown: str | None) -> datetime | timedelta:
    """Raises UsageError."""
    if (eta is None) == (countdown is None):
        raise click.UsageError("Say when: either --eta or --in.")
    try:
        if countdown is not None:
            return timedelta(milliseconds=parse_duration_ms(countdown))
    except (ValueError, OverflowError) as error:
        raise click.UsageError(f"--in: {error}.") from None
    try:
        moment = parse_moment(eta or "")
    except ValueError:
        raise click.UsageError(
            f"--eta: {eta!r} is not a time; write it like 2031-05-01T09:00+02:00, or 2031-05-01T07:00Z."
        ) from None
    if moment.utcoffset() is None:
        raise click.UsageError(f"{eta} does not say its UTC offset; write {eta}+02:00, or {eta}Z for UTC.")
    return moment


@contextmanager
def _failures() -> Iterator[None]:
    """Errors of the broker and of its address as one line."""
    try:
        yield
    except TickwheelError as error:
        raise click.ClickException(str(error)) from None


def _print_outcomes(outcomes: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(outcomes)
        return
    for task_id, outcome in outcomes.items():
        click.echo(f"{task_id}  {outcome.replace('_', ' ')}")


def _print_json(value: Any) -> None:
    click.echo(msgspec.json.encode(value))
