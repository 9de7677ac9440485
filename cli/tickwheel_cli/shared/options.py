"""How options are parsed, and the options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from tickwheel.protocol.limits import MAX_ID
from tickwheel_cli.shared.session import current_session
from tickwheel_cli.shared.times import parse_duration, parse_moment

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Value = TypeVar("_Value")
_ID_DIGITS = len(str(MAX_ID))
_SELECT = (
    "Name the messages by their ids, or name a topic and which of its messages: one or more --key, --all, "
    "or a filter such as --state, --due-until or --priority-min"
)


def parsed_by(parse: Callable[[str], _Value]) -> Callable[..., _Value | tuple[_Value, ...] | None]:
    """A click callback that parses an option, repeated or not; what `parse` objects to is a usage error."""

    def callback(
        _ctx: click.Context, _parameter: click.Parameter, value: str | tuple[str, ...] | None
    ) -> _Value | tuple[_Value, ...] | None:
        try:
            if isinstance(value, tuple):
                return tuple(parse(text) for text in value)
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


def confirm(question: str) -> None:
    """Ask on the terminal; a no ends the command. Where nobody can answer it is a usage error."""
    if current_session().json or not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here whether that is meant: give --yes")
    click.confirm(question, abort=True, err=True)


def parse_header(text: str) -> tuple[str, str]:
    """`name=value` as a pair; raises ValueError with advice."""
    name, equals, content = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not a header; write it like trace=abc123")
    return name, content


def time_options(command: _Command) -> _Command:
    """`--in` and `--at`: the arguments `delay` and `moment`."""
    at = click.option(
        "--at",
        "moment",
        metavar="TIME",
        callback=parsed_by(parse_moment),
        help="When, with its UTC offset: 2031-05-01T09:00+02:00, or …Z.",
    )(command)
    return click.option(
        "--in",
        "delay",
        metavar="DURATION",
        callback=parsed_by(parse_duration),
        help="How long from now: 250ms, 5s, 2h30m, 1d.",
    )(at)


def time_arguments(delay: timedelta | None, moment: datetime | None) -> dict[str, Any]:
    """`--in` and `--at` as keyword arguments of the client; giving both is a usage error."""
    if delay is not None and moment is not None:
        raise click.UsageError("--in and --at exclude each other: a message has one time")
    if delay is not None:
        return {"delay": delay}
    if moment is not None:
        return {"deliver_at": moment}
    return {}


def selection_options(command: _Command) -> _Command:
    """Which messages: `1042 1043`, or `reminders --key renewal-17`. See `selected_messages`."""
    with_keys = click.option("--key", "keys", multiple=True, help="A key in the topic; may be repeated.")(
        command
    )
    with_topic = click.option("--topic", help="The topic of the keys, also as the argument.")(with_keys)
    return click.argument("names", metavar="[ID]... | TOPIC", nargs=-1)(with_topic)


def _is_id(name: str) -> bool:
    is_number = name.isascii() and name.isdecimal() and len(name.lstrip("0")) <= _ID_DIGITS
    return is_number and 0 < int(name) <= MAX_ID


def selected_messages(names: Sequence[str], topic: str | None, keys: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments of the client: `ids`, or `topic` and `keys`; anything else is a usage error."""
    if keys:
        topics = [*names, *([topic] if topic else [])]
        if len(topics) != 1:
            raise click.UsageError(
                "--key needs exactly one topic: tickwheel cancel reminders --key renewal-17"
            )
        return {"topic": topics[0], "keys": list(keys)}
    if topic or not names:
        raise click.UsageError(_SELECT)
    wrong = [name for name in names if not _is_id(name)]
    if wrong:
        raise click.UsageError(f"{wrong[0]!r} is not the id of a message. {_SELECT}")
    return {"ids": [int(name) for name in names]}
