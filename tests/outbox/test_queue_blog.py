"""What is wrong with the queue of the blog post on MySQL, shown on a real MariaDB; and that ours does not do it.

Each scenario is played twice: the blog's statements, as they are written there, fail; ours hold on all databases.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from tests.support.outbox.databases import DatabaseServer
from tickwheel import outbox
from tickwheel.outbox import LeaseLost
from tickwheel.outbox.database import is_busy

LEASE_S = 60


class BlogQueue:
    """The blog's statements. The index is what its claims need as soon as the table is long."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE TABLE message_queue (id BIGINT PRIMARY KEY AUTO_INCREMENT, owner VARBINARY(255),"
                " dequeued_time DATETIME, message VARBINARY(255) NOT NULL, KEY (owner, dequeued_time))"
            )

    def enqueue(self, count: int) -> None:
        with self.engine.begin() as connection:
            rows = [{"message": str(number)} for number in range(1, count + 1)]
            connection.execute(sa.text("insert into message_queue (message) values (:message)"), rows)

    def claim(self, connection: Connection, owner: str) -> None:
        """The first version."""
        claim = "update message_queue set owner=:owner,dequeued_time=NOW() where owner is null limit 10"
        connection.execute(sa.text(claim), {"owner": owner})

    def claim_or_take_over(self, connection: Connection, owner: str) -> None:
        """The version that takes over what somebody did not finish in time."""
        claim = (
            "update message_queue set owner=:owner,dequeued_time=NOW()"
            f" where owner is null or dequeued_time < SUBTIME(NOW(), SEC_TO_TIME({LEASE_S})) limit 10"
        )
        connection.execute(sa.text(claim), {"owner": owner})

    def select(self, owner: str) -> list[int]:
        with self.engine.begin() as connection:
            select = sa.text("select message from message_queue where owner=:owner")
            return sorted(int(message) for message in connection.execute(select, {"owner": owner}).scalars())

    def delete(self, owner: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text("delete from message_queue where owner=:owner"), {"owner": owner})

    def set_free(self, owner: str) -> None:
        """What the blog's monitor does for an owner that failed."""
        with self.engine.begin() as connection:
            free = sa.text("update message_queue set owner=null where owner=:owner")
            connection.execute(free, {"owner": owner})

    def age(self, seconds: int) -> None:
        """As if this time had passed."""
        with self.engine.begin() as connection:
            connection.exec_driver_sql(
                f"update message_queue set dequeued_time = dequeued_time - interval {seconds} second"
            )

    def messages(self) -> list[int]:
        with self.engine.begin() as connection:
            return [
                int(one) for one in connection.execute(sa.text("select message from message_queue")).scalars()
            ]


@pytest.fixture
def blog(maria_server: DatabaseServer) -> Iterator[BlogQueue]:
    with maria_server.database() as url:
        engine = sa.create_engine(url)
        yield BlogQueue(engine)
        engine.dispose()


@pytest.fixture
def queue(database_url: str) -> Iterator[outbox.Queue]:
    with outbox.Queue(database_url, "work") as one:
        yield one.create()


def put(queue: outbox.Queue, count: int) -> None:
    with queue.database.begin() as connection:
        queue.put_many(connection, [str(number) for number in range(1, count + 1)])


def age(queue: outbox.Queue, seconds: int) -> None:
    """As if this time had passed."""
    lease = queue.sql.table.c.lease_until_ns
    with queue.database.begin() as connection:
        connection.execute(
            sa.update(queue.sql.table).where(lease > 0).values(lease_until_ns=lease - seconds * 1_000_000_000)
        )


def numbers(batch: outbox.ClaimedBatch) -> list[int]:
    return [int(message.body) for message in batch]


ONE_TO_TEN = list(range(1, 11))


def test_the_blog_claims_newer_messages_before_older_ones(blog: BlogQueue) -> None:
    """Without ORDER BY the order is that of the index: what was set free is behind what nobody has had."""
    blog.enqueue(40)
    with blog.engine.begin() as connection:
        blog.claim(connection, "dies")
    assert blog.select("dies") == ONE_TO_TEN
    blog.set_free("dies")
    with blog.engine.begin() as connection:
        blog.claim(connection, "next")
    assert blog.select("next") != ONE_TO_TEN


@pytest.mark.promise("V15", "S15", "Q1")
def test_claims_are_in_order(queue: outbox.Queue) -> None:
    put(queue, 40)
    first, second = queue.claim(10), queue.claim(10)
    assert numbers(first) == ONE_TO_TEN
    first.nack()
    assert numbers(queue.claim(10)) == ONE_TO_TEN
    age(queue, LEASE_S)
    assert numbers(queue.claim(15)) == list(range(1, 16))
    assert numbers(queue.claim(15)) == list(range(16, 31))
    assert numbers(second) == list(range(11, 21))


def test_the_blog_deletes_what_it_never_processed(blog: BlogQueue) -> None:
    """An owner that claims again before it has deleted: the messages of both claims have the same owner."""
    blog.enqueue(20)
    with blog.engine.begin() as connection:
        blog.claim(connection, "me")
    processed = blog.select("me")
    with blog.engine.begin() as connection:
        blog.claim(connection, "me")
    blog.delete("me")
    assert processed == ONE_TO_TEN
    assert blog.messages() == []  # ten are lost


