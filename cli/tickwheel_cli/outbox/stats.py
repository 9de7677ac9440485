"""`tickwheel outbox stats`: what the message tables of a database hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.outbox.options import database_option, open_database
from tickwheel_cli.shared.session import json_option
from tickwheel_cli.shared.tables import left, print_found, right
from tickwheel_cli.shared.times import format_moment

if TYPE_CHECKING:
    from tickwheel.outbox import Database

_COLUMNS = (*left("table"), *right("due", "waiting", "acked"), *left("oldest due", "next due"))


@click.command()
@click.argument("tables", nargs=-1)
@database_option
@json_option
def stats(tables: tuple[str, ...], database_url: str) -> None:
    """Show what message tables hold: all of the database, or those that are named.

    \b
    tickwheel outbox stats
    tickwheel outbox stats reminders --json
    """
    with open_database(database_url) as database:
        found = [_stats(database, name) for name in tables or _all_tables(database)]
    empty = "There is no message table; `tickwheel outbox init` makes one."
    print_found(found, _COLUMNS, [_row(one) for one in found], empty=empty)


def _all_tables(database: Database) -> list[str]:
    from tickwheel.outbox.messages.schema import message_tables

    with database.reading() as connection:
        return message_tables(database, connection)


def _stats(database: Database, name: str) -> dict[str, Any]:
    from dataclasses import asdict

    from tickwheel import outbox

    return {"table": name, **asdict(outbox.MessageTable(database, name).stats())}


def _row(one: dict[str, Any]) -> list[str]:
    counts = [f"{one[name]:,}" for name in ("due", "waiting", "acked")]
    times = [_moment(one["oldest_due_ns"]), _moment(one["next_due_ns"])]
    return [one["table"], *counts, *times]


def _moment(time_ns: int | None) -> str:
    return "-" if time_ns is None else format_moment(time_ns // 1_000_000)
