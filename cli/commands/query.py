"""`tickwheel query`: messages as SQL tables."""

from __future__ import annotations

import csv
import sys
from base64 import b64encode
from datetime import datetime, timedelta
from typing import Any

import click

from cli.options import parsed_by
from cli.output import plain_table, print_json, printable, stdout_console
from cli.session import current_session, shared_options
from cli.times import parse_duration


@click.command()
@click.argument("sql")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header line.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=10_000, show_default=True, help="Rows at most."
)
@click.option(
    "--timeout", metavar="DURATION", default="25s", show_default=True, callback=parsed_by(parse_duration)
)
@shared_options
def query(sql: str, as_csv: bool, limit: int, timeout: timedelta) -> None:
    """Answer one SELECT over the messages. Each topic is a table; `messages` is all of them.

    \b
    tickwheel query "select state, count(*), min(time_next) from orders where epoch > 3 group by state"
    tickwheel query 'select id, key, body from "my-topic" where priority < 10' --csv

    Columns: id, topic, group, state, priority, epoch, attempts, deliver_at, time_next, time_acked,
    time_created, key, order_key, headers (JSON), body and body_bytes. A topic with groups has a row for each message
    and group. Bodies are printed as text if they are, in JSON and CSV as base64 if not.
    """
    session = current_session()
    if as_csv and session.json:
        raise click.UsageError("--csv and --json exclude each other")
    with session.client() as client:
        result = client.query(sql, limit=limit, timeout=timeout)
    if session.json:
        print_json([{name: _value(value) for name, value in row.items()} for row in result.dicts()])
    elif as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(result.names)
        writer.writerows([_value(value) for value in row] for row in result.rows)
    else:
        numbers = ("int", "uint", "decimal", "double", "float")
        sides = ["right" if column.type.startswith(numbers) else "left" for column in result.columns]
        cells = [[_cell(value) for value in row] for row in result.rows]
        stdout_console().print(plain_table(list(zip(result.names, sides, strict=True)), cells))
    if result.truncated:
        click.echo(f"there are more rows than these {len(result.rows):,}; see --limit", err=True)


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return printable(value, 60)
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else str(value)
