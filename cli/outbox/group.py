"""The table of the commands of `tickwheel outbox`."""

from __future__ import annotations

import click

from cli.lazy import CommandEntry, LazyGroup

_TABLES, _SERVICES, _LOOKING = "Tables", "Messages", "Looking"

COMMANDS = {
    "init": CommandEntry(
        "cli.outbox.init", "init", "Make a message table, a queue, keys or an inbox.", _TABLES
    ),
    "send": CommandEntry("cli.outbox.send", "send", "Insert a message into a message table.", _SERVICES),
    "stream": CommandEntry(
        "cli.outbox.stream", "stream", "Print a table's messages as they become due.", _SERVICES
    ),
    "stats": CommandEntry("cli.outbox.stats", "stats", "Show what message tables and queues hold.", _LOOKING),
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
