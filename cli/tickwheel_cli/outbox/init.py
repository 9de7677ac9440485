"""`tickwheel outbox init`: make a message table, or make an existing table one."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tickwheel_cli.outbox.options import database_option, open_database
from tickwheel_cli.shared.options import DURATION, Parsed
from tickwheel_cli.shared.output import print_result
from tickwheel_cli.shared.session import json_option

if TYPE_CHECKING:
    import sqlalchemy as sa

    from tickwheel.outbox import MessageTable

DIALECTS = ("sqlite", "postgresql", "mysql", "mariadb")
_TYPES = ("text", "integer", "json", "bytes", "boolean", "float")


def _parse_column(text: str) -> tuple[str, str]:
    name, colon, kind = text.partition(":")
    if not name or not colon or kind not in _TYPES:
        raise ValueError(f"{text!r} is not NAME:TYPE, with TYPE one of {', '.join(_TYPES)}")
    return name, kind


@click.command()
@click.argument("table")
@click.option(
    "--column",
    "columns",
    multiple=True,
    type=Parsed("NAME:TYPE", _parse_column),
    help=f"A column of yours; may be repeated. TYPE: {', '.join(_TYPES)}.  [default: message:text]",
)
@click.option(
    "--adopt", is_flag=True, help="The table is there: check it, and give it settings if it has none."
)
@click.option("--ack-wait", type=DURATION, help="How long a first delivery may take.  [default: 30s]")
@click.option(
    "--min-backoff",
    type=DURATION,
    help="What the waits of later deliveries begin with.  [default: --ack-wait]",
)
@click.option("--max-backoff", type=DURATION, help="Where they stop to double; 0s: never.  [default: 1h]")
@click.option("--purge-after", type=DURATION, help="For how long acked messages are kept.  [default: 1d]")
@click.option(
    "--batch-size", type=click.IntRange(1, 100_000), help="The most that a subscriber gets at once."
)
@click.option(
    "--sql", "as_sql", is_flag=True, help="Print the statements, for a migration; no database is asked."
)
@click.option(
    "--dialect",
    type=click.Choice(DIALECTS),
    help="With --sql: of which database.  [default: that of --database]",
)
@database_option
@json_option
def init(
    table: str,
    columns: tuple[tuple[str, str], ...],
    adopt: bool,
    ack_wait: timedelta | None,
    min_backoff: timedelta | None,
    max_backoff: timedelta | None,
    purge_after: timedelta | None,
    batch_size: int | None,
    as_sql: bool,
    dialect: str | None,
    database_url: str,
) -> None:
    """Make a message table, or with --adopt make a table that is there one. Safe to repeat.

    \b
    tickwheel outbox init reminders
    tickwheel outbox init reminders --column tenant_id:integer --column message:json --ack-wait 1m
    tickwheel outbox init old_messages --adopt --database postgresql://app@localhost/shop
    tickwheel outbox init reminders --sql --dialect postgresql > migration.sql

    Settings that are given also change those of a message table that is there, for all who stream it, at once.
    """
    from tickwheel import outbox

    if dialect is not None and not as_sql:
        raise click.UsageError("--dialect is for --sql; otherwise --database says it")
    if adopt and columns:
        raise click.UsageError("--adopt takes the columns that are there; leave --column out")
    times = {
        "ack_wait_ms": ack_wait,
        "min_backoff_ms": min_backoff,
        "max_backoff_ms": max_backoff,
        "purge_after_ms": purge_after,
    }
    changes: dict[str, Any] = {
        name: value // timedelta(milliseconds=1) for name, value in times.items() if value is not None
    }
    if batch_size is not None:
        changes["batch_size"] = batch_size
    own_columns = [_column(*one) for one in columns] or None
    if as_sql:
        settings = outbox.MessageSettings(**changes)
        chosen = dialect or _dialect_of(database_url)
        statements = outbox.ddl(chosen, table, own_columns, settings, adopt=adopt)
        print_result({"statements": statements}, *(f"{one};" for one in statements))
        return
    with open_database(database_url, may_create=not adopt) as database:
        messages = outbox.MessageTable(database, table)
        made = _make(messages, own_columns, changes, adopt=adopt)
        comment = messages.settings.comment()
        print_result(
            {"table": messages.name, "result": made, "columns": messages.columns, "comment": comment},
            f"{messages.name} in {messages.database.name}: {made}",
            f"streams {', '.join(messages.columns)}",
            f"settings {comment}",
        )


def _dialect_of(url: str) -> str:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).get_backend_name()
    except ArgumentError as error:
        raise click.UsageError(f"{error}: give --dialect") from None


def _make(
    messages: MessageTable, columns: list[sa.Column[Any]] | None, changes: dict[str, Any], *, adopt: bool
) -> str:
    from tickwheel import outbox

    try:
        messages.reload()
    except outbox.TableMissing:
        if adopt:
            raise
        messages.create(columns, outbox.MessageSettings(**changes))
        return "made"
    except outbox.BadTable:
        if not adopt:
            raise
        messages.adopt(outbox.MessageSettings(**changes))
        return "adopted"
    messages.adopt()
    if changes:
        messages.change_settings(**changes)
        return "changed"
    return "unchanged"


def _column(name: str, kind: str) -> sa.Column[Any]:
    import sqlalchemy as sa

    types: dict[str, Any] = {
        "text": sa.Text,
        "integer": sa.BigInteger,
        "json": sa.JSON,
        "bytes": sa.LargeBinary,
        "boolean": sa.Boolean,
        "float": sa.Float,
    }
    return sa.Column(name, types[kind])
