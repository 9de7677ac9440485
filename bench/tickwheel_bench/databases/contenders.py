"""Who works off messages in a database: Tickwheel's message table, and the loops that people write with a plain driver.

All commit what they did before they count it, and look once a second where they have to look.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, Final

from tickwheel_bench.databases.databases import Place

POLL_S: Final = 1.0
_IDS: Final = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "mariadb": "BIGINT PRIMARY KEY AUTO_INCREMENT",
}
_LONGEST_RUN_NS: Final = 60 * 1_000_000_000
"""The blog's guess of how long a message takes at most."""


class Work:
    """What was handled and when; says when all is done. The handling itself is trivial, and the same for all."""

    def __init__(self, expected: int, patience_s: float) -> None:
        self.expected = expected
        self.numbers: list[int] = []
        self.at_ns: list[int] = []
        self.started_at = time.perf_counter()
        self.finished_at = self.started_at
        self._give_up_at = self.started_at + patience_s

    def handle(self, body: str) -> None:
        """One message."""
        self.numbers.append(int(body))
        self.at_ns.append(time.time_ns())

    def goes_on(self) -> bool:
        """Whether to look for more, asked after each commit: not if all is done, or far too much time has passed."""
        self.finished_at = time.perf_counter()
        return len(self.numbers) < self.expected and self.finished_at < self._give_up_at


class Contender(ABC):
    """One way to work off messages. Its table has bodies of 100 characters, and times in ns since 1970."""

    name: str
    table: str
    due_column = "run_at"
    body_column = "body"

    @abstractmethod
    def create(self, place: Place) -> None:
        """Makes the table."""

    @abstractmethod
    def consume(self, place: Place, work: Work) -> None:
        """Connects, and works off messages until ``work`` says that it is enough."""

    def insert(self) -> str:
        """SQL: a body and when it is due."""
        return f"INSERT INTO {self.table} ({self.body_column}, {self.due_column}) VALUES (%s, %s)"

    def body(self, place: Place) -> str:
        """SQL: the body that has the number ``n``."""
        return place.body()

    def fill(self, place: Place, count: int, due_ns: int) -> None:
        """Commits ``count`` messages that are due, one each microsecond, from ``due_ns`` on."""
        place.execute(
            f"INSERT INTO {self.table} ({self.body_column}, {self.due_column})"
            f" SELECT {self.body(place)}, {due_ns} + n * 1000 FROM {place.numbers(count)}"
        )
        place.settle(self.table)

    def drop(self, place: Place) -> None:
        """Leaves room for the next one."""
        place.execute(f"DROP TABLE {self.table}")


class Poller(Contender):
    """A transaction that selects ``limit`` rows, handles them, and marks or deletes each; sleeps if it finds none."""

    def __init__(self, limit: int, *, deletes: bool = False) -> None:
        self.name = f"poller, {'DELETE' if deletes else 'UPDATE'}, LIMIT {limit}"
        self.table = f"jobs_{'deleted' if deletes else 'updated'}_{limit}"
        self._limit, self._deletes = limit, deletes

    def create(self, place: Place) -> None:
        """With the index that the query needs: rows in order of their ids, without those that are done."""
        place.execute(
            f"CREATE TABLE {self.table} (id {_IDS[place.kind]}, status SMALLINT NOT NULL DEFAULT 0,"
            " run_at BIGINT NOT NULL, body TEXT NOT NULL)",
            f"CREATE INDEX {self.table}_ready ON {self.table} "
            + ("(status, id, run_at)" if place.kind == "mariadb" else "(id, run_at) WHERE status = 0"),
        )

    def consume(self, place: Place, work: Work) -> None:
        """See Contender."""
        lock = "" if place.kind == "sqlite" else " FOR UPDATE SKIP LOCKED"
        select = place.sql(
            f"SELECT id, body FROM {self.table} WHERE status = 0 AND run_at <= %s"
            f" ORDER BY id LIMIT {self._limit}{lock}"
        )
        update = f"UPDATE {self.table} SET status = 1 WHERE id = %s"
        done = place.sql(f"DELETE FROM {self.table} WHERE id = %s" if self._deletes else update)
        with closing(place.connect()) as connection, closing(connection.cursor()) as cursor:
            while work.goes_on():
                if place.kind == "sqlite":
                    cursor.execute("BEGIN IMMEDIATE")  # the others begin by themselves
                cursor.execute(select, (time.time_ns(),))
                rows = cursor.fetchall()
                for number, body in rows:
                    work.handle(body)
                    cursor.execute(done, (number,))
                connection.commit()
                if not rows:
                    time.sleep(POLL_S)


