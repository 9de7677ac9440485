"""The queue in a user's database, each kind of them: putting, claiming, and settling in the user's transaction."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from tickwheel import outbox
from tickwheel.errors import BadArgument, BadTime
from tickwheel.outbox import (
    BadTable,
    DatabaseBusy,
    DatabaseUnavailable,
    LeaseLost,
    NotInTransaction,
    TableMissing,
)

THREADS = 4


def new_name() -> str:
    return f"q_{secrets.token_hex(4)}"


@pytest.fixture
def queue(database: outbox.Database) -> outbox.Queue:
    return outbox.Queue(database, new_name()).create()


@pytest.fixture
def effects(database: outbox.Database) -> sa.Table:
    """What a consumer writes in the same transaction; the same message twice is an error of the test only later."""
    table = sa.Table(new_name(), sa.MetaData(), sa.Column("number", sa.Integer))
    with database.begin() as connection:
        table.create(connection)
    return table


def put(queue: outbox.Queue, *bodies: Any) -> list[int]:
    with queue.database.begin() as connection:
        return queue.put_many(connection, bodies)


def count(queue: outbox.Queue, table: sa.Table) -> int:
    with queue.database.reading() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def end_leases(queue: outbox.Queue) -> None:
    lease = queue.sql.table.c.lease_until_ns
    with queue.database.begin() as connection:
        connection.execute(sa.update(queue.sql.table).where(lease > 0).values(lease_until_ns=1))


# -- putting --


@pytest.mark.promise("Q10")
def test_messages_are_put_in_the_users_transaction(queue: outbox.Queue) -> None:
    with queue.database.begin() as connection:
        ids = [queue.put(connection, b"\x00\xff"), queue.put(connection, "grün")]
        ids += queue.put_many(connection, [bytearray(b"a"), memoryview(b"b"), "", b"c" * 100_000])
        assert queue.put_many(connection, []) == []
    assert ids == sorted(set(ids))
    batch = queue.claim()
    assert list(batch.ids) == ids
    assert batch.bodies() == [b"\x00\xff", "grün".encode(), b"a", b"b", b"", b"c" * 100_000]
    assert {message.epoch for message in batch} == {1}
    assert abs(batch[0].enqueued - datetime.now(UTC)) < timedelta(minutes=10)


@pytest.mark.promise("Q9")
def test_what_is_rolled_back_was_never_put(queue: outbox.Queue) -> None:
    def fails(connection: Connection) -> None:
        queue.put(connection, "no")
        raise LookupError

    with pytest.raises(LookupError), queue.database.begin() as connection:
        fails(connection)
    assert queue.stats() == outbox.QueueStats(0, 0, 0, None)
    first = put(queue, "a", "b")
    queue.claim().ack()
    assert put(queue, "c")[0] > first[1]  # an id is never used again


def test_many_messages_at_once_keep_their_order(queue: outbox.Queue) -> None:
    ids = put(queue, *map(str, range(2_500)))
    assert ids == sorted(ids)
    assert [int(body) for body in queue.claim(10_000).bodies()] == list(range(2_500))


def test_only_in_a_transaction(queue: outbox.Queue) -> None:
    with queue.database.engine.connect() as connection:
        with pytest.raises(NotInTransaction):
            queue.put(connection, "a")
        with connection.begin():
            queue.put(connection, "a")
        automatic = connection.execution_options(isolation_level="AUTOCOMMIT")
        with automatic.begin(), pytest.raises(NotInTransaction):
            queue.put(automatic, "a")
    batch = queue.claim()
    with queue.database.engine.connect() as connection, pytest.raises(NotInTransaction):
        batch.ack_in(connection)
    with Session(queue.database.engine) as session, session.begin():
        with pytest.raises(BadArgument, match="Engine"):
            queue.put(queue.database.engine, "b")  # type: ignore[arg-type]
        queue.put(session.connection(), "b")
        queue.put(session, "c")
    assert queue.stats().ready == 2


@pytest.mark.parametrize("body", [None, 7, ["a"], object()])
def test_other_bodies_are_refused(queue: outbox.Queue, body: Any) -> None:
    with queue.database.begin() as connection:
        with pytest.raises(BadArgument, match="A body is a"):
            queue.put_many(connection, [b"a", body])
        with pytest.raises(BadArgument, match="a single one"):
            queue.put_many(connection, "abc")
    assert queue.stats().ready == 0


def test_other_arguments_are_refused(queue: outbox.Queue) -> None:
    for limit in (0, -1, 10_001, "7"):
        with pytest.raises(BadArgument, match="batch of"):
            queue.claim(limit)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="lease"):
        queue.claim(lease=0)
    with pytest.raises(BadTime):
        queue.claim(lease=timedelta(seconds=-1))
    with pytest.raises(BadArgument, match="name"):
        queue.claim(name="n" * 256)
    for name in ("", "n" * 49, "a b", "a'b", "%s", 7):
        with pytest.raises(BadArgument, match="name of a queue"):
            outbox.Queue(queue.database, name)  # type: ignore[arg-type]


# -- tables --


@pytest.mark.parametrize("name", ["größer", "select", "Q7"])
def test_any_name_will_do(database: outbox.Database, name: str) -> None:
    queue = outbox.Queue(database, name).create().create()
    first, second = put(queue, "a", "b")
    batch = queue.claim(1)
    batch.extend(timedelta(minutes=1))
    batch.nack()
    batch = queue.claim(5)
    batch[0].nack(delay=timedelta(hours=1))
    batch[1].ack()
    assert queue.stats().delayed == 1
    assert batch.ids == (first, second)


def test_a_table_that_is_missing(database: outbox.Database) -> None:
    queue = outbox.Queue(database, new_name())

    def use(work: Any) -> None:
        with pytest.raises(TableMissing, match=rf"no table {queue.name}.*queue\.create"):
            work()

    use(queue.check)
    use(queue.claim)
    use(queue.stats)
    use(lambda: put(queue, "a"))


def test_a_table_of_something_else(database: outbox.Database) -> None:
    name = new_name()
    table = sa.Table(
        name,
        sa.MetaData(),
        sa.Column("id", sa.Integer),
        sa.Column("body", sa.Integer),
        sa.Column("epoch", sa.String(10)),
        sa.Column("customer", sa.Integer, nullable=False),
        sa.Column("note", sa.Integer),
    )
    with database.begin() as connection:
        table.create(connection)
    with pytest.raises(BadTable) as caught:
        outbox.Queue(database, name).create()
    for wrong in (
        "enqueued_ns is missing",
        "lease_until_ns is missing",
        "body is not binary",
        "epoch is not a 64-bit integer",
        "customer must have a default",
        "the primary key is not id",
    ):
        assert wrong in caught.value.message
    assert "note" not in caught.value.message


def test_a_table_with_more_columns_is_taken(queue: outbox.Queue) -> None:
    table = queue.database.engine.dialect.identifier_preparer.format_table(queue.sql.table)
    with queue.database.begin() as connection:
        connection.exec_driver_sql(f"alter table {table} add column customer integer")
    queue.create()
    put(queue, "a")
    assert queue.claim().bodies() == [b"a"]


def test_many_create_it_at_once(database: outbox.Database) -> None:
    name, errors = new_name(), []

    def create() -> None:
        try:
            outbox.Queue(database, name).create()
        except Exception as error:  # seen by the test's own thread
            errors.append(error)

    in_threads(create)
    assert errors == []


@pytest.mark.promise("Q4")
def test_claims_find_what_they_need_in_an_index(queue: outbox.Queue) -> None:
    """However many others hold: what is held is not read."""
    put(queue, *["x"] * 2_000)
    queue.claim(1_900)
    statements: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        statements.append((statement, parameters))

    sa.event.listen(queue.database.engine, "before_cursor_execute", note)
    try:
        with queue.database.begin() as connection:
            queue.sql.claim(connection, 10, 10**9, "me")
    finally:
        sa.event.remove(queue.database.engine, "before_cursor_execute", note)
    explain = "explain query plan " if queue.database.kind == "sqlite" else "explain "
    with queue.database.begin() as connection:
        plans = [
            str(connection.exec_driver_sql(explain + statement, parameters).all())
            for statement, parameters in statements
            if queue.name in statement
        ]
    assert f"{queue.name}_lease" in plans[0]
    assert (f"{queue.name}_lease" if queue.database.kind == "mariadb" else f"{queue.name}_free") in plans[1]


# -- settling --


@pytest.mark.promise("S23")
def test_effect_and_delete_are_one(queue: outbox.Queue, effects: sa.Table) -> None:
    put(queue, *"123")
    batch = queue.claim()

    def handle(connection: Connection, *, fail: bool) -> None:
        connection.execute(sa.insert(effects), [{"number": int(message.body)} for message in batch])
        batch.ack_in(connection)
        batch.ack_in(connection)  # in the same transaction that is the same
        if fail:
            raise LookupError

    with pytest.raises(LookupError):
        queue.database.run(lambda connection: handle(connection, fail=True))
    assert (count(queue, effects), queue.stats().leased) == (0, 3)
    queue.database.run(lambda connection: handle(connection, fail=False))
    assert (count(queue, effects), queue.stats().leased) == (3, 0)
    batch.ack()  # nothing is left
    batch.nack()
    with pytest.raises(LeaseLost):  # another transaction may not count it again
        queue.database.run(lambda connection: handle(connection, fail=False))
    assert count(queue, effects) == 3


def test_a_delete_whose_commit_failed_is_done_again(queue: outbox.Queue, effects: sa.Table) -> None:
    """The transaction is tried again as a whole: what was deleted in the first try must not be taken for deleted."""
    put(queue, "1")
    batch = queue.claim()
    tries = []

    def handle(connection: Connection) -> None:
        connection.execute(sa.insert(effects), {"number": 1})
        batch.ack_in(connection)
        if not tries:
            tries.append(connection)
            sa.event.listen(connection, "commit", refuse)

    def refuse(_connection: Connection) -> None:
        raise DatabaseBusy("as a serialization failure at the commit")

    queue.database.run(handle)
    assert (len(tries), count(queue, effects)) == (1, 1)
    assert queue.stats() == outbox.QueueStats(0, 0, 0, None)


def test_each_message_is_settled_by_itself(queue: outbox.Queue) -> None:
    put(queue, *"abcdef")
    batch = queue.claim()
    batch[0].ack()
    batch[0].ack()
    with queue.database.begin() as connection:
        batch[1].ack_in(connection)
        batch[1].ack_in(connection)
    batch[2].nack()
    batch[3].nack(delay=timedelta(hours=1))
    assert (queue.stats().ready, queue.stats().leased, queue.stats().delayed) == (1, 2, 1)
    for message in (batch[2], batch[3]):
        with pytest.raises(LeaseLost):
            message.ack()
        with pytest.raises(LeaseLost), queue.database.begin() as connection:
            message.ack_in(connection)
    with queue.database.begin() as connection:
        batch.ack_in(connection)  # e and f
    again = queue.claim()
    assert (again.bodies(), again[0].epoch) == ([b"c"], 2)
    assert queue.stats().oldest_age_s is not None


@pytest.mark.promise("S20")
def test_what_failed_is_put_again_at_the_end(queue: outbox.Queue) -> None:
    put(queue, *"ab")
    batch = queue.claim(1)
    with queue.database.begin() as connection:
        queue.put(connection, batch[0].body)
        batch.ack_in(connection)
    assert queue.claim().bodies() == [b"b", b"a"]


def test_only_what_is_lost_is_not_done(queue: outbox.Queue) -> None:
    put(queue, *"abc")
    batch = queue.claim(2)
    end_leases(queue)
    successor = queue.claim(1)
    with pytest.raises(LeaseLost) as caught:
        batch.ack()
    assert caught.value.ids == [successor.ids[0]]
    assert batch.lost == successor.ids
    assert batch[0].is_lost
    assert not batch[1].is_lost
    assert queue.claim().bodies() == [b"c"]  # b is done, though its lease had ended
    successor.ack()


def test_leases_are_extended(queue: outbox.Queue) -> None:
    put(queue, *"ab")
    batch = queue.claim(1)
    end_leases(queue)
    batch.extend(timedelta(minutes=1))
    assert queue.claim().bodies() == [b"b"]
    end_leases(queue)
    queue.claim(1)
    with pytest.raises(LeaseLost):
        batch.extend(timedelta(minutes=1))


def test_a_released_message_is_not_leased_again(queue: outbox.Queue) -> None:
    put(queue, "a")
    batch = queue.claim()
    batch.nack()
    batch.extend(timedelta(minutes=1))
    assert queue.stats().ready == 1


def test_an_answer_that_was_lost(queue: outbox.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first `ack` was committed, but its answer did not come: the second sees nothing, and that is right."""
    put(queue, *"ab")
    batch = queue.claim()
    run = queue.database.run

    def lose(work: Any) -> None:
        run(work)
        raise DatabaseUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(queue.database, "run", lose)
        with pytest.raises(DatabaseUnavailable):
            batch.ack()
    batch.ack()
    assert queue.stats() == outbox.QueueStats(0, 0, 0, None)


