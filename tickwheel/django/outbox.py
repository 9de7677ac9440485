"""The way through the database: a row in the transaction that enqueues the task, and the relay that sends it.

The row is a message of a message table of Tickwheel's (``tickwheel.outbox``), written by Django. So a process that
enqueues needs Django's connection only; SQLAlchemy is the relay's.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models.expressions import RawSQL

from tickwheel.django.envelope import Envelope, broker_priority
from tickwheel.django.models import OUTBOX_TABLE, SEQUENCE, OutboxMessage
from tickwheel.django.options import BackendOptions
from tickwheel.django.records import aware

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from tickwheel.client.client import Client
    from tickwheel.outbox import Relay

_NS_A_MICROSECOND: Final = 1_000
_BACKENDS: Final = {"sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mariadb"}


class Outbox:
    """The table of tasks that are to be sent, in one database."""

    def __init__(self, database: str) -> None:
        self.rows = OutboxMessage.objects.using(database)
        self._vendor = connections[database].vendor

    def add(self, envelope: Envelope, topic: str, run_after: datetime | None) -> None:
        """Writes a task down, in the transaction that is open."""
        self.rows.create(
            id=envelope.id,
            topic=topic,
            body=envelope.encode().decode(),
            priority=broker_priority(envelope.priority),
            time_next=time.time_ns() if run_after is None else _ns(run_after),
        )

    def remove(self, task_id: str) -> bool:
        """Takes a task out that was not sent. Whether it was there."""
        return bool(self.rows.filter(pk=task_id, time_acked=None).delete()[0])

    def move(self, task_id: str, run_after: datetime) -> bool:
        """Gives a task that was not sent another time. Whether it was there."""
        return bool(self.rows.filter(pk=task_id, time_acked=None).update(time_next=_ns(run_after)))

    def unsent(self) -> Iterable[OutboxMessage]:
        """Those that are to be sent, in the order in which the relay sends them."""
        sequence = RawSQL("rowid" if self._vendor == "sqlite" else SEQUENCE, ())
        return self.rows.filter(time_acked=None).order_by("time_next", sequence)

    def waiting(self) -> int:
        """How many are to be sent."""
        return self.rows.filter(time_acked=None).count()


def _ns(moment: datetime) -> int:
    whole_seconds = int(aware(moment).replace(microsecond=0).timestamp())
    return (whole_seconds * 1_000_000 + moment.microsecond) * _NS_A_MICROSECOND


def relay_of(options: BackendOptions, broker: Client, poll_s: float) -> Relay:
    """The relay of the table. Raises SqlMissing, DriverMissing, ImproperlyConfigured."""
    from tickwheel.outbox import Relay

    return Relay(
        database_url(options.database),
        OUTBOX_TABLE,
        broker,
        f"{options.prefix}default",
        columns=["id", "topic", "body"],
        body="body",
        headers=[],
        key="id",
        topic_column="topic",
        poll_s=poll_s,
    )


def database_url(alias: str) -> URL:
    """A database of Django's settings, as SQLAlchemy names it. Raises ImproperlyConfigured."""
    from sqlalchemy.engine import URL

    connection = connections[alias]
    kind = _BACKENDS.get(connection.vendor)
    if kind is None:
        raise ImproperlyConfigured(
            f"The relay knows no databases of the kind {connection.vendor}. "
            "It knows PostgreSQL, MariaDB, MySQL and SQLite; or use OPTIONS['via'] = 'direct'."
        )
    given: dict[str, Any] = connection.settings_dict
    if kind == "sqlite":
        name = str(given["NAME"])
        return URL.create("sqlite", database=name)
    query = {key: str(given["OPTIONS"][key]) for key in _QUERY[kind] if key in given["OPTIONS"]}
    host = str(given["HOST"])
    if kind == "mariadb" and host.startswith("/"):  # Django takes the path of a Unix socket for a host
        query["unix_socket"], host = host, ""
    return URL.create(
        f"{kind}+{_driver(kind)}",
        username=given["USER"] or None,
        password=given["PASSWORD"] or None,
        host=host or None,
        port=int(given["PORT"]) if given["PORT"] else None,
        database=given["NAME"],
        query=query,
    )


_QUERY: Final = {
    "postgresql": ("sslmode", "sslrootcert", "sslcert", "sslkey", "service", "passfile"),
    "mariadb": ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key"),
}
"""Options of connections that both know by the same name."""


def _driver(kind: str) -> str:
    """The driver that waits for commits, if it is installed; else Django's own."""
    if kind == "postgresql":
        return "psycopg" if importlib.util.find_spec("psycopg") else "psycopg2"
    return "pymysql" if importlib.util.find_spec("pymysql") else "mysqldb"
