"""`tickwheel groups`: consumer groups, made, shown, changed, moved and deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from tickwheel.protocol.readable import format_duration
from tickwheel_cli.shared.options import DURATION, START, confirm
from tickwheel_cli.shared.output import counted, print_result
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.tables import left, print_found, right
from tickwheel_cli.shared.times import format_moment

if TYPE_CHECKING:
    from tickwheel.stats import GroupInfo, GroupStats

FIGURES = ("backlog", "leased", "delivered", "acked", "dead", "subscribers")
_COLUMNS = (*left("topic", "group"), *right(*FIGURES), *left("last read"), *right("id"))
_OPTIONAL = ("id", "delivered", "dead", "leased")


@click.group(invoke_without_command=True)
@shared_options
@click.pass_context
def groups(ctx: click.Context) -> None:
    """List consumer groups; create, change, move and delete them.

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
    state = found.endpoint_state
    end = f"  ends {format_duration(found.ephemeral_ms)} after its last subscriber has left"
    print_result(
        found,
        f"{found.name} of {found.topic}, group {found.group_id}",
        f"  backlog {found.backlog:,}, of which {found.leased:,} leased",
        f"  delivered {found.delivered:,}, acked {found.acked:,}, dead {found.dead:,}",
        f"  subscribers {found.subscribers:,}, last read {last_read(found)}",
        *([end] if found.ephemeral_ms else []),
        *(["  ignores ordering keys"] if found.ignores_ordering_keys else []),
        *([] if state is None else [f"  endpoint {state.text(datetime.now(UTC))}"]),
        f"  created {format_moment(found.created_ms)}",
    )


@groups.command()
@click.argument("topic")
@click.argument("name")
@click.option(
    "--start",
    type=START,
    default="earliest",
    show_default=True,
    help="Where it begins: earliest, latest, or the time from which messages were due.",
)
@click.option("--ephemeral", type=DURATION, help="It ends so long after its last subscriber has left.")
@click.option(
    "--ignore-ordering-keys", is_flag=True, help="Messages with an ordering key come as those without."
)
@shared_options
def create(
    topic: str, name: str, start: str | datetime, ephemeral: timedelta | None, ignore_ordering_keys: bool
) -> None:
    """Create a group before it has a subscriber, such as where auto_create_groups is off."""
    with current_session().client() as client:
        created = client.create_group(
            topic,
            name,
            start=start,  # type: ignore[arg-type]
            ephemeral=ephemeral,
            ignore_ordering_keys=ignore_ordering_keys,
        )
    print_result(
        {"topic": topic, "group": name, "created": created},
        f"made group {name} of {topic}" if created else "It was there already.",
    )


@groups.command("set")
@click.argument("topic")
@click.argument("name")
@click.option(
    "--ignore-ordering-keys/--keep-ordering-keys",
    required=True,
    help="Whether messages with an ordering key come as those without.",
)
@shared_options
def set_group(topic: str, name: str, ignore_ordering_keys: bool) -> None:
    """Change how a group is given messages. Its subscribers stay."""
    with current_session().client() as client:
        changed = client.set_group(topic, name, ignore_ordering_keys=ignore_ordering_keys)
    print_result(
        {"topic": topic, "group": name, "changed": changed},
        f"changed group {name} of {topic}" if changed else "It was so already.",
    )


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
    print_result(
        {"topic": topic, "group": name, "backlog": left},
        f"deleted group {name} of {topic}; it was not done with {counted(left, 'message')}",
    )


@groups.command()
@click.argument("topic")
@click.argument("name")
@click.option(
    "--to",
    "where",
    type=START,
    required=True,
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
    print_result(
        {"topic": topic, "group": name, "backlog": backlog},
        f"moved group {name} of {topic}; its backlog is {counted(backlog, 'message')}",
    )


def figures_of(group: GroupInfo | GroupStats) -> list[str]:
    """What stands in the columns of `FIGURES`."""
    return [f"{getattr(group, name):,}" for name in FIGURES]


def last_read(group: Any) -> str:
    """When a group was last read, for a table."""
    if group.subscribers:
        return "now"
    return format_moment(group.last_read_ms)[:16].replace("T", " ") + "Z" if group.last_read_ms else "-"


def _print_groups(topic: str | None) -> None:
    with current_session().client() as client:
        found = client.groups(topic)
    rows = [_cells(one) for one in sorted(found, key=lambda one: (one.topic, one.name))]
    empty = "There are no groups yet. The first subscription creates one: tickwheel receive reminders"
    print_found(found, _COLUMNS, rows, empty=empty, optional=_OPTIONAL)


def _cells(group: GroupInfo) -> list[str]:
    return [group.topic, group.name, *figures_of(group), last_read(group), str(group.group_id)]
