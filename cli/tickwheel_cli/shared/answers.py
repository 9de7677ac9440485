"""The rows that a query answers: JSON, CSV or a table."""

from __future__ import annotations

import csv
import sys
from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TextIO

import click

from tickwheel_cli.shared.output import print_json, printable
from tickwheel_cli.shared.session import current_session
from tickwheel_cli.shared.tables import Columns, print_table
from tickwheel_cli.shared.times import format_moment, moment_to_ms


def check_form(as_csv: bool, **others: Any) -> None:
    """A usage error for more than one of --json, --csv and ``others``, which are options by their names."""
    given = {"json": current_session().json, "csv": as_csv, **others}
    named = [f"--{name}" for name, is_given in given.items() if is_given]
    if len(named) > 1:
        raise click.UsageError(f"{' and '.join(named)} exclude each other")


def form_of_options(as_csv: bool) -> str:
    """What --json and --csv ask for."""
    return "json" if current_session().json else "csv" if as_csv else "table"


def tell_of_more(*, truncated: bool) -> None:
    """On standard error, if the rows are not all."""
    if truncated:
        click.echo("There are more rows than these: add LIMIT, WHERE or --limit.", err=True)


def print_answer(columns: Columns, rows: Sequence[Sequence[Any]], *, form: str, truncated: bool) -> None:
    """Prints rows as ``table``, ``json`` or ``csv``, and says on standard error if these are not all."""
    names = [name for name, _ in columns]
    if form == "json":
        print_json(as_objects(names, rows))
    elif form == "csv":
        write_csv(sys.stdout, names, rows)
    else:
        print_table(columns, [[_cell(value) for value in row] for row in rows])
    tell_of_more(truncated=truncated)


def as_objects(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows as JSON has them."""
    return [dict(zip(names, map(_json_value, row), strict=True)) for row in rows]


def write_csv(file: TextIO, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a heading and the rows."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(map(_csv_value, row) for row in rows)


def _cell(value: Any) -> str:
    """One value on one line; `-` is NULL."""
    match value:
        case None:
            return "-"
        case bytes() | bytearray():
            return printable(bytes(value))
        case str():
            return printable(value.encode())
    return str(_plain(value))


def _csv_value(value: Any) -> Any:
    """NULL is empty; bytes are text when they are UTF-8, base64 otherwise."""
    if isinstance(value, bytes | bytearray):
        text = _json_value(value)
        return text if isinstance(text, str) else text["base64"]
    return _plain(value)


def _plain(value: Any) -> Any:
    """Booleans and times as they are written."""
    match value:
        case bool():
            return str(value).lower()
        case datetime() if value.tzinfo is not None:
            return format_moment(moment_to_ms(value))
    return value


def _json_value(value: Any) -> Any:
    """Bytes are text when they are UTF-8, else `{"base64": …}`; times are ISO 8601."""
    if not isinstance(value, bytes | bytearray):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
