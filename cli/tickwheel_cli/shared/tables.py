"""Tables of plain text: whole in a pipe, fitted to a terminal, a list of records where that is too narrow."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import compress

import click

from tickwheel_cli.shared.output import print_json
from tickwheel_cli.shared.session import current_session

Columns = Sequence[tuple[str, str]]
"""Titles, and "left" or "right"."""


def left(*titles: str) -> Columns:
    """Columns of text."""
    return [(title, "left") for title in titles]


def right(*titles: str) -> Columns:
    """Columns of numbers."""
    return [(title, "right") for title in titles]


def print_found(
    found: object,
    columns: Columns,
    rows: Sequence[Sequence[str]],
    *,
    empty: str,
    optional: Sequence[str] = (),
) -> None:
    """What a command found: with --json as it is, else a table of `rows`, or `empty` when there are none."""
    if current_session().json:
        print_json(found)
    elif rows:
        print_table(columns, rows, optional=optional)
    else:
        click.echo(empty)


def print_table(columns: Columns, rows: Sequence[Sequence[str]], *, optional: Sequence[str] = ()) -> None:
    """Cells are plain text and never cut. `optional`: titles that a narrow terminal leaves out, the first one first."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table_lines(columns, rows, width, optional=optional):
        click.echo(line)


def table_lines(
    columns: Columns, rows: Sequence[Sequence[str]], width: int | None, *, optional: Sequence[str] = ()
) -> list[str]:
    """The table in lines of at most `width` (None: any) characters; if that cannot be, one line a cell."""
    missing: list[str] = []
    for title in (*optional, None):
        kept = [name not in missing for name, _ in columns]
        lines = list(_aligned(list(compress(columns, kept)), [list(compress(row, kept)) for row in rows]))
        if width is None or max(map(_cells, lines)) <= width:
            return [*lines, *_remark(missing)]
        if title is not None:
            missing.append(title)
    return list(_records(columns, rows))


def _remark(missing: Sequence[str]) -> list[str]:
    return [click.style(f"(no room for: {', '.join(missing)})", dim=True)] if missing else []


def _aligned(columns: Columns, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    titles = [title for title, _ in columns]
    widths = [max(map(_cells, column)) for column in zip(titles, *rows, strict=True)]
    for number, row in enumerate((titles, *rows)):
        cells = [
            _padded(cell, width, side) for cell, width, (_, side) in zip(row, widths, columns, strict=True)
        ]
        line = "  ".join(cells).rstrip()
        yield line if number else click.style(line, bold=True)


def _records(columns: Columns, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widest = max(_cells(title) for title, _ in columns)
    for number, row in enumerate(rows):
        if number:
            yield ""
        for (title, _), cell in zip(columns, row, strict=True):
            yield f"{click.style(_padded(title, widest, 'left'), bold=True)}  {cell}"


def _padded(text: str, width: int, side: str) -> str:
    space = " " * (width - _cells(text))
    return space + text if side == "right" else text + space


def _cells(text: str) -> int:
    """Columns of a terminal: some characters take two."""
    from rich.cells import cell_len

    return cell_len(click.unstyle(text))
