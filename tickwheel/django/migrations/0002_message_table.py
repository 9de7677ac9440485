"""Makes the outbox a message table of Tickwheel's: with settings, and on PostgreSQL with triggers that wake the
relay."""

from typing import Any

from django.db import migrations

from tickwheel import outbox

TABLE = "tickwheel_task_outbox"
DIALECTS = ("sqlite", "postgresql", "mysql")


def adopt(apps: Any, schema_editor: Any) -> None:
    """What ``tickwheel outbox init --adopt`` does. For other kinds of databases there is no relay."""
    vendor = schema_editor.connection.vendor
    if vendor in DIALECTS:
        for statement in outbox.ddl(vendor, TABLE, adopt=True):
            schema_editor.execute(statement, params=None)


def forget(apps: Any, schema_editor: Any) -> None:
    """SQLite has no comments on tables: they are rows, which do not go with their table."""
    if schema_editor.connection.vendor == "sqlite":
        schema_editor.execute(f"delete from tickwheel_message_tables where name = '{TABLE}'", params=None)


class Migration(migrations.Migration):
    dependencies = (("tickwheel", "0001_initial"),)
    # MySQL changes no tables in a transaction; elsewhere the whole migration is one.
    operations = (migrations.RunPython(adopt, forget, atomic=False),)
