"""The broker's settings as flags, read off its table of settings so that none can be forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tickwheel.protocol.readable import format_bytes
from tickwheel_broker.config.example import format_value
from tickwheel_broker.config.fields import (
    FIELDS,
    PUSH_SECTION,
    SettingField,
    flight_flags,
    rocketmq_flags,
    web_flags,
)
from tickwheel_broker.config.load import limits_for

KIB = 1024

_Command = TypeVar("_Command", bound=Callable[..., Any])


class SettingOption(click.Option):
    """A flag, and the section of the configuration file that its setting belongs to."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help lists flags of settings by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click has it, with a heading for each section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                section = param.section if isinstance(param, SettingOption) else ""
                sections.setdefault(section, []).append(record)
        rest = sections.pop("", [])
        for section, records in sections.items():
            with formatter.section(section[:1].upper() + section[1:]):
                formatter.write_dl(records)
        with formatter.section("Options"):
            formatter.write_dl(rest)


def config_file_option(command: _Command) -> _Command:
    """`--config FILE`, also TICKWHEEL_CONFIG."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="TICKWHEEL_CONFIG",
        help="A TOML file of settings, also TICKWHEEL_CONFIG.",
    )(command)


def setting_options(command: _Command) -> _Command:
    """A flag for each setting but those of `tickwheel push`; the command gets them as keyword arguments, None when not
    given."""
    for field in reversed(FIELDS.values()):
        if field.section != PUSH_SECTION:
            command = _option(field)(command)
    return command


def some_setting_options(*names: str) -> Callable[[_Command], _Command]:
    """As `setting_options`, for some of them."""

    def decorate(command: _Command) -> _Command:
        for name in reversed(names):
            command = _option(FIELDS[name])(command)
        return command

    return decorate


def web_options(command: _Command) -> _Command:
    """As `setting_options`, for `tickwheel web`."""
    return _as_flags(web_flags(), command)


def rocketmq_options(command: _Command) -> _Command:
    """As `setting_options`, for `tickwheel gateway`."""
    return _as_flags(rocketmq_flags(), command)


def flight_options(command: _Command) -> _Command:
    """As `setting_options`, for `tickwheel flight`."""
    return _as_flags(flight_flags(), command)


def _as_flags(flags: dict[str, str], command: _Command) -> _Command:
    for name, flag in reversed(flags.items()):
        command = _option(FIELDS[name], flag)(command)
    return command


def _option(field: SettingField, flag: str = "") -> Callable[[_Command], _Command]:
    flag = flag or field.flag
    names = [f"{flag}/--no-{flag[2:]}" if field.is_switch else flag]
    if field.name == "data_dir":
        names.insert(0, "--data")
    return click.option(
        *names,
        field.name,
        cls=SettingOption,
        section=field.section,
        default=None,
        metavar=None if field.is_switch else _metavar(field),
        help=f"{field.help_text}  [default: {format_value(field, field.default)}]",
    )


def _metavar(field: SettingField) -> str:
    return (
        "|".join(field.choices)
        or {"duration": "DURATION", "size": "SIZE", "count": "N", "plain": "TEXT"}[field.unit]
    )


def say_limits(segment_bytes: int, largest_frame_bytes: int) -> None:
    """Say on standard error, beside a report, with which settings a broker starts on such segments, into which the
    largest frame fits, if the defaults are too large."""
    limits = limits_for(largest_frame_bytes)
    if limits:
        options = " ".join(
            f"--{name.replace('_', '-')} {size_bytes // KIB}KiB" for name, size_bytes in limits.items()
        )
        click.echo(
            f"Its segments have {format_bytes(segment_bytes)}, too little for the default max_frame_bytes. Start each "
            f"broker with what it had before, or with: {options}",
            err=True,
        )
