"""`tickwheel schedules`: messages that are sent again and again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

import click

from tickwheel.protocol.headers import as_json
from tickwheel.protocol.limits import MAX_TIME_MS
from tickwheel.protocol.units import format_duration
from tickwheel_cli.shared.options import DURATION, HEADER, TIME, Parsed
from tickwheel_cli.shared.output import body_fields, print_result
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.tables import left, print_found
from tickwheel_cli.shared.times import parse_duration

if TYPE_CHECKING:
    from tickwheel import Schedule


@click.group(invoke_without_command=True)
@shared_options
@click.pass_context
def schedules(ctx: click.Context) -> None:
    """Messages that are sent again and again, by cron or at an interval; alone, it lists them.

    \b
    tickwheel schedules
    tickwheel schedules create standup --cron "0 9 * * MON-FRI" --tz Europe/Paris --topic chat --body "stand-up!"
    tickwheel schedules next standup
    tickwheel schedules set standup --tz Europe/London
    tickwheel schedules trigger standup
    """
    if ctx.invoked_subcommand is None:
        _print_all()


def _interval(text: str) -> timedelta:
    interval = parse_duration(text)
    if not interval:
        raise ValueError("an interval is at least 1ms")
    return interval


_Command = TypeVar("_Command", bound=Callable[..., Any])
_COLUMNS = left("schedule", "rhythm", "topic", "next")
_UNSETTABLE = ("until", "body", "header", "priority", "window")


def _options(*, of_new: bool) -> Callable[[_Command], _Command]:
    """What a schedule says: `create` has defaults, `set` leaves alone what is not given."""

    def default(value: str) -> str:
        return f"  [default: {value}]" if of_new else ""

    text = 'Five fields, such as "0 9 * * MON-FRI"; six, with seconds first; or @hourly, @daily, @weekly …'
    overlap, catch_up = click.Choice(["allow", "skip"]), click.Choice(["none", "last", "all"])
    options = [
        click.option("--topic", required=of_new, help="Where the messages go."),
        click.option("--cron", help=text),
        click.option("--tz", help=f"The zone of the cron expression.{default('UTC')}"),
        click.option("--every", type=Parsed("DURATION", _interval), help="Instead of cron: 10m."),
        click.option("--start", type=TIME, help="Not before this time."),
        click.option("--until", type=TIME, help="Not after this time."),
        click.option("--body", help="Of each message."),
        click.option("--header", "headers", multiple=True, type=HEADER, help="Repeatable."),
        click.option("--priority", type=click.IntRange(0, 255), help="Lower is first."),
        click.option(
            "--overlap",
            type=overlap,
            help=f"skip: not while the message before is not done.{default('allow')}",
        ),
        click.option(
            "--catch-up",
            type=catch_up,
            help=f"What to send of what was missed while the broker was down.{default('last')}",
        ),
        click.option(
            "--window", type=DURATION, help="Each message is due somewhere in so long after its time."
        ),
    ]

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were used, as the client takes them."""
    used = {name: value for name, value in options.items() if value not in (None, ())}
    if "body" in used:
        used["body"] = used["body"].encode()
    if "headers" in used:
        used["headers"] = dict(used["headers"])
    return used


@schedules.command()
@click.argument("name")
@_options(of_new=True)
@shared_options
def create(name: str, **options: Any) -> None:
    """Create a schedule, and print its next times."""
    used = _given(options)
    if ("cron" in used) == ("every" in used):
        raise click.UsageError("give either --cron or --every")
    with current_session().client(may_create=True) as client:
        made = client.create_schedule(name, used.pop("topic"), **used)
    _print(made)


@schedules.command("set")
@click.argument("name")
@click.option(
    "--unset",
    multiple=True,
    type=click.Choice(_UNSETTABLE),
    help="As if it had never been given; may be repeated.",
)
@_options(of_new=False)
@shared_options
def set_schedule(name: str, unset: tuple[str, ...], **options: Any) -> None:
    """Change a schedule, all that is given or nothing, and print its next times.

    It counts for times that have not come yet. --cron takes the place of --every, and the other way round.

    \b
    tickwheel schedules set standup --cron "30 9 * * MON-FRI" --unset until
    """
    used = _given(options)
    if not used and not unset:
        raise click.UsageError("nothing to change: give an option, or --unset")
    if "cron" in used and "every" in used:
        raise click.UsageError("give either --cron or --every")
    names = ["headers" if one == "header" else one for one in unset]
    with current_session().client() as client:
        changed = client.set_schedule(name, unset=names, **used)
    _print(changed)


@schedules.command("list")
@shared_options
def list_schedules() -> None:
    """List all schedules."""
    _print_all()


def _print_all() -> None:
    with current_session().client() as client:
        found = client.schedules()
    rows = [_row(one) for one in found]
    print_found([_fields(one) for one in found], _COLUMNS, rows, empty="There are no schedules yet.")
    for one in found if not current_session().json else ():
        if one.trouble:
            click.echo(f"{one.name} waits: {one.trouble}")


