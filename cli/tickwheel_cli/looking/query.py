"""`tickwheel query`: SQL over the messages."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import click

from tickwheel.protocol.limits import DEFAULT_QUERY_ROWS, MAX_QUERY_ROWS
from tickwheel_cli.shared.answers import check_form, print_answer, tell_of_more
from tickwheel_cli.shared.options import DURATION
from tickwheel_cli.shared.session import current_session, shared_options

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
@click.option("--arrow", "as_arrow", is_flag=True, help="Write an IPC stream of Apache Arrow.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_QUERY_ROWS),
    default=DEFAULT_QUERY_ROWS,
    show_default=True,
    help="At most so many rows.",
)
@click.option(
    "--timeout", type=DURATION, default="30s", show_default=True, help="How long the broker may work on it."
)
@shared_options
def query(
    sql: str, given: tuple[str, ...], limit: int, timeout: timedelta, *, as_csv: bool, as_arrow: bool
) -> None:
    """Ask with SQL what is in the topics.

    Each topic is a table of its name, in double quotes where SQL needs them; `messages` is all topics.

    \b
    tickwheel query "select state, count(*), min(time_next) from orders group by state"
    tickwheel query "select id, key, epoch from messages where epoch > 3" --csv
    tickwheel query "select id, state from orders where key = ? and epoch > ?" --param order-17 --param 3
    tickwheel query "select id, state from orders where key = $key" --param key=order-17
    tickwheel query "select id, body from orders" --arrow > orders.arrows
    tickwheel query "describe messages"

    It reads and never changes anything, and delivery goes on meanwhile. The broker needs DuckDB for it:
    pip install 'tickwheel[query]'.
    """
    check_form(as_csv, as_arrow)
    if as_arrow:
        with current_session().client() as client:
            found = client.query_arrow(sql, _parameters(given), limit=limit, timeout=timeout.total_seconds())
        click.echo(found.stream, nl=False)
        tell_of_more(truncated=found.truncated)
        return
    with current_session().client() as client:
        result = client.query(sql, _parameters(given), limit=limit, timeout=timeout.total_seconds())
    columns = [
        (column.name, "right" if any(word in column.type for word in _NUMBERS) else "left")
        for column in result.columns
    ]
    print_answer(columns, list(result), as_csv=as_csv, truncated=result.truncated)


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
