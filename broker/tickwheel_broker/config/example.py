"""The fully commented example file, written from the table of settings so that it cannot go stale."""

import textwrap
from collections.abc import Mapping

from tickwheel.protocol.units import format_duration, format_size
from tickwheel_broker.config.fields import FIELDS, SettingField
from tickwheel_broker.config.settings import Settings

_HEADING = """\
# Settings of the Tickwheel broker. Every line shows a default; take the '#' away to change it.
# Flags win over the environment (TICKWHEEL_<NAME>), the environment wins over this file.
# `tickwheel config check` validates it, `tickwheel config show --origin` says where each value comes from.
"""


def example_toml() -> str:
    """The text of `docs/tickwheel.example.toml`."""
    parts = [_HEADING]
    section = ""
    for field in FIELDS.values():
        if field.section != section:
            section = field.section
            parts.append(f"\n# ---- {section} {'-' * (90 - len(section))}\n")
        parts.append(_entry(field))
    return "\n".join(parts)


def format_value(field: SettingField, value: int | str | bool) -> str:
    """A value as it is written in the file."""
    plain = plain_value(field, value)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return f'"{plain}"' if isinstance(plain, str) else str(plain)


def plain_value(field: SettingField, value: int | str | bool) -> int | str | bool:
    """A value as the file has it once it is read: durations, and sizes from 1 KiB on, are texts."""
    if field.unit == "duration":
        return format_duration(int(value))
    if field.unit == "size" and int(value) >= 1024:
        return format_size(int(value))
    return value


def arguments(settings: Settings, flags: Mapping[str, str]) -> list[str]:
    """What a process is started with, so that it has the same. ``flags``: of each setting that it is told."""
    found = []
    for name, flag in flags.items():
        field = FIELDS[name]
        value = plain_value(field, getattr(settings, field.attribute))
        if isinstance(value, bool):
            found.append(flag if value else f"--no-{flag.removeprefix('--')}")
        else:
            found.append(f"{flag}={value}")
    return found


def _entry(field: SettingField) -> str:
    help_text = field.help_text
    if field.choices:
        help_text += f" One of: {', '.join(field.choices)}."
    comment = textwrap.fill(help_text, 100, initial_indent="# ", subsequent_indent="# ")
    return f"{comment}\n#{field.name} = {format_value(field, field.default)}\n"
