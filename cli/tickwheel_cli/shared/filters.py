"""The options by which commands mean all messages of a topic that have something in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from tickwheel import ChangeResult
from tickwheel.protocol.message_states import STATES
from tickwheel_cli.shared.options import TIME
from tickwheel_cli.shared.output import counted, print_result

_Command = TypeVar("_Command", bound=Callable[..., Any])

_TIMES = {
    "due_from": "Due at this time or later.",
    "due_until": "Due before this time.",
    "created_from": "Sent at this time or later.",
    "created_until": "Sent before this time.",
    "done_from": "Acked or given up at this time or later.",
    "done_until": "Acked or given up before this time.",
}


@dataclass(frozen=True)
class Filtered:
    """A topic, and the client's arguments that say which of its messages."""

    topic: str
    options: dict[str, Any]


def filter_options(command: _Command) -> _Command:
    """Which messages of a topic, instead of ids or keys; see `filter_arguments`."""
    command = click.option("--dry-run", is_flag=True, help="Only count them.")(command)
    command = click.option("--limit", type=click.IntRange(1), help="At most so many.")(command)
    command = where_options(command)
    return click.option("--all", "everything", is_flag=True, help="All messages of the topic.")(command)


def where_options(command: _Command) -> _Command:
    """What messages of a topic have in common; see `where_arguments`."""
    options = [
        *(click.option(f"--{name.replace('_', '-')}", type=TIME, help=text) for name, text in _TIMES.items()),
        click.option(
            "--priority-min", type=click.IntRange(0, 255), help="Of this priority number or higher."
        ),
        click.option("--priority-max", type=click.IntRange(0, 255), help="Of this priority number or lower."),
        click.option("--epoch-min", type=click.IntRange(1), help="Delivered so often or more."),
        click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="May be repeated."),
        click.option("--group", help="What state and epoch are meant in; without it: in any group."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def where_arguments(where: Mapping[str, Any]) -> dict[str, Any]:
    """The client's arguments that the options of `where_options` mean: those that were used."""
    used = {
        name: value
        for name, value in where.items()
        if value is not None and value is not False and value != ()
    }
    if "states" in used:
        used["states"] = list(used["states"])
    return used


def filter_arguments(
    names: Sequence[str],
    topic: str | None,
    keys: Sequence[str],
    where: Mapping[str, Any],
) -> Filtered | None:
    """What the options of `filter_options` mean; None when none was used. Mixed with ids or keys: a usage error."""
    used = where_arguments(where)
    if not used:
        return None
    topics = [*names, *([topic] if topic else [])]
    if keys or len(topics) != 1 or topics[0].isdecimal():
        raise click.UsageError("a filter needs exactly one topic, and neither ids nor --key")
    used.pop("everything", None)
    return Filtered(topics[0], used)


def report_counts(result: ChangeResult, *, dry_run: bool = False) -> None:
    """How many messages were meant, and what became of them."""
    lines = [f"{name.replace('_', ' ')}: {count:,}" for name, count in sorted(result.results.items())]
    if dry_run or not result.matched:
        match = "matches" if result.matched == 1 else "match"
        lines.insert(0, f"{counted(result.matched, 'message')} {match}")
    print_result(result._asdict(), *lines)