@pytest.mark.promise("S19", "Q2")
def test_only_what_was_processed_is_deleted(queue: outbox.Queue) -> None:
    put(queue, 20)
    first, second = queue.claim(10, name="me"), queue.claim(10, name="me")
    first.ack()
    second[0].ack()
    assert queue.stats().leased == 9
    second.nack()
    assert numbers(queue.claim(100)) == list(range(12, 21))


def test_the_blogs_slow_owner_deletes_what_its_successor_holds(blog: BlogQueue) -> None:
    """Two consumers with one name, for example a program that was restarted; and both process."""
    blog.enqueue(10)
    with blog.engine.begin() as connection:
        blog.claim_or_take_over(connection, "host-1")
    slow = blog.select("host-1")
    blog.age(LEASE_S + 1)
    with blog.engine.begin() as connection:
        blog.claim_or_take_over(connection, "host-1")
    successor = blog.select("host-1")
    assert slow == successor == ONE_TO_TEN  # processed twice, and nobody is told
    blog.delete("host-1")  # the slow one
    assert blog.messages() == []  # the successor has not finished; if it fails, its messages are lost


def test_the_blogs_slow_owner_is_not_told(blog: BlogQueue) -> None:
    """With different names the slow one deletes nothing, but has done it all, and its delete says so to nobody."""
    blog.enqueue(10)
    with blog.engine.begin() as connection:
        blog.claim_or_take_over(connection, "slow")
    done_by_slow = blog.select("slow")
    blog.age(LEASE_S + 1)
    with blog.engine.begin() as connection:
        blog.claim_or_take_over(connection, "successor")
    blog.delete("slow")
    assert done_by_slow == blog.select("successor") == ONE_TO_TEN


@pytest.mark.promise("S22")
def test_a_slow_owner_is_told_and_rolls_back(queue: outbox.Queue) -> None:
    effects = sa.Table("effects", sa.MetaData(), sa.Column("number", sa.Integer))
    with queue.database.begin() as connection:
        effects.create(connection)
    put(queue, 10)
    slow = queue.claim(10, name="host-1", lease=timedelta(seconds=LEASE_S))
    age(queue, LEASE_S)
    successor = queue.claim(10, name="host-1")
    assert numbers(slow) == numbers(successor) == ONE_TO_TEN

    with pytest.raises(LeaseLost) as caught, queue.database.begin() as connection:  # noqa: PT012
        connection.execute(sa.insert(effects), [{"number": number} for number in numbers(slow)])
        slow.ack_in(connection)
    assert caught.value.ids == list(slow.ids)
    with pytest.raises(LeaseLost):
        slow.ack()
    slow.nack()  # it has nothing to give back
    assert queue.stats().leased == 10

    with queue.database.begin() as connection:
        connection.execute(sa.insert(effects), [{"number": number} for number in numbers(successor)])
        successor.ack_in(connection)
    with queue.database.reading() as connection:
        assert sorted(connection.execute(sa.select(effects.c.number)).scalars()) == ONE_TO_TEN
    assert queue.claim(10).ids == ()


def test_the_blogs_claim_locks_what_it_does_not_take(blog: BlogQueue) -> None:
    """OR finds no index, so the whole table is read and locked: two cannot claim at once."""
    blog.enqueue(40)
    with blog.engine.connect() as first, blog.engine.connect() as second:
        blog.claim_or_take_over(first, "one")
        second.exec_driver_sql("set innodb_lock_wait_timeout = 0")
        with pytest.raises(sa.exc.OperationalError) as caught:
            blog.claim_or_take_over(second, "two")
        assert is_busy(caught.value)
        second.rollback()
        first.rollback()


@pytest.mark.promise("S18", "Q3")
def test_claims_do_not_wait_for_each_other(maria_server: DatabaseServer) -> None:
    check_that_claims_do_not_wait(maria_server, "set innodb_lock_wait_timeout = 1")


def test_claims_do_not_wait_for_each_other_on_postgresql(postgres_server: DatabaseServer) -> None:
    check_that_claims_do_not_wait(postgres_server, "set lock_timeout = 1")


def check_that_claims_do_not_wait(server: DatabaseServer, wait_for_nobody: str) -> None:
    """Neither claims, nor what holders do, nor new messages wait for transactions that are open."""
    with server.database() as url, outbox.Queue(url, "work") as queue:
        put(queue.create(), 40)
        held = queue.claim(10)
        beside = queue.claim(10)
        with queue.database.begin() as first, queue.database.begin() as second:
            second.exec_driver_sql(wait_for_nobody)
            held.ack_in(first)
            assert [row.id for row in queue.sql.claim(first, 5, 10**9, "first").rows] == [21, 22, 23, 24, 25]
            assert queue.put(first, "late") == 41

            assert [row.id for row in queue.sql.claim(second, 5, 10**9, "second").rows] == [
                26,
                27,
                28,
                29,
                30,
            ]
            assert queue.put(second, "later") == 42
            some = [(id_, 1) for id_ in beside.ids]
            assert queue.sql.extend(second, [(id_, 1) for id_ in held.ids], 10**9) == set()
            assert queue.sql.extend(second, some, 10**9) == set()
            assert queue.sql.release(second, some[:3], 0) == {11, 12, 13}
            beside[9].ack_in(second)
            beside_rest = [(id_, 1) for id_ in beside.ids[3:9]]
            assert queue.sql.delete(second, beside_rest) == set(beside.ids[3:9])
        assert queue.stats().ready == 3 + 10 + 2