def _row(schedule: Schedule) -> list[str]:
    ended = "paused" if schedule.paused else "ended"
    following = _moment(schedule.tz, schedule.next_ms[0]) if schedule.next_ms else ended
    return [schedule.name, _rhythm(schedule), schedule.topic, following]


@schedules.command()
@click.argument("name")
@shared_options
def show(name: str) -> None:
    """Show a schedule and its next five times."""
    with current_session().client() as client:
        _print(client.schedule(name))


_COUNT = click.option(
    "--count", type=click.IntRange(1, 1_000), default=5, show_default=True, help="How many times."
)
_AFTER = click.option("--after", type=TIME, help="After this time instead of now.")


@schedules.command("next")
@click.argument("name")
@_COUNT
@_AFTER
@shared_options
def next_times(name: str, count: int, after: datetime | None) -> None:
    """Print the next times of a schedule, in its own zone; none while it is paused."""
    with current_session().client() as client:
        found = client.schedule(name, count=count, after=after)
    print_result(found.next_ms, *(_moment(found.tz, slot_ms) for slot_ms in found.next_ms))


@schedules.command()
@click.option("--cron", help='Five fields, such as "30 2 * * *"; six, with seconds first.')
@click.option("--tz", default="UTC", show_default=True, help="The zone of the cron expression.")
@click.option("--every", type=Parsed("DURATION", _interval), help="Instead of cron: 10m.")
@click.option("--start", type=TIME, help="Not before this time.")
@click.option("--until", type=TIME, help="Not after this time.")
@_COUNT
@_AFTER
@shared_options
def preview(tz: str, cron: str | None, every: timedelta | None, **options: Any) -> None:
    """Print which times a schedule would have, and which of them clocks that change skip or repeat.

    \b
    tickwheel schedules preview --cron "30 2 * * *" --tz Europe/Paris --after 2031-03-30T00:00Z
    """
    if (cron is None) == (every is None):
        raise click.UsageError("give either --cron or --every")
    with current_session().client() as client:
        found = client.preview_schedule(cron=cron, tz=tz, every=every, **options)
    print_result(
        {"times": [one._asdict() for one in found.times], "skipped": found.skipped},
        *(f"{_moment(tz, at_ms)}{f'  {which} of two' if which else ''}" for at_ms, which in found.times),
        *(f"{local} does not exist: clocks are put forward" for local in found.skipped),
    )


@schedules.command()
@click.argument("name")
@shared_options
def pause(name: str) -> None:
    """Send nothing until `resume`."""
    with current_session().client() as client:
        _print(client.pause_schedule(name))


@schedules.command()
@click.argument("name")
@shared_options
def resume(name: str) -> None:
    """Go on with the next time."""
    with current_session().client() as client:
        _print(client.resume_schedule(name))


@schedules.command()
@click.argument("name")
@click.option("--token", help="A name of yours for this time: with the same one it is sent once.")
@shared_options
def trigger(name: str, token: str | None) -> None:
    """Send the message now, beside the rhythm; prints its id."""
    with current_session().client() as client:
        message_id = client.trigger_schedule(name, token=token)
    print_result({"id": message_id}, str(message_id))


@schedules.command()
@click.argument("name")
@shared_options
def delete(name: str) -> None:
    """End a schedule."""
    with current_session().client() as client:
        client.delete_schedule(name)
    print_result({"deleted": name}, f"deleted {name}")


def _print(schedule: Schedule) -> None:
    window = f", window {format_duration(schedule.window_ms)}" if schedule.window_ms else ""
    lines = [
        f"{schedule.name}{' (paused)' if schedule.paused else ''}",
        f"  {_rhythm(schedule)}, to {schedule.topic}",
        f"  overlap {schedule.overlap}, catch-up {schedule.catch_up}{window}",
        f"  sent {schedule.sent:,}, skipped {schedule.skipped:,}, missed {schedule.missed:,}",
    ]
    if schedule.until_ms < MAX_TIME_MS:
        lines.append(f"  until {_moment(schedule.tz, schedule.until_ms)}")
    if schedule.trouble:
        lines.append(f"  waits: {schedule.trouble}")
    lines += [f"  next {_moment(schedule.tz, slot_ms)}" for slot_ms in schedule.next_ms]
    print_result(_fields(schedule), *lines)


def _rhythm(schedule: Schedule) -> str:
    if schedule.cron:
        return f"{schedule.cron} {schedule.tz}"
    return f"every {format_duration(schedule.every_ms)}"


def _moment(tz: str, slot_ms: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=slot_ms)
    try:
        return moment.astimezone(ZoneInfo(tz)).isoformat(timespec="seconds")
    except (
        LookupError,
        ValueError,
        OSError,
        OverflowError,
    ):  # the broker may know a zone that this machine does not
        return moment.isoformat(timespec="seconds")


def _fields(schedule: Schedule) -> dict[str, object]:
    fields: dict[str, object] = {name: getattr(schedule, name) for name in schedule.__struct_fields__}
    del fields["body"]
    fields["headers"] = as_json(schedule.headers)
    return {**fields, **body_fields(schedule.body)}
