"""`tickwheel schedules`: messages that are sent again and again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import click

from cli.options import parse_header, parsed_by
from cli.output import body_fields, print_json
from cli.session import current_session, shared_options
from cli.times import format_duration, parse_duration, parse_moment

if TYPE_CHECKING:
    from tickwheel import Schedule


@click.group()
@shared_options
def schedules() -> None:
    """Messages that are sent again and again, by cron or at an interval.

    \b
    tickwheel schedules create standup --cron "0 9 * * MON-FRI" --tz Europe/Paris --topic chat --body "stand-up!"
    tickwheel schedules next standup
    tickwheel schedules trigger standup
    """


@schedules.command()
@click.argument("name")
@click.option("--topic", required=True, help="Where the messages go.")
@click.option("--cron", help='Five fields, such as "0 9 * * MON-FRI"; six, with seconds first.')
@click.option("--tz", default="UTC", show_default=True, help="The zone of the cron expression.")
@click.option("--every", metavar="DURATION", callback=parsed_by(parse_duration), help="Instead of cron: 10m.")
@click.option("--start", metavar="TIME", callback=parsed_by(parse_moment), help="Not before this time.")
@click.option("--until", metavar="TIME", callback=parsed_by(parse_moment), help="Not after this time.")
@click.option("--body", default="", help="Of each message.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=parsed_by(parse_header),
    help="Repeatable.",
)
@click.option("--priority", type=click.IntRange(0, 255), help="Lower is first.")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip"]),
    default="allow",
    show_default=True,
    help="skip: not while the message before is not done.",
)
@click.option(
    "--catch-up",
    type=click.Choice(["none", "last", "all"]),
    default="last",
    show_default=True,
    help="What to send of what was missed while the broker was down.",
)
@click.option(
    "--window",
    metavar="DURATION",
    callback=parsed_by(parse_duration),
    help="Each message is due somewhere in so long after its time.",
)
@shared_options
def create(
    name: str,
    topic: str,
    cron: str | None,
    tz: str,
    every: timedelta | None,
    start: datetime | None,
    until: datetime | None,
    body: str,
    headers: tuple[tuple[str, str], ...],
    priority: int | None,
    overlap: str,
    catch_up: str,
    window: timedelta | None,
) -> None:
    """Create a schedule, and print its next times."""
    if (cron is None) == (every is None):
        raise click.UsageError("give either --cron or --every")
    with current_session().client() as client:
        made = client.create_schedule(
            name,
            topic,
            cron=cron,
            tz=tz,
            every=every,
            start=start,
            until=until,
            body=body.encode(),
            headers=dict(headers) or None,
            priority=priority,
            overlap=overlap,
            catch_up=catch_up,
            window=window or 0,
        )
    _print(made)


@schedules.command("list")
@shared_options
def list_schedules() -> None:
    """List all schedules."""
    with current_session().client() as client:
        found = client.schedules()
    if current_session().json:
        print_json([_fields(one) for one in found])
    elif not found:
        click.echo("There are no schedules yet.")
    for one in found if not current_session().json else ():
        following = _moment(one, one.next_ms[0]) if one.next_ms else "paused" if one.paused else "ended"
        click.echo(f"{one.name}  {_rhythm(one)}  to {one.topic}  next: {following}")


@schedules.command()
@click.argument("name")
@shared_options
def show(name: str) -> None:
    """Show a schedule and its next five times."""
    with current_session().client() as client:
        _print(client.schedule(name))


@schedules.command("next")
@click.argument("name")
@shared_options
def next_times(name: str) -> None:
    """Print the next five times of a schedule, in its own zone."""
    with current_session().client() as client:
        found = client.schedule(name)
    if current_session().json:
        print_json(found.next_ms)
        return
    for slot_ms in found.next_ms:
        click.echo(_moment(found, slot_ms))


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
@shared_options
def trigger(name: str) -> None:
    """Send the message now, beside the rhythm; prints its id."""
    with current_session().client() as client:
        message_id = client.trigger_schedule(name)
    if current_session().json:
        print_json({"id": message_id})
    else:
        click.echo(str(message_id))


@schedules.command()
@click.argument("name")
@shared_options
def delete(name: str) -> None:
    """End a schedule."""
    with current_session().client() as client:
        client.delete_schedule(name)
    if current_session().json:
        print_json({"deleted": name})
    else:
        click.echo(f"deleted {name}")


def _print(schedule: Schedule) -> None:
    if current_session().json:
        print_json(_fields(schedule))
        return
    click.echo(f"{schedule.name}{' (paused)' if schedule.paused else ''}")
    click.echo(f"  {_rhythm(schedule)}, to {schedule.topic}")
    click.echo(f"  overlap {schedule.overlap}, catch-up {schedule.catch_up}")
    click.echo(f"  sent {schedule.sent:,}, skipped {schedule.skipped:,}, missed {schedule.missed:,}")
    for slot_ms in schedule.next_ms:
        click.echo(f"  next {_moment(schedule, slot_ms)}")


def _rhythm(schedule: Schedule) -> str:
    if schedule.cron:
        return f"{schedule.cron} {schedule.tz}"
    return f"every {format_duration(schedule.every_ms)}"


def _moment(schedule: Schedule, slot_ms: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=slot_ms)
    return moment.astimezone(ZoneInfo(schedule.tz)).isoformat(timespec="seconds")


def _fields(schedule: Schedule) -> dict[str, object]:
    fields: dict[str, object] = {name: getattr(schedule, name) for name in schedule.__struct_fields__}
    del fields["body"]
    return {**fields, **body_fields(schedule.body)}
