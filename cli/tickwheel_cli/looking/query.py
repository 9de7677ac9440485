"""`tickwheel query`: SQL over the messages."""

from __future__ import annotations

import csv
import json
import re
import sys
from base64 import b64encode
from datetime import datetime, timedelta
from typing import Any

import click

from tickwheel import QueryResult
from tickwheel.protocol.limits import DEFAULT_QUERY_ROWS, MAX_QUERY_ROWS
from tickwheel_cli.shared.options import parsed_by
from tickwheel_cli.shared.output import print_json, printable
from tickwheel_cli.shared.session import current_session, shared_options
from tickwheel_cli.shared.tables import print_table
from tickwheel_cli.shared.times import format_moment, moment_to_ms, parse_duration

_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBERS = ("INT", "DECIMAL", "DOUBLE", "FLOAT")


@click.command()
@click.argument("sql")
@click.option(
    "--param",
    "given",
    multiple=True,
    metavar="[NAME=]VALUE",
    help="For ? and $1, or with a name for $NAME; JSON, or else text. May be repeated.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a heading.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_QUERY_ROWS),
    default=DEFAULT_QUERY_ROWS,
    show_default=True,
    help="At most so many rows.",
)
@click.option(
    "--timeout",
    metavar="DURATION",
    default="30s",
    show_default=True,
    callback=parsed_by(parse_duration),
    help="How long the broker may work on it.",
)
@shared_options
def query(sql: str, given: tuple[str, ...], as_csv: bool, limit: int, timeout: timedelta) -> None:
    """Ask with SQL what is in the topics.

    Each topic is a table of its name, in double quotes where SQL needs them; `messages` is all topics.

    \b
    tickwheel query "select state, count(*), min(time_next) from orders group by state"
    tickwheel query "select id, key, epoch from messages where epoch > 3" --csv
    tickwheel query "select id, state from orders where key = ? and epoch > ?" --param order-17 --param 3
    tickwheel query "select id, state from orders where key = $key" --param key=order-17
    tickwheel query "describe messages"

    It reads and never changes anything, and delivery goes on meanwhile. The broker needs DuckDB for it:
    pip install 'tickwheel[query]'.
    """
    as_json = current_session().json
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    with current_session().client() as client:
        result = client.query(sql, _parameters(given), limit=limit, timeout=timeout.total_seconds())
    if as_json:
        names = [column.name for column in result.columns]
        print_json([dict(zip(names, map(_json_value, row), strict=True)) for row in result])
    elif as_csv:
        _print_csv(result)
    else:
        _print_table(result)
    if result.truncated:
        click.echo(f"There are more rows than these {len(result):,}: add LIMIT, WHERE or --limit.", err=True)


def _parameters(given: tuple[str, ...]) -> list[Any] | dict[str, Any] | None:
    named = [_NAMED.match(text) for text in given]
    if not given:
        return None
    if not any(named):
        return [_value(text) for text in given]
    if not all(named):
        raise click.UsageError("either all parameters have a name, or none has")
    return {match[1]: _value(match[2]) for match in named if match is not None}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _print_table(result: QueryResult) -> None:
    columns = [
        (column.name, "right" if any(word in column.type for word in _NUMBERS) else "left")
        for column in result.columns
    ]
    print_table(columns, [[_cell(value) for value in row] for row in result])


def _print_csv(result: QueryResult) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(column.name for column in result.columns)
    writer.writerows(map(_csv_value, row) for row in result)


def _cell(value: Any) -> str:
    """One value on one line; `-` is NULL."""
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case bytes():
            return printable(value)
        case str():
            return printable(value.encode())
        case datetime():
            return format_moment(moment_to_ms(value))
    return str(value)


def _csv_value(value: Any) -> Any:
    """NULL is empty; bytes are text when they are UTF-8, base64 otherwise."""
    match value:
        case bytes():
            text = _json_value(value)
            return text if isinstance(text, str) else text["base64"]
        case bool():
            return str(value).lower()
        case datetime():
            return format_moment(moment_to_ms(value))
    return value


def _json_value(value: Any) -> Any:
    """Bytes are text when they are UTF-8, else `{"base64": …}`; times are ISO 8601."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
