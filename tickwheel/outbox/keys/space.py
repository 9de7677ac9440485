"""``KeySpace``: ordered keys with values, inboxes and outboxes, in the user's database and the user's transactions.

>>> from tickwheel import outbox
>>> space = outbox.KeySpace("sqlite:///app.db", "shop").create()
>>> with space.database.begin() as connection:
...     space.put(connection, "orders/17", b"paid")
...     space.send(connection, "mailer", b"thank customer 4", sender="orders/17")
...     space.execute(connection, outbox.Increment("orders paid"), sender="orders/17")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tickwheel.outbox.database import Database, InDatabase
from tickwheel.outbox.json_bodies import NOTHING, body_or_json
from tickwheel.outbox.keys import data, leases, queues
from tickwheel.outbox.keys.encoding import (
    Key,
    bound_bytes,
    end_bytes,
    int64,
    key_bytes,
    limit_of,
    prefix_range,
    prefixes_of,
    sequences_of,
    value_bytes,
)
from tickwheel.outbox.keys.operations import Operation, columns_of
from tickwheel.outbox.keys.queues import Accounted, Accounting, FailedOperation, InboxMessage
from tickwheel.outbox.keys.service import BATCH_SIZE, LEASE_S, POLL_INTERVAL_S, KeyService
from tickwheel.outbox.keys.statistics import KeySpaceStats, read_stats
from tickwheel.outbox.keys.tables import Tables, check_name, check_tables, create_tables
from tickwheel.outbox.transactions import Transaction, require_transaction

if TYPE_CHECKING:
    from msgspec import UnsetType
    from sqlalchemy.engine import URL, Engine


class KeySpace(InDatabase):
    """A space of keys under a name, which is that of its tables (``tickwheel.outbox.keys.tables`` lists them).

    Keys are bytes, or str taken as UTF-8: 1 to 1,024 bytes, ordered bytewise on every database. Values are bytes, at
    most 4 MiB. A counter is a value of decimal digits, from -2^63 to 2^63 - 1.

    What takes a connection happens in the transaction that the user has begun on it, together with the user's own
    SQL, and raises NotInTransaction if there is none. ``end`` of a range is not in it; None: to the last key.
    """

    def __init__(self, where: str | URL | Engine | Database, name: str = "tickwheel_keys") -> None:
        check_name(name)
        super().__init__(where)
        self.name = name
        self._tables = Tables(self.database, name)

    def create(self) -> KeySpace:
        """Makes the tables that are not there, and checks those that are. Raises BadTable."""
        self.database.run(lambda connection: create_tables(connection, self._tables))
        return self.adopt()

    def adopt(self) -> KeySpace:
        """Checks the tables. Raises TableMissing, BadTable."""
        with self.database.reading() as connection:
            check_tables(connection, self._tables)
        return self

    # -- keys and values --

    def put(self, connection: Transaction, key: Key, value: bytes) -> None:
        """Gives the key the value."""
        connection = require_transaction(connection)
        data.put(connection, self._tables, key_bytes(key), value_bytes(value))

    def get(self, connection: Transaction, key: Key) -> bytes | None:
        """The key's value; None if there is no such key."""
        connection = require_transaction(connection)
        return data.get(connection, self._tables, key_bytes(key))

    def increment(self, connection: Transaction, key: Key, by: int = 1) -> int:
        """Adds to the counter, which others cannot change until the transaction ends, and returns the sum.

        A missing key counts as 0. Raises NotAnInteger, CounterOverflow. For a counter that many transactions share,
        ``execute(connection, Increment(key))`` waits for no other transaction.
        """
        connection = require_transaction(connection)
        return data.increment(connection, self._tables, key_bytes(key), int64(by))

    def delete(self, connection: Transaction, key: Key) -> bool:
        """Deletes the key, and returns whether it was there. Its inbox stays."""
        connection = require_transaction(connection)
        return data.delete(connection, self._tables, key_bytes(key))

    def delete_range(self, connection: Transaction, start: Key = b"", end: Key | None = None) -> int:
        """Deletes the keys of a range, and returns how many there were."""
        connection = require_transaction(connection)
        return data.delete_range(connection, self._tables, bound_bytes(start), end_bytes(end))

    def scan(
        self, connection: Transaction, start: Key = b"", end: Key | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]:
        """The first keys of a range in bytewise order, with their values. Raises BadLimit."""
        connection = require_transaction(connection)
        limit = limit_of(limit, "limit")
        return data.scan(connection, self._tables, bound_bytes(start), end_bytes(end), limit)

    @staticmethod
    def prefix_range(prefix: Key) -> tuple[bytes, bytes | None]:
        """Start and end of the range of all keys that begin with a prefix."""
        return prefix_range(prefix)

    @staticmethod
    def prefixes_of(key: Key, separator: bytes = b"/") -> Sequence[bytes]:
        """The successive prefixes of a key: of ``a/b/c`` they are ``a/`` and ``a/b/``."""
        return prefixes_of(key, separator)

    # -- messages --

    def send(
        self,
        connection: Transaction,
        key: Key,
        value: bytes | UnsetType = NOTHING,
        *,
        sender: Key | None = None,
        json: object = NOTHING,
    ) -> None:
        """Sends a message to the key's inbox, where the dispatcher puts it after the commit, exactly once. ``json``:
        what JSON can express, in place of a value.

        It goes through the outbox of the range that ``sender`` is in (the key itself, if none is given). Messages of
        one sender to one key arrive in the order of their timestamps, which are the database's.
        """
        connection = require_transaction(connection)
        recipient = key_bytes(key)
        from_key = recipient if sender is None else key_bytes(sender)
        sent = value_bytes(body_or_json(value, json, "value"))
        queues.send(connection, self._tables, recipient, sent, from_key)

    def execute(self, connection: Transaction, operation: Operation, *, sender: Key | None = None) -> None:
        """Has the executor execute an operation after the commit, exactly once.

        The operations of one range of senders are executed in the order of their timestamps. ``sender`` is the
        operation's own key, if none is given. One that cannot be executed is set aside: see ``failed``.
        """
        connection = require_transaction(connection)
        columns = columns_of(operation)
        from_key = bound_bytes(columns["key"]) if sender is None else key_bytes(sender)
        queues.execute(connection, self._tables, columns, from_key)

    def reap(self, connection: Transaction, key: Key, max_results: int = 1) -> list[InboxMessage]:
        """The first messages of an inbox, which the commit deletes and a rollback brings back.

        Ordered by the time of sending, then by number, then by sender. A transaction that reaps an inbox which
        another one is reaping waits for its end, so that messages are never processed out of order; see
        ``queues.reap`` for why. Process the messages and then commit. Raises BadLimit.
        """
        connection = require_transaction(connection)
        return queues.reap(connection, self._tables, key_bytes(key), limit_of(max_results, "max_results"))

    def waiting_keys(
        self, connection: Transaction, start: Key = b"", end: Key | None = None, limit: int = 1_000
    ) -> list[bytes]:
        """The first keys of a range that have messages in their inboxes. Raises BadLimit."""
        connection = require_transaction(connection)
        limit = limit_of(limit, "limit")
        return queues.waiting_keys(connection, self._tables, bound_bytes(start), end_bytes(end), limit)

    # -- operations that failed --

    def failed(self, connection: Transaction, limit: int = 1_000) -> list[FailedOperation]:
        """The operations that could not be executed, the oldest first. Raises BadLimit."""
        connection = require_transaction(connection)
        return queues.failed(connection, self._tables, limit_of(limit, "limit"))

    def retry_failed(self, connection: Transaction, sequences: Sequence[int] | None = None) -> int:
        """Puts failed operations (None: all) back at the end of their outboxes, and returns how many."""
        connection = require_transaction(connection)
        return queues.retry_failed(connection, self._tables, sequences_of(sequences))

    def drop_failed(self, connection: Transaction, sequences: Sequence[int] | None = None) -> int:
        """Forgets failed operations (None: all), and returns how many."""
        connection = require_transaction(connection)
        return queues.drop_failed(connection, self._tables, sequences_of(sequences))

    # -- accounting --

    def accounting(self, connection: Transaction, start: Key = b"", end: Key | None = None) -> Accounting:
        """How many keys, bytes and messages a range has. They are counted, so this reads the whole range."""
        connection = require_transaction(connection)
        return queues.accounting(connection, self._tables, bound_bytes(start), end_bytes(end))

    def accounted(self, connection: Transaction, prefix: Key) -> Accounted:
        """The stored accounting of a prefix: what executed ``Account`` operations have added up."""
        connection = require_transaction(connection)
        return queues.accounted(connection, self._tables, bound_bytes(prefix))

    # -- services and ranges --

    def dispatcher(
        self,
        *,
        batch_size: int = BATCH_SIZE,
        poll_interval_s: float = POLL_INTERVAL_S,
        lease_s: float = LEASE_S,
    ) -> KeyService:
        """A worker that brings messages from outboxes to inboxes: ``await ….run()``, or ``async with``.

        It is woken by commits, and looks every ``poll_interval_s`` in any case. Any number of workers share the
        ranges of keys; if one dies, others have its ranges after ``lease_s``. Raises BadLimit.
        """
        return KeyService(
            database=self.database,
            tables=self._tables,
            service="dispatcher",
            batch_size=batch_size,
            poll_interval_s=poll_interval_s,
            lease_s=lease_s,
        )

    def executor(
        self,
        *,
        batch_size: int = BATCH_SIZE,
        poll_interval_s: float = POLL_INTERVAL_S,
        lease_s: float = LEASE_S,
    ) -> KeyService:
        """A worker that executes operations; otherwise like ``dispatcher``."""
        return KeyService(
            database=self.database,
            tables=self._tables,
            service="executor",
            batch_size=batch_size,
            poll_interval_s=poll_interval_s,
            lease_s=lease_s,
        )

    def split(self, at: Key) -> bool:
        """Begins a new range at a key, so that another worker can have it; False if one begins there already.

        Waits for batches that are under way. Order holds inside of a range, so senders that must keep their order
        among each other belong into one.
        """
        key = key_bytes(at)
        return self.database.run(lambda connection: leases.split(connection, self._tables, key))

    def merge(self, at: Key) -> bool:
        """Joins the range that begins at a key to the one before it; False if none begins there."""
        key = key_bytes(at)
        return self.database.run(lambda connection: leases.merge(connection, self._tables, key))

    def stats(self) -> KeySpaceStats:
        """What waits where and for how long, and who works on it."""
        with self.database.reading() as connection:
            return read_stats(connection, self._tables)
