"""A queue in the user's own database: first in, first out, for many producers and many consumers.

>>> queue = outbox.Queue("postgresql://user:password@host/shop", "mails").create()
>>> with queue.database.begin() as connection:
...     connection.execute(orders.insert().values(...))
...     queue.put(connection, "confirm order 17")
>>> async with queue.consume() as consumer:
...     async for batch in consumer:
...         for message in batch:
...             await send_mail(message.body)
...         await batch.ack()

The order is that of ``put`` among what is committed: a transaction that commits late may bring messages that come
before others which were claimed already. Consumers that work side by side may finish in another order.

Each message is leased to one consumer. If that one dies, the lease ends and the next one takes over. What is done in
the same database, in one transaction with ``batch.ack_in(connection)``, happens exactly once; all else at least once.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from msgspec import UnsetType
from sqlalchemy.engine import URL, Engine

from tickwheel.client.checks import encoded, shown, whole_or_none
from tickwheel.client.times import Delay, duration_ms
from tickwheel.outbox.database import Database, InDatabase
from tickwheel.outbox.json_bodies import NOTHING, body_or_json
from tickwheel.outbox.queue import table as queue_table
from tickwheel.outbox.queue.consumer import QueueConsumer
from tickwheel.outbox.queue.holding import Holding
from tickwheel.outbox.queue.messages import ClaimedBatch, fitting_ns
from tickwheel.outbox.queue.sql import Body, QueueSql, QueueStats
from tickwheel.outbox.queue.table import MAX_OWNER_CHARACTERS
from tickwheel.outbox.transactions import Transaction
from tickwheel.protocol.errors import BadArgument

MAX_CLAIM: Final = 10_000
"""Messages in one claim."""
DEFAULT_LEASE: Final = timedelta(seconds=60)


class Queue(InDatabase):
    """Raises BadDatabase, DriverMissing and DatabaseUnavailable like ``open_database``; BadArgument for the name."""

    def __init__(self, where: str | URL | Engine | Database, name: str) -> None:
        queue_table.check_name(name)
        super().__init__(where)
        self.name = name
        self.sql = QueueSql(self.database, name)

    def create(self) -> Queue:
        """Creates the table, or takes the one that is there. Raises BadTable if that is none of a queue."""
        queue_table.create(self.database, self.sql.table)
        return self

    def check(self) -> None:
        """Raises TableMissing and BadTable."""
        with self.database.reading() as connection:
            queue_table.check(connection, self.sql.table)

    def put(
        self, connection: Transaction, body: Body | UnsetType = NOTHING, *, json: object = NOTHING
    ) -> int:
        """Adds a message in the transaction of ``connection``, and returns its id. It counts when that commits.

        ``json``: what JSON can express, in place of a body. Raises NotInTransaction, TableMissing; BadArgument for a
        body that is neither bytes nor str, for both or none of the two, and for what cannot be JSON.
        """
        return self.sql.put(connection, (body_or_json(body, json),))[0]

    def put_many(self, connection: Transaction, bodies: Iterable[Body]) -> list[int]:
        """Adds messages, and returns their ids, which are in the order of the bodies; otherwise as ``put``."""
        if isinstance(bodies, bytes | bytearray | memoryview | str):
            raise BadArgument("The bodies are a single one.", advice="Use put, or pass a list.")
        return self.sql.put(connection, bodies)

    def claim(
        self, limit: int = 100, *, lease: Delay = DEFAULT_LEASE, name: str | None = None
    ) -> ClaimedBatch:
        """Leases up to ``limit`` messages, first put first, in a transaction of its own. Blocks, but waits for none.

        ``lease``: a timedelta; afterwards others may claim them. ``name``: shown as ``owner`` in the table.
        """
        lease_ns, owner = _lease_ns(lease), _owner(name)
        _check_limit(limit)
        until_s = time.monotonic() + lease_ns / 1e9
        found = self.database.run(lambda connection: self.sql.claim(connection, limit, lease_ns, owner))
        return ClaimedBatch(Holding(self.database, self.sql, found.rows, until_s), found.rows)

    def consume(
        self, *, batch: int = 100, lease: Delay = DEFAULT_LEASE, name: str | None = None
    ) -> QueueConsumer:
        """A consumer: ``async with queue.consume() as consumer``, then ``async for batch in consumer``.

        ``batch``: messages at a time at most. ``lease``: how soon others take over when this process dies; while it
        lives, it extends them. ``name``: shown as ``owner`` in the table; by default host and process.
        """
        _check_limit(batch)
        return QueueConsumer(
            database=self.database,
            sql=self.sql,
            check=self.check,
            batch=batch,
            lease_ns=_lease_ns(lease),
            name=_owner(name),
        )

    def stats(self) -> QueueStats:
        """Counts the messages of the queue; this reads an index from end to end."""
        with self.database.reading() as connection:
            return self.sql.stats(connection)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} in {self.database.name}>"


def _check_limit(limit: int) -> None:
    if not 1 <= (whole_or_none(limit) or 0) <= MAX_CLAIM:
        raise BadArgument(
            f"A batch of {shown(limit)} messages is not allowed.", advice=f"Use 1 to {MAX_CLAIM:,}."
        )


def _lease_ns(lease: Delay) -> int:
    lease_ms = duration_ms(lease, "lease")
    if not lease_ms:
        raise BadArgument("A lease of no time is none.", advice="Use a timedelta.")
    return fitting_ns(lease_ms)


def _owner(name: str | None) -> str:
    if name is not None:
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_OWNER_CHARACTERS or "\0" in name:
            raise BadArgument(
                f"{shown(name)} cannot be a consumer's name.",
                advice=f"Use 1 to {MAX_OWNER_CHARACTERS} characters.",
            )
        encoded(name, "The name of a consumer")
        return name
    return f"{socket.gethostname()[:200]}:{os.getpid()}:{secrets.token_hex(3)}"
