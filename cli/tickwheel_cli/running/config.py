"""`tickwheel config`: check or show the configuration as the daemon would see it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.shared.output import print_json, print_result
from tickwheel_cli.shared.session import current_session, json_option
from tickwheel_cli.shared.settings_options import config_file_option, setting_options
from tickwheel_cli.shared.tables import left, print_table

if TYPE_CHECKING:
    from tickwheel_broker.config.load import Loaded


@click.group()
def config() -> None:
    """Check or show the configuration: defaults, then the file, then TICKWHEEL_… variables, then flags."""


@config.command()
@config_file_option
@setting_options
@json_option
def check(config_file: Path | None, **flags: Any) -> None:
    """Say whether the configuration is valid, and what is wrong with it.

    \b
    tickwheel config check --config tickwheel.toml
    """
    from tickwheel_broker.config.load import load

    load(config_file, flags=flags)
    print_result({"valid": True}, "The configuration is valid.")


@config.command()
@config_file_option
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@setting_options
@json_option
def show(config_file: Path | None, origin: bool, **flags: Any) -> None:
    """Print every setting with its value, as lines of a TOML file.

    \b
    tickwheel config show --config tickwheel.toml --origin
    tickwheel config show > tickwheel.toml
    """
    from tickwheel_broker.config.load import load

    loaded = load(config_file, flags=flags)
    if current_session().json:
        fields = {
            name: {"value": value, "origin": where} if origin else value
            for name, value, where in plain_values(loaded)
        }
        print_json(fields)
    elif origin:
        print_table(left("setting", "value", "origin"), setting_rows(loaded))
    else:
        for name, value, _ in setting_rows(loaded):
            click.echo(f"{name} = {value}")


def plain_values(loaded: Loaded) -> list[tuple[str, int | str | bool, str]]:
    """Name, value as JSON has it, and origin of every setting."""
    from tickwheel_broker.config.example import plain_value
    from tickwheel_broker.config.fields import FIELDS

    return [
        (name, plain_value(field, getattr(loaded.settings, field.attribute)), loaded.origins[name])
        for name, field in FIELDS.items()
    ]


def setting_rows(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Name, value as in the file, and origin of every setting."""
    from tickwheel_broker.config.example import format_value
    from tickwheel_broker.config.fields import FIELDS

    return [
        (name, format_value(field, getattr(loaded.settings, field.attribute)), loaded.origins[name])
        for name, field in FIELDS.items()
    ]
