"""`tickwheel dead`: the dead letters of a topic. And `browse`: looking at messages without taking them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from cli.filters import report_counts
from cli.output import body_fields, print_json, printable
from cli.session import current_session, shared_options
from cli.times import format_moment
from tickwheel.protocol.limits import dead_topic

if TYPE_CHECKING:
    from tickwheel import BrowsedMessage

_HEADER = "tickwheel-dead"
_STATES = ("scheduled", "ready", "leased", "waiting", "acked", "dead")


@click.group()
@shared_options
def dead() -> None:
    """Dead letters: messages that a group was given as often as its topic allows.

    \b
    tickwheel dead list orders
    tickwheel dead replay orders
    tickwheel dead purge orders
    """


@dead.command("list")
@click.argument("topic")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@shared_options
def list_dead(topic: str, limit: int) -> None:
    """List the dead letters of TOPIC: id, group, attempts, the last error, and the body."""
    with current_session().client() as client:
        letters = client.browse(dead_topic(topic), limit=limit)
    if current_session().json:
        print_json([_fields(letter) for letter in letters])
        return
    for letter in letters:
        story = letter.headers.get(_HEADER, {})
        click.echo(
            f"{letter.id}  {story.get('group', '?')}  after {story.get('attempts', '?')} attempts: "
            f"{printable(str(story.get('error') or 'no ack').encode())}  {printable(letter.body)}"
        )


@dead.command()
@click.argument("topic")
@click.argument("ids", nargs=-1, type=click.IntRange(1))
@click.option("--limit", type=click.IntRange(1, 100_000), default=10_000, show_default=True)
@shared_options
def replay(topic: str, ids: tuple[int, ...], limit: int) -> None:
    """Give dead letters of TOPIC back to the groups that gave them up: all, or those with these IDS."""
    with current_session().client() as client:
        counts = client.replay_dead(topic, ids=list(ids) or None, limit=limit)
    if current_session().json:
        print_json(counts)
    else:
        click.echo(
            ", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in counts.items()) or "none"
        )


@dead.command()
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@shared_options
def purge(topic: str, yes: bool, dry_run: bool) -> None:
    """Drop all dead letters of TOPIC for good."""
    if not yes and not dry_run:
        click.confirm(f"Drop all dead letters of {topic}?", abort=True, err=True)
    with current_session().client() as client:
        report_counts(client.cancel_where(dead_topic(topic), stop=True, dry_run=dry_run))


@click.command()
@click.argument("topic")
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="May be repeated.")
@click.option("--after", "after_id", type=click.IntRange(0), default=0, help="Only ids above this one.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@shared_options
def browse(topic: str, states: tuple[str, ...], after_id: int, limit: int) -> None:
    """Look at messages of a topic, in order of their ids, without taking them.

    \b
    tickwheel browse reminders
    tickwheel browse orders --state waiting --json
    """
    with current_session().client() as client:
        found = client.browse(topic, states=list(states) or None, after_id=after_id, limit=limit)
    if current_session().json:
        print_json([_fields(message) for message in found])
        return
    for message in found:
        click.echo(_line(message))


def _line(message: BrowsedMessage) -> str:
    key = f"[{printable(message.key.encode())}]  " if message.key and message.key[0] != "~" else ""
    state = ", ".join(_group_states(message.groups)) or message.state
    return f"{format_moment(message.deliver_at_ms)}  {message.id}  {state}  {key}{printable(message.body)}"


def _group_states(groups: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{one['group']}: {one['state']}" + (f" ({one['epoch']})" if one["epoch"] else "") for one in groups
    ]


def _fields(message: BrowsedMessage) -> dict[str, Any]:
    return {
        "id": message.id,
        "key": message.key or None,
        "order_key": message.order_key or None,
        "priority": message.priority,
        "state": message.state,
        "groups": message.groups,
        "deliver_at": format_moment(message.deliver_at_ms),
        "deliver_at_ms": message.deliver_at_ms,
        "created_ms": message.created_ms,
        "headers": message.headers,
        "body_bytes": message.body_bytes,
        **body_fields(message.body),
    }