class OwnerColumn(Contender):
    """What blogs have for MySQL: an UPDATE with a LIMIT makes rows ours, a SELECT reads them, a DELETE ends them; each
    commits by itself. Elsewhere an UPDATE has no LIMIT, so that it needs a subquery."""

    name = "UPDATE, SELECT, DELETE by owner, LIMIT 10"
    table = "message_queue"
    body_column = "message"

    def create(self, place: Place) -> None:
        """As it was published, with a time, and an index to find one's own rows."""
        place.execute(
            f"CREATE TABLE {self.table} (id {_IDS[place.kind]}, owner VARCHAR(255), dequeued_time BIGINT,"
            " run_at BIGINT NOT NULL, message TEXT NOT NULL)",
            f"CREATE INDEX {self.table}_owner ON {self.table} (owner)",
        )

    def consume(self, place: Place, work: Work) -> None:
        """See Contender."""
        free = "(owner IS NULL OR dequeued_time < %s) AND run_at <= %s"
        update = f"UPDATE {self.table} SET owner = 'me', dequeued_time = %s WHERE "
        if place.kind == "mariadb":
            update += f"{free} LIMIT 10"
        else:
            update += f"id IN (SELECT id FROM {self.table} WHERE {free} ORDER BY id LIMIT 10)"
        update = place.sql(update)
        select = f"SELECT message FROM {self.table} WHERE owner = 'me' ORDER BY id"
        delete = f"DELETE FROM {self.table} WHERE owner = 'me'"
        with closing(place.connect(autocommit=True)) as connection, closing(connection.cursor()) as cursor:
            while work.goes_on():
                now = time.time_ns()
                cursor.execute(update, (now, now - _LONGEST_RUN_NS, now))
                if cursor.rowcount == 0:
                    time.sleep(POLL_S)
                    continue
                cursor.execute(select)
                for (body,) in cursor.fetchall():
                    work.handle(body)
                cursor.execute(delete)


async def _work_off(
    receive: Callable[[float], Awaitable[Any]], work: Work, body_of: Callable[[Any], str]
) -> None:
    """By batches: each is acked, which means committed, before the next is taken."""
    while work.goes_on():
        batch = await receive(POLL_S)
        if batch is None:
            continue
        for message in batch:
            work.handle(body_of(message))
        await batch.ack()


class MessageTableStream(Contender):
    """A stream of ``MessageTable``."""

    name = "MessageTable"
    table = "reminders"
    body_column = "message"
    due_column = "time_next"

    def __init__(self, batch_size: int = 500) -> None:
        self._batch_size = batch_size

    def create(self, place: Place) -> None:
        """With the settings that a table has by itself, except for the batches."""
        from tickwheel import outbox

        with outbox.open_database(place.url) as database:
            outbox.MessageTable(database, self.table).create(
                settings=outbox.MessageSettings(batch_size=self._batch_size)
            )

    def consume(self, place: Place, work: Work) -> None:
        """See Contender."""
        self.stream(place, work, lambda _: None)

    def drop(self, place: Place) -> None:
        """SQLite has the settings in a table of their own."""
        from tickwheel import outbox

        with outbox.open_database(place.url) as database:
            outbox.MessageTable(database, self.table).drop()

    def stream(self, place: Place, work: Work, opened: Callable[[Any], Any]) -> None:
        """As ``consume``; ``opened`` is called with the database, before anything is executed for the stream."""
        import anyio

        from tickwheel import outbox

        async def run() -> None:
            with outbox.open_database(place.url) as database:
                opened(database)
                async with outbox.MessageTable(database, self.table).stream() as stream:
                    await _work_off(stream.receive_batch, work, lambda message: message["message"])

        anyio.run(run, backend="asyncio")


class QueueConsumer(Contender):
    """A consumer of ``Queue``. Its messages are never for later."""

    name = "Queue"
    table = "mails"
    body_column = "body"
    due_column = "enqueued_ns"

    def create(self, place: Place) -> None:
        """As it is by itself."""
        from tickwheel import outbox

        with outbox.Queue(place.url, self.table) as queue:
            queue.create()

    def body(self, place: Place) -> str:
        """Bytes."""
        text = super().body(place)
        kinds = {"sqlite": f"cast({text} AS blob)", "postgresql": f"convert_to({text}, 'UTF8')"}
        return kinds.get(place.kind, text)

    def consume(self, place: Place, work: Work) -> None:
        """See Contender."""
        import anyio

        from tickwheel import outbox

        async def run() -> None:
            with outbox.Queue(place.url, self.table) as queue:
                async with queue.consume(batch=500) as consumer:
                    await _work_off(consumer.receive, work, lambda message: message.body.decode())

        anyio.run(run, backend="asyncio")
