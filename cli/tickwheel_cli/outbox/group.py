"""The table of the commands of `tickwheel outbox`."""

from __future__ import annotations

import click

from tickwheel_cli.lazy import CommandEntry, LazyGroup

_TABLES, _OTHERS = "Message tables", "Other forms"

COMMANDS = {
    "init": CommandEntry("tickwheel_cli.outbox.init", "init", "Make a message table, or adopt one.", _TABLES),
    "send": CommandEntry(
        "tickwheel_cli.outbox.send", "send", "Insert a message into a message table.", _TABLES
    ),
    "stream": CommandEntry(
        "tickwheel_cli.outbox.stream", "stream", "Print a table's messages as they become due.", _TABLES
    ),
    "relay": CommandEntry(
        "tickwheel_cli.outbox.relay", "relay", "Move a table's messages to the broker.", _TABLES
    ),
    "stats": CommandEntry(
        "tickwheel_cli.outbox.stats", "stats", "Show what the message tables hold.", _TABLES
    ),
    "queue": CommandEntry("tickwheel_cli.outbox.queue", "queue", "First in, first out.", _OTHERS),
    "keys": CommandEntry("tickwheel_cli.outbox.keys", "keys", "Keys with inboxes and outboxes.", _OTHERS),
}


@click.command(cls=LazyGroup, entries=COMMANDS)
def outbox() -> None:
    """Messages inside your own SQL database: they commit, or roll back, with your data.

    \b
    tickwheel outbox init reminders                        a message table in ./app.db
    tickwheel outbox send reminders message="call Ada" --in 30s
    tickwheel outbox stream reminders                      print what is due
    tickwheel outbox stats

    SQLite, PostgreSQL, MariaDB and MySQL, named with --database or TICKWHEEL_DATABASE. It needs SQLAlchemy and the
    database's driver: pip install 'tickwheel[sql]'.
    """
