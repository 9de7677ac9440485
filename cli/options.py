"""Click parameter types and the options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from cli.times import parse_duration, parse_moment

_Command = TypeVar("_Command", bound=Callable[..., Any])


class DurationType(click.ParamType):
    """`5s`, `2h30m`, `1d` as a timedelta."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Parse, or fail with advice as a usage error."""
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class MomentType(click.ParamType):
    """An ISO 8601 time with its UTC offset as an aware datetime."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Parse, or fail with advice as a usage error."""
        if isinstance(value, datetime):
            return value
        try:
            return parse_moment(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class HeaderType(click.ParamType):
    """`name=value` as a pair."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split at the first `=`, or fail with advice as a usage error."""
        if isinstance(value, tuple):
            return value
        name, equals, content = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not a header; write it like trace=abc123", param, ctx)
        return name, content


def time_options(command: _Command) -> _Command:
    """`--in` and `--at`: the arguments `delay` and `moment`."""
    at = click.option(
        "--at",
        "moment",
        type=MomentType(),
        help="When, with its UTC offset: 2031-05-01T09:00+02:00, or …Z.",
    )(command)
    return click.option(
        "--in", "delay", type=DurationType(), help="How long from now: 250ms, 5s, 2h30m, 1d."
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


def selected_messages(names: Sequence[str], topic: str | None, keys: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments of the client: `{"ids": [...]}` or `{"topic": ..., "keys": [...]}`, else a usage error."""
    if keys:
        topics = [*names, *([topic] if topic else [])]
        if len(topics) != 1:
            raise click.UsageError(
                "--key needs exactly one topic: tickwheel cancel reminders --key renewal-17"
            )
        return {"topic": topics[0], "keys": list(keys)}
    if topic or not names:
        raise click.UsageError("name the messages by their ids, or by a topic and one or more --key")
    wrong = [name for name in names if not (name.isascii() and name.isdecimal()) or int(name) == 0]
    if wrong:
        raise click.UsageError(f"{wrong[0]!r} is not the id of a message; a topic needs one or more --key")
    return {"ids": [int(name) for name in names]}
