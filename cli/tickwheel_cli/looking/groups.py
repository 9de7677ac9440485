"""`tickwheel groups`: consumer groups, made, shown, moved and deleted."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.shared.options import confirm, parsed_by
from tickwheel_cli.shared.output import counted, print_json
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.tables import print_table
from tickwheel_cli.shared.times import format_duration, format_moment, parse_duration, parse_moment

if TYPE_CHECKING:
    from tickwheel.stats import GroupInfo

_COLUMNS = (
    ("topic", "left"),
    ("group", "left"),
    ("backlog", "right"),
    ("leased", "right"),
    ("delivered", "right"),
    ("acked", "right"),
    ("dead", "right"),
    ("subscribers", "right"),
    ("last read", "left"),
    ("id", "right"),
)
_OPTIONAL = ("id", "delivered", "dead", "leased")
_WHERE = parsed_by(lambda text: text if text in ("earliest", "latest") else parse_moment(text))


@click.group(invoke_without_command=True)
@shared_options
@click.pass_context
def groups(ctx: click.Context) -> None:
    """List consumer groups; create, move and delete them.

    \b
    tickwheel groups
    tickwheel groups show orders billing
    tickwheel groups seek orders billing --to 2031-05-01T09:00+02:00
    tickwheel groups delete orders biling
    """
    if ctx.invoked_subcommand is None:
        _print_groups(None)


@groups.command("list")
@click.argument("topic", required=False)
@shared_options
def list_groups(topic: str | None) -> None:
    """List the groups of TOPIC, or of all topics.

    "last read" is when a group got its first subscriber or lost its last one; now: it has some.
    """
    _print_groups(topic)


@groups.command()
@click.argument("topic")
@click.argument("name")
@shared_options
def show(topic: str, name: str) -> None:
    """Show one group."""
    with current_session().client() as client:
        found = client.group(topic, name)
    if current_session().json:
        print_json(found)
        return
    click.echo(f"{found.name} of {found.topic}, group {found.group_id}")
    click.echo(f"  backlog {found.backlog:,}, of which {found.leased:,} leased")
    click.echo(f"  delivered {found.delivered:,}, acked {found.acked:,}, dead {found.dead:,}")
    click.echo(f"  subscribers {found.subscribers:,}, last read {last_read(found)}")
    if found.ephemeral_ms:
        click.echo(f"  ends {format_duration(found.ephemeral_ms)} after its last subscriber has left")
    click.echo(f"  created {format_moment(found.created_ms)}")


@groups.command()
@click.argument("topic")
@click.argument("name")
@click.option(
    "--start",
    metavar="WHERE",
    default="earliest",
    show_default=True,
    callback=_WHERE,
    help="Where it begins: earliest, latest, or the time from which messages were due.",
)
@click.option(
    "--ephemeral",
    metavar="DURATION",
    callback=parsed_by(parse_duration),
    help="It ends so long after its last subscriber has left.",
)
@shared_options
def create(topic: str, name: str, start: str | datetime, ephemeral: timedelta | None) -> None:
    """Create a group before it has a subscriber, such as where auto_create_groups is off."""
    with current_session().client() as client:
        created = client.create_group(topic, name, start=start, ephemeral=ephemeral)  # type: ignore[arg-type]
    if current_session().json:
        print_json({"topic": topic, "group": name, "created": created})
    else:
        click.echo(f"made group {name} of {topic}" if created else "It was there already.")


@groups.command()
@click.argument("topic")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared_options
def delete(topic: str, name: str, yes: bool) -> None:
    """Delete a group, so that messages are kept for it no longer. It must have no subscribers."""
    with current_session().client() as client:
        if not yes:
            backlog = client.group(topic, name).backlog
            confirm(f"Delete group {name} of {topic}, which is not done with {counted(backlog, 'message')}?")
        left = client.delete_group(topic, name)
    if current_session().json:
        print_json({"topic": topic, "group": name, "backlog": left})
    else:
        click.echo(f"deleted group {name} of {topic}; it was not done with {counted(left, 'message')}")


@groups.command()
@click.argument("topic")
@click.argument("name")
@click.option(
    "--to",
    "where",
    metavar="WHERE",
    required=True,
    callback=_WHERE,
    help="earliest, latest, or the time from which messages were due.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared_options
def seek(topic: str, name: str, where: Any, yes: bool) -> None:
    """Let a group begin anew: what lies from there on is delivered again, what lies before is left out.

    \b
    tickwheel groups seek orders billing --to earliest
    tickwheel groups seek orders billing --to 2031-05-01T09:00+02:00

    Its subscribers stay, and lose the messages that they hold.
    """
    with current_session().client() as client:
        if not yes:
            found = client.group(topic, name)
            confirm(
                f"Move group {name} of {topic}, which is not done with {counted(found.backlog, 'message')}?"
            )
        backlog = client.seek_group(topic, name, to=where)
    if current_session().json:
        print_json({"topic": topic, "group": name, "backlog": backlog})
    else:
        click.echo(f"moved group {name} of {topic}; its backlog is {counted(backlog, 'message')}")


def last_read(group: Any) -> str:
    """When a group was last read, for a table."""
    if group.subscribers:
        return "now"
    return format_moment(group.last_read_ms)[:16].replace("T", " ") + "Z" if group.last_read_ms else "-"


def _print_groups(topic: str | None) -> None:
    with current_session().client() as client:
        found = client.groups(topic)
    if current_session().json:
        print_json(found)
    elif not found:
        click.echo("There are no groups yet. The first subscription creates one: tickwheel receive reminders")
    else:
        found.sort(key=lambda one: (one.topic, one.name))
        print_table(_COLUMNS, [_cells(one) for one in found], optional=_OPTIONAL)


def _cells(group: GroupInfo) -> list[str]:
    figures = (group.backlog, group.leased, group.delivered, group.acked, group.dead, group.subscribers)
    return [group.topic, group.name, *(f"{one:,}" for one in figures), last_read(group), str(group.group_id)]
