"""`tickwheel pipeline sql`: ask with Spark SQL what data directories hold."""

from __future__ import annotations

import csv
import sys
from base64 import b64encode
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from tickwheel_cli.pipeline.options import needs_spark, open_spark, spark_options
from tickwheel_cli.shared.output import print_json, printable
from tickwheel_cli.shared.session import current_session, json_option
from tickwheel_cli.shared.tables import print_table
from tickwheel_cli.shared.times import format_moment, moment_to_ms


@click.command()
@click.argument("statement", metavar="SQL")
@click.option(
    "--data",
    "directories",
    multiple=True,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A broker's data directory, also while it runs; several: one for each shard.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a heading.")
@click.option(
    "--limit", type=click.IntRange(1), default=1_000, show_default=True, help="At most so many rows."
)
@spark_options
@json_option
@needs_spark
def sql(
    statement: str,
    directories: tuple[Path, ...],
    as_csv: bool,
    limit: int,
    master: str,
    conf: tuple[str, ...],
) -> None:
    """Ask with Spark SQL what data directories hold; the broker is not asked.

    \b
    tickwheel pipeline sql --data ./data "select topic, state, count(*) from messages group by all"
    tickwheel pipeline sql --data ./data "select event, count(*) from events group by event" --json

    The table messages has one row a message for each group, events one for each thing that happened to a message.
    """
    if current_session().json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    from tickwheel.spark.answers import ask

    with open_spark(master, conf) as spark:
        names, kinds, rows = ask(spark, [str(directory) for directory in directories], statement, limit + 1)
    shown = rows[:limit]
    if current_session().json:
        print_json([dict(zip(names, map(_json_value, row), strict=True)) for row in shown])
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(map(_csv_value, row) for row in shown)
    else:
        columns = [
            (name, "right" if _is_number(kind) else "left") for name, kind in zip(names, kinds, strict=True)
        ]
        print_table(columns, [[_cell(value) for value in row] for row in shown])
    if len(rows) > limit:
        click.echo(f"There are more rows than these {limit:,}: add LIMIT, WHERE or --limit.", err=True)


def _is_number(kind: str) -> bool:
    return kind in ("tinyint", "smallint", "int", "bigint", "float", "double") or kind.startswith("decimal")


def _cell(value: Any) -> str:
    """One value on one line; `-` is NULL."""
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case bytes() | bytearray():
            return printable(bytes(value))
        case str():
            return printable(value.encode())
        case datetime() if value.tzinfo is not None:
            return format_moment(moment_to_ms(value))
    return str(value)


def _csv_value(value: Any) -> Any:
    """NULL is empty; bytes are text when they are UTF-8, base64 otherwise."""
    match value:
        case bytes() | bytearray():
            text = _json_value(value)
            return text if isinstance(text, str) else text["base64"]
        case bool():
            return str(value).lower()
        case datetime() if value.tzinfo is not None:
            return format_moment(moment_to_ms(value))
    return value


def _json_value(value: Any) -> Any:
    """Bytes are text when they are UTF-8, else `{"base64": …}`; times are ISO 8601."""
    if isinstance(value, bytearray):
        value = bytes(value)
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
