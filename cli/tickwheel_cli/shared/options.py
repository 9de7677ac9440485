"""How options are parsed, and the options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from tickwheel.protocol.limits import MAX_ID
from tickwheel.protocol.units import parse_size_bytes
from tickwheel_cli.shared.session import current_session
from tickwheel_cli.shared.times import parse_duration, parse_moment

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Value = TypeVar("_Value")
_ID_DIGITS = len(str(MAX_ID))
_SELECT = (
    "Name the messages by their ids, or name a topic and which of its messages: one or more --key, --all, "
    "or a filter such as --state, --due-until or --priority-min"
)


if TYPE_CHECKING:
    _ParamType = click.ParamType[_Value]
else:  # older versions of click refuse the subscript when a program runs

    class _ParamType(click.ParamType, Generic[_Value]):
        """Takes the subscript in any version."""


class Parsed(_ParamType[_Value]):
    """The type of an option whose text `parse` reads; its ValueErrors are usage errors. `name`: as the help has it."""

    def __init__(self, name: str, parse: Callable[[str], _Value]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> _Value:
        """See click."""
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _parse_header(text: str) -> tuple[str, str]:
    name, equals, content = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not a header; write it like trace=abc123")
    return name, content


def _parse_start(text: str) -> str | datetime:
    return text if text in ("earliest", "latest") else parse_moment(text)


def parse_place(text: str) -> tuple[int, int]:
    """A place in the broker's log, as a command has printed it. Raises ValueError."""
    position, dot, told = text.partition(".")
    if not (dot and position.isascii() and position.isdigit() and told.isascii() and told.isdigit()):
        raise ValueError(f"{text!r} is no place in the log: give what an earlier run ended with")
    return int(position), int(told)


DURATION = Parsed("DURATION", parse_duration)
TIME = Parsed("TIME", parse_moment)
SIZE = Parsed("SIZE", parse_size_bytes)
HEADER = Parsed("NAME=VALUE", _parse_header)
PLACE = Parsed("PLACE", parse_place)
START = Parsed("WHERE", _parse_start)
"""Where a group begins: earliest, latest, or a time."""


def confirm(question: str) -> None:
    """Ask on the terminal; a no ends the command. Without a terminal it is a usage error."""
    if current_session().json or not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here whether that is meant: give --yes")
    click.confirm(question, abort=True, err=True)


def time_options(command: _Command) -> _Command:
    """`--in` and `--at`: the arguments `delay` and `moment`."""
    at = click.option(
        "--at", "moment", type=TIME, help="When, with its UTC offset: 2031-05-01T09:00+02:00, or …Z."
    )(command)
    return click.option("--in", "delay", type=DURATION, help="How long from now: 250ms, 5s, 2h30m, 1d.")(at)


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