@pytest.mark.parametrize("is_finished", [True, False])
def test_an_answer_that_was_lost_and_a_lease_that_ended_meanwhile(
    queue: outbox.Queue, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    """The first `ack` was not committed: only the one who was given the message since is told that it is done."""
    put(queue, "a")
    batch = queue.claim(lease=timedelta(milliseconds=20))

    def lose(_work: Any) -> None:
        raise DatabaseUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(queue.database, "run", lose)
        with pytest.raises(DatabaseUnavailable):
            batch.ack()
    while not (other := queue.claim()):
        time.sleep(0.005)
    if is_finished:
        other.ack()
    with pytest.raises(LeaseLost) as lost:
        batch.ack()
    assert lost.value.ids == list(batch.ids)
    assert batch.lost == batch.ids
    if not is_finished:
        other.ack()


def test_many_leases_end_at_once(queue: outbox.Queue) -> None:
    bodies = [str(number) for number in range(1_200)]
    put(queue, *bodies)
    queue.claim(1_000)
    end_leases(queue)
    assert [int(body) for body in queue.claim(1_100).bodies()] == list(range(1_100))
    assert [int(body) for body in queue.claim(1_100).bodies()] == list(range(1_100, 1_200))


@pytest.mark.promise("S16", "S17")
def test_many_producers_and_consumers(queue: outbox.Queue, effects: sa.Table) -> None:
    """Each message once, nothing lost, and what one consumer gets is in order."""
    in_each = 300
    producing = threading.Barrier(THREADS + 1)
    unordered: list[tuple[int, ...]] = []
    numbers = iter(range(THREADS))

    def produce() -> None:
        mine = next(numbers)
        for start in range(0, in_each, 10):
            put(queue, *[str(mine * in_each + start + number) for number in range(10)])
        producing.wait()

    def consume() -> None:
        while count(queue, effects) < THREADS * in_each:
            batch = queue.claim(25)
            if batch.ids != tuple(sorted(batch.ids)):
                unordered.append(batch.ids)

            def handle(connection: Connection, batch: outbox.ClaimedBatch = batch) -> None:
                rows = [{"number": int(body)} for body in batch.bodies()]
                connection.execute(sa.insert(effects), rows)
                batch.ack_in(connection)

            if len(batch):
                queue.database.run(handle)

    threads = [threading.Thread(target=work) for work in [produce] * THREADS + [consume] * THREADS]
    for thread in threads:
        thread.start()
    producing.wait()
    for thread in threads:
        thread.join()
    with queue.database.reading() as connection:
        found = Counter(connection.execute(sa.select(effects.c.number)).scalars())
    assert found == Counter(range(THREADS * in_each))
    assert unordered == []
    assert queue.stats() == outbox.QueueStats(0, 0, 0, None)


def in_threads(work: Any) -> None:
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
