"""`tickwheel outbox send`: insert one message."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from tickwheel_cli.outbox.options import database_option, open_database
from tickwheel_cli.shared.options import Parsed, time_arguments, time_options
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import json_option


def _parse_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not COLUMN=VALUE, such as message=hello")
    return name, value


@click.command()
@click.argument("table")
@click.argument(
    "values", nargs=-1, required=True, metavar="COLUMN=VALUE...", type=Parsed("COLUMN=VALUE", _parse_value)
)
@time_options
@click.option("--priority", type=click.IntRange(-128, 127), help="Lower is first.  [default: 50]")
@database_option
@json_option
def send(
    table: str,
    values: tuple[tuple[str, str], ...],
    delay: timedelta | None,
    moment: datetime | None,
    priority: int | None,
    database_url: str,
) -> None:
    """Insert a message, in a transaction of its own. Your programs do it in theirs, with table.send or an INSERT.

    \b
    tickwheel outbox send reminders message="call Ada" --in 30s
    tickwheel outbox send reminders tenant_id=7 message='{"to": "ada"}' --at 2031-05-01T09:00Z
    """
    from tickwheel import outbox

    with open_database(database_url) as database:
        messages = outbox.MessageTable(database, table)
        row: dict[str, Any] = {name: _typed(messages, name, value) for name, value in values}
        made = database.run(
            lambda one: messages.send(one, priority=priority, **time_arguments(delay, moment), **row)
        )
    print_result({"id": made}, made)


def _typed(messages: Any, name: str, text: str) -> Any:
    """The value for a column: what a text cannot be given as."""
    import json

    import sqlalchemy as sa

    column = messages.table.c.get(name)
    kind = None if column is None else column.type
    try:
        if isinstance(kind, sa.JSON):
            return json.loads(text)
        if isinstance(kind, sa.Boolean):
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if isinstance(kind, sa.Integer):
            return int(text)
        if isinstance(kind, sa.Numeric | sa.Float):
            return float(text)
    except (ValueError, KeyError):
        raise click.UsageError(f"{text!r} is no value for {name}, which is {kind}") from None
    return text.encode() if isinstance(kind, sa.LargeBinary) else text
