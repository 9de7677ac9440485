"""A click group that imports a command only when it is called, so that `tickwheel --help` is quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click


@dataclass(frozen=True)
class Entry:
    """Where a command is (`module:attribute` of this package), and the line about it in the list of commands."""

    where: str
    summary: str
    section: str

    def load(self) -> click.Command:
        """Import the command's module and return the command."""
        module, _, attribute = self.where.partition(":")
        command = getattr(import_module(f"tickwheel_cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command


class LazyGroup(click.Group):
    """A group whose commands are a table of `Entry`; the help lists them by section, unimported."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None when there is none of this name."""
        entry = self.entries.get(cmd_name)
        return entry.load() if entry else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, a heading for each section."""
        widest = max(len(name) for name in self.entries)
        for section, rows in self._sections().items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(widest), summary) for name, summary in rows])

    def _sections(self) -> Mapping[str, Sequence[tuple[str, str]]]:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self.entries.items():
            sections.setdefault(entry.section, []).append((name, entry.summary))
        return sections
