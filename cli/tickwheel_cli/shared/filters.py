"""The options by which commands mean all messages of a topic that have something in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from tickwheel import ChangeResult
from tickwheel_cli.shared.options import parsed_by
from tickwheel_cli.shared.output import counted, print_json
from tickwheel_cli.shared.session import current_session
from tickwheel_cli.shared.times import parse_moment

_Command = TypeVar("_Command", bound=Callable[..., Any])

_STATES = ("scheduled", "ready", "leased", "waiting", "acked", "dead")
_TIMES = {
    "due_from": "Due at this time or later.",
    "due_until": "Due before this time.",
    "created_from": "Sent at this time or later.",
    "created_until": "Sent before this time.",
}


@dataclass(frozen=True)
class Filtered:
    """A topic, and the client's arguments that say which of its messages."""

    topic: str
    options: dict[str, Any]


def filter_options(command: _Command) -> _Command:
    """Which messages of a topic, instead of ids or keys; see `filter_arguments`."""
    options = [
        click.option("--all", "everything", is_flag=True, help="All messages of the topic."),
        *(
            click.option(
                f"--{name.replace('_', '-')}", metavar="TIME", callback=parsed_by(parse_moment), help=text
            )
            for name, text in _TIMES.items()
        ),
        click.option(
            "--priority-min", type=click.IntRange(0, 255), help="Of this priority number or higher."
        ),
        click.option("--priority-max", type=click.IntRange(0, 255), help="Of this priority number or lower."),
        click.option("--epoch-min", type=click.IntRange(1), help="Delivered so often or more."),
        click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="May be repeated."),
        click.option("--group", help="What state and epoch are meant in; without it: in any group."),
        click.option("--limit", type=click.IntRange(1), help="At most so many."),
        click.option("--dry-run", is_flag=True, help="Only count them."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def filter_arguments(
    names: Sequence[str],
    topic: str | None,
    keys: Sequence[str],
    where: Mapping[str, Any],
) -> Filtered | None:
    """What the options of `filter_options` mean; None when none was used. Mixed with ids or keys: a usage error."""
    used = {name: value for name, value in where.items() if value not in (None, False, ())}
    if not used:
        return None
    topics = [*names, *([topic] if topic else [])]
    if keys or len(topics) != 1 or topics[0].isdecimal():
        raise click.UsageError("a filter needs exactly one topic, and neither ids nor --key")
    used.pop("everything", None)
    if "states" in used:
        used["states"] = list(used["states"])
    return Filtered(topics[0], used)


def report_counts(result: ChangeResult, *, dry_run: bool = False) -> None:
    """How many messages were meant, and what became of them."""
    if current_session().json:
        print_json(result._asdict())
        return
    if dry_run or not result.matched:
        click.echo(f"{counted(result.matched, 'message')} {'matches' if result.matched == 1 else 'match'}")
    for name, count in sorted(result.results.items()):
        click.echo(f"{name.replace('_', ' ')}: {count:,}")
