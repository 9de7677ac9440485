"""`tickwheel topics`: topics, their groups and their settings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from tickwheel.stats import TopicInfo, TopicStats
from tickwheel_cli.looking.groups import FIGURES, figures_of
from tickwheel_cli.shared.options import confirm
from tickwheel_cli.shared.output import counted, print_json, print_result
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.tables import left, print_found, right
from tickwheel_cli.shared.topic_options import (
    BROKER_SETTINGS,
    given,
    setting_options,
    setting_text,
    vitess_option,
)

_COLUMNS = (*left("topic", "group"), *right("scheduled", "in topic", *FIGURES))
_DAY_MS = 86_400_000
_UNREAD_MS = 2 * _DAY_MS
_OPTIONAL = ("subscribers", "delivered", "leased", "dead")


@click.group(invoke_without_command=True)
@shared_options
@click.pass_context
def topics(ctx: click.Context) -> None:
    """List topics and their groups; create, change and delete them.

    \b
    tickwheel topics
    tickwheel topics create orders --ack-wait 10s --max-attempts 5
    tickwheel topics set orders --rate 500 --unset max_attempts
    tickwheel topics show orders
    """
    if ctx.invoked_subcommand is None:
        print_topics()


@topics.command("list")
@shared_options
def list_topics() -> None:
    """List topics and their groups.

    \b
    tickwheel topics list --json | jq -r '.[].name'

    A topic's "scheduled" messages wait for their time. Those "in topic" are due, also what is done and not
    purged yet; in the JSON this is "ready", and "messages" counts all that ever came. For a group, "backlog"
    is due and not acknowledged, "leased" is the part of it that a subscriber works on; "delivered", "acked"
    and "dead" (given up) count everything so far.
    """
    print_topics()


@topics.command()
@click.argument("name")
@click.option("--shards", type=click.IntRange(2, 256), default=None, help="Split it by the hash of the keys.")
@vitess_option
@setting_options
@shared_options
def create(name: str, shards: int | None, vitess: str | None, **settings: Any) -> None:
    """Create a topic; settings that are not given are the broker's.

    \b
    tickwheel topics create orders --ack-wait 10s --max-attempts 5 --rate 500
    tickwheel topics create events --shards 4
    """
    with current_session().client(may_create=True) as client:
        made = client.create_topic(name, shards=shards or 0, vitess=vitess, **given(settings))
    print_topic(made)


@topics.command("set")
@click.argument("name")
@click.option("--unset", multiple=True, metavar="SETTING", help="As the broker says again; may be repeated.")
@vitess_option
@setting_options
@shared_options
def set_settings(name: str, unset: tuple[str, ...], vitess: str | None, **settings: Any) -> None:
    """Change settings of a topic, all or none. It counts at once, and no subscriber is dropped.

    \b
    tickwheel topics set orders --ack-wait 1m --unset rate
    """
    changes = given(settings)
    if not changes and not unset and vitess is None:
        raise click.UsageError("nothing to change: give a setting, --unset or --vitess")
    names = [one.replace("-", "_") for one in unset]
    with current_session().client() as client:
        changed = client.set_topic(name, unset=names, vitess=vitess, **changes)
    print_topic(changed)


@topics.command()
@click.argument("name")
@shared_options
def show(name: str) -> None:
    """Show a topic's settings: those that were set for it, and those that hold."""
    with current_session().client() as client:
        print_topic(client.topic(name))


@topics.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared_options
def delete(name: str, yes: bool) -> None:
    """Delete a topic with all its messages and groups. It must have no subscribers."""
    with current_session().client() as client:
        messages = client.topic(name).messages
        if not yes:
            confirm(f"Delete {name} with its {counted(messages, 'message')}?")
        deleted = client.delete_topic(name)
    print_result({"topic": name, "messages": deleted}, f"deleted {name} with {counted(deleted, 'message')}")


@topics.command()
@click.argument("name")
@shared_options
def pause(name: str) -> None:
    """Deliver nothing of a topic until `resume`; messages still come in."""
    with current_session().client() as client:
        print_topic(client.pause_topic(name))


@topics.command()
@click.argument("name")
@shared_options
def resume(name: str) -> None:
    """Deliver the messages of a paused topic again."""
    with current_session().client() as client:
        print_topic(client.resume_topic(name))


def print_topics() -> None:
    """The table of all topics."""
    with current_session().client() as client:
        found = client.topics()
    empty = "There are no topics yet. The first message creates one: tickwheel send reminders hello"
    print_found(found, _COLUMNS, topic_rows(found), empty=empty, optional=_OPTIONAL)
    if not current_session().json:
        tell_of_unread(found)


def tell_of_unread(found: Sequence[TopicStats]) -> None:
    """Names groups that were not read for days, and still keep messages from being purged."""
    now_ms = time.time_ns() // 1_000_000
    for topic in sorted(found, key=lambda one: one.name):
        for group in () if topic.shard_of else topic.groups:
            unread_ms = now_ms - group.last_read_ms
            if group.last_read_ms and group.lacks_consumer and unread_ms >= _UNREAD_MS:
                days = unread_ms // _DAY_MS
                click.echo(
                    f"group {group.name!r} of {topic.name!r} has not been read for {counted(days, 'day')}: if nothing "
                    f"needs it any more, tickwheel groups delete {topic.name} {group.name}"
                )


def print_topic(topic: TopicInfo) -> None:
    """One topic and its settings."""
    if current_session().json:
        print_json(topic)
        return
    click.echo(f"{topic.name}{' (paused)' if topic.paused else ''}")
    click.echo(f"  scheduled {topic.scheduled:,}, in topic {topic.ready:,}, {topic.messages:,} ever sent")
    if topic.shards:
        click.echo(f"  shards {' '.join(topic.shards)}")
    for name, value in topic.effective.items():
        own = "" if name in topic.settings or name not in BROKER_SETTINGS else "  (the broker's)"
        click.echo(f"  {name.removesuffix('_ms'):<15} {setting_text(name, value)}{own}")


def topic_rows(found: Sequence[TopicStats]) -> list[list[str]]:
    """A row for each topic and group; the topic's own figures stand on its first row."""
    rows = []
    for topic in sorted(found, key=lambda one: one.name):
        own = [
            f"{topic.name}{' (paused)' if topic.paused else ''}",
            f"{topic.scheduled:,}",
            f"{topic.ready:,}",
        ]
        for group in topic.groups:
            rows.append([own[0], group.name, own[1], own[2], *figures_of(group)])
            own = ["", "", ""]
        if not topic.groups:
            rows.append([own[0], "-", own[1], own[2], *("-" for _ in FIGURES)])
    return rows
