"""`tickwheel pipeline sql`: ask with Spark SQL what data directories hold."""

from __future__ import annotations

from pathlib import Path

import click

from tickwheel_cli.pipeline.options import (
    directories_option,
    needs_spark,
    open_spark,
    spark_options,
    tables_of,
)
from tickwheel_cli.shared.answers import check_form, form_of_options, print_answer
from tickwheel_cli.shared.session import json_option, security_options, url_option


@click.command()
@click.argument("statement", metavar="SQL")
@directories_option(required=False)
@url_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a heading.")
@click.option(
    "--limit", type=click.IntRange(1), default=1_000, show_default=True, help="At most so many rows."
)
@spark_options
@security_options
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
    """Ask with Spark SQL what data directories hold, or a broker with `tickwheel flight`, wherever it is.

    \b
    tickwheel pipeline sql --data ./data "select topic, state, count(*) from messages group by all"
    tickwheel pipeline sql --data ./data "select event, count(*) from events group by event" --json

    \b
    tickwheel pipeline sql --url tickwheel://broker:7411 "select count(*) from messages"

    The table messages has one row a message for each group, events one for each thing that happened to a message.
    """
    check_form(as_csv)
    tables = tables_of(directories)
    from tickwheel.spark.answers import ask

    with open_spark(master, conf) as spark:
        names, kinds, rows = ask(spark, tables, statement, limit + 1)
    columns = [
        (name, "right" if _is_number(kind) else "left") for name, kind in zip(names, kinds, strict=True)
    ]
    print_answer(columns, rows[:limit], form=form_of_options(as_csv), truncated=len(rows) > limit)


def _is_number(kind: str) -> bool:
    return kind in ("tinyint", "smallint", "int", "bigint", "float", "double") or kind.startswith("decimal")
