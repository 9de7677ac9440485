"""`tickwheel topics`: topics and their groups."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cli.output import plain_table, print_json, stdout_console
from cli.session import current_session, shared_options
from tickwheel.stats import GroupStats, TopicStats

_COLUMNS = (
    ("topic", "left"),
    ("group", "left"),
    ("scheduled", "right"),
    ("ready", "right"),
    ("backlog", "right"),
    ("leased", "right"),
    ("delivered", "right"),
    ("acked", "right"),
    ("subscribers", "right"),
)


@click.command()
@shared_options
def topics() -> None:
    """List topics and their groups.

    \b
    tickwheel topics
    tickwheel topics --json | jq -r '.[].name'

    A topic's "scheduled" messages wait for their time, "ready" ones are due. For a group, "backlog" is due
    and not acknowledged, and "leased" is the part of it that a subscriber works on.
    """
    with current_session().client() as client:
        found = client.topics()
    if current_session().json:
        print_json(found)
    elif not found:
        click.echo("There are no topics yet. The first message creates one: tickwheel send reminders hello")
    else:
        stdout_console().print(plain_table(_COLUMNS, topic_rows(found)))


def topic_rows(found: Sequence[TopicStats]) -> list[list[str]]:
    """A row for each topic and group; the topic's own figures stand on its first row."""
    rows = []
    for topic in sorted(found, key=lambda one: one.name):
        own = [topic.name, f"{topic.scheduled:,}", f"{topic.ready:,}"]
        for group in topic.groups:
            rows.append([own[0], group.name, own[1], own[2], *_group_cells(group)])
            own = ["", "", ""]
        if not topic.groups:
            rows.append([own[0], "-", own[1], own[2], "-", "-", "-", "-", "-"])
    return rows


def _group_cells(group: GroupStats) -> list[str]:
    figures = (group.backlog, group.leased, group.delivered, group.acked, group.subscribers)
    return [f"{figure:,}" for figure in figures]
