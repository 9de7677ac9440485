"""Printing: JSON by msgspec, pictures by rich; colour only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.shared.session import current_session

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: Any) -> None:
    """One JSON document on one line; understands dataclasses and msgspec structs."""
    import msgspec

    click.echo(msgspec.json.encode(value))


def print_result(result: Any, *lines: object) -> None:
    """What a command did: `result` with --json, else `lines`."""
    if current_session().json:
        print_json(result)
        return
    for line in lines:
        click.echo(line)


def print_report(result: Any, *lines: str | tuple[str, str]) -> None:
    """As `print_result`; on a terminal long lines are broken between words. A pair is a line and its style."""
    if current_session().json:
        print_json(result)
        return
    console = stdout_console()
    for line in lines:
        text, style = (line, None) if isinstance(line, str) else line
        console.print(text, style=style, markup=False)


def stdout_console() -> Console:
    """The terminal; or, when the output is a pipe or a file, plain text whose lines are never broken or cut."""
    from rich.console import Console

    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, emoji=False, width=max(100, console.width), soft_wrap=True)
    return console


def stderr_console() -> Console:
    """For progress and remarks that are not the result."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False)


def remark(text: str) -> None:
    """Something that a person should know, and no program waits for: on a terminal only."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


def counted(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def body_fields(body: bytes) -> Mapping[str, str]:
    """`{"body": text}` when the bytes are UTF-8, `{"body_base64": ...}` otherwise."""
    from base64 import b64encode

    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}


def printable(body: bytes, limit: int = 200) -> str:
    """A body on one line of a terminal: text without control characters, or how many bytes of what."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"({len(body):,} bytes, {body[:16].hex(' ')}{' …' if len(body) > 16 else ''})"
    shown = text if len(text) <= limit else text[:limit] + "…"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)
