"""The table of the commands of `tickwheel outbox`."""

from __future__ import annotations

import click

from tickwheel_cli.lazy import Entry, LazyGroup

_TABLES, _OTHERS = "Message tables", "Other forms"

COMMANDS = {
    "init": Entry("outbox.init:init", "Make a message table, or adopt one.", _TABLES),
    "send": Entry("outbox.send:send", "Insert a message into a message table.", _TABLES),
    "stream": Entry("outbox.stream:stream", "Print a table's messages as they become due.", _TABLES),
    "relay": Entry("outbox.relay:relay", "Move a table's messages to the broker.", _TABLES),
    "stats": Entry("outbox.stats:stats", "Show what the message tables hold.", _TABLES),
    "queue": Entry("outbox.queue:queue", "First in, first out.", _OTHERS),
    "keys": Entry("outbox.keys:keys", "Keys with inboxes and outboxes.", _OTHERS),
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
