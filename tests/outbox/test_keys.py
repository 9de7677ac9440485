"""Key spaces in the user's transactions, on each database: keys, counters, ranges, inboxes, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import sqlalchemy as sa

from tests.support.stores.key_spaces import tables_of, work_off, worker
from tickwheel.outbox import (
    Account,
    Accounted,
    BadKey,
    BadLimit,
    BadOperation,
    BadTable,
    BadValue,
    CounterOverflow,
    Delete,
    DeleteRange,
    Increment,
    KeySpace,
    LeaseLost,
    NotAnInteger,
    NotInTransaction,
    Put,
    TableMissing,
)
from tickwheel.outbox.keys import leases, queues, steps
from tickwheel.outbox.keys.encoding import MAX_KEY_BYTES, MAX_VALUE_BYTES
from tickwheel.outbox.keys.operations import columns_of
from tickwheel_bench.processes import wait_until

LARGEST = 2**63 - 1


@pytest.fixture
def space(database_url: str) -> Iterator[KeySpace]:
    with KeySpace(database_url, "shop") as one:
        yield one.create()


# -- the tables --


def test_tables_are_made_once_and_checked(database_url: str) -> None:
    with KeySpace(database_url, "shop") as space:
        with pytest.raises(TableMissing):
            space.adopt()
        space.create()
        with space.database.begin() as connection:
            space.put(connection, "a", b"1")
        space.create()
        with KeySpace(space.database, "shop").adopt() as same, same.database.begin() as connection:
            assert same.get(connection, "a") == b"1"
        with space.database.begin() as connection:
            connection.execute(sa.text("alter table shop_executable drop column amount"))
        with pytest.raises(BadTable, match="shop_executable has no column amount"):
            space.create()


@pytest.mark.parametrize(
    ("definition", "complaint"),
    [
        ("(word varchar(20) primary key, value varchar(20) not null)", "has no column key"),
        (
            "({key} integer primary key, value varchar(20) not null)",
            "shop.key is .*, which does not hold bytes",
        ),
    ],
)
def test_a_table_of_somebody_else_is_left_alone(database_url: str, definition: str, complaint: str) -> None:
    with KeySpace(database_url, "shop") as space:
        quoted = space.database.engine.dialect.identifier_preparer.quote("key")
        with space.database.begin() as connection:
            connection.execute(sa.text(f"create table shop {definition.format(key=quoted)}"))
        with pytest.raises(BadTable, match=complaint):
            space.create()


@pytest.mark.only_on("mariadb")  # All tables of the others have transactions.
def test_a_table_without_transactions_is_refused(space: KeySpace) -> None:
    with space.database.begin() as connection:
        connection.execute(sa.text("alter table shop_workers engine = MyISAM"))
    with pytest.raises(BadTable, match="MyISAM"):
        space.adopt()


def test_two_spaces_in_one_database_do_not_meet(space: KeySpace) -> None:
    other = KeySpace(space.database, "other").create()
    with space.database.begin() as connection:
        space.put(connection, "a", b"1")
        other.send(connection, "a", b"x")
        assert other.get(connection, "a") is None
    with pytest.raises(BadTable):
        KeySpace(space.database, "x" * 41)


# -- keys and values --


def test_keys_are_ordered_bytewise(space: KeySpace) -> None:
    keys = [b"\x00", b"A", b"a", b"a\x00", b"a ", b"a!", b"\x7f", "é".encode(), b"\xff", b"\xff" * 1024]
    with space.database.begin() as connection:
        for key in reversed(keys):
            space.put(connection, key, key)
        assert space.scan(connection) == [(key, key) for key in sorted(keys)]
        assert space.scan(connection, "a", "b", limit=2) == [(b"a", b"a"), (b"a\x00", b"a\x00")]
        assert space.get(connection, "é") == "é".encode()
        assert [key for key, _ in space.scan(connection, *space.prefix_range(b"\xff"))] == keys[-2:]
        assert space.delete_range(connection, *space.prefix_range("a")) == 4
        assert space.delete(connection, b"A") is True
        assert space.delete(connection, b"A") is False
        assert space.delete_range(connection) == 5
        assert space.scan(connection) == []


@pytest.mark.promise("S3")
def test_largest_keys_and_values_are_stored_and_larger_ones_refused(space: KeySpace) -> None:
    key, sender = os.urandom(MAX_KEY_BYTES), os.urandom(MAX_KEY_BYTES)
    value = os.urandom(MAX_VALUE_BYTES)
    with space.database.begin() as connection:
        space.put(connection, key, value)
        space.send(connection, key, value, sender=sender)
        space.execute(connection, Put(sender, value), sender=sender)
    work_off(space)
    with space.database.begin() as connection:
        assert space.get(connection, key) == value == space.get(connection, sender)
        (message,) = space.reap(connection, key)
        assert (message.value, message.sender) == (value, sender)
        for bad in (b"", b"x" * (MAX_KEY_BYTES + 1), "é" * 513, 17):
            with pytest.raises(BadKey):
                space.put(connection, bad, b"")  # type: ignore[arg-type]
        for bad_value in (value + b"x", "text", None):
            with pytest.raises(BadValue):
                space.send(connection, "a", bad_value)  # type: ignore[arg-type]
        with pytest.raises(BadOperation):
            space.execute(connection, "drop table")  # type: ignore[arg-type]


def test_prefixes() -> None:
    assert KeySpace.prefixes_of("a/b/c") == [b"a/", b"a/b/"]
    assert KeySpace.prefixes_of("a") == []
    assert KeySpace.prefix_range(b"a\xff\xff") == (b"a\xff\xff", b"b")
    assert KeySpace.prefix_range(b"\xff") == (b"\xff", None)
    assert KeySpace.prefix_range(b"") == (b"", None)


def test_counters_are_integers_of_64_bits_in_decimal(space: KeySpace) -> None:
    with space.database.begin() as connection:
        assert space.increment(connection, "n", -5) == -5
        assert space.get(connection, "n") == b"-5"
        assert space.increment(connection, "n") == -4
        space.put(connection, "n", b"%d" % LARGEST)
        with pytest.raises(CounterOverflow):
            space.increment(connection, "n")
        assert space.increment(connection, "n", -LARGEST) == 0
        assert space.increment(connection, "n", -LARGEST - 1) == -LARGEST - 1
        for bad in (b"", b"x", b"+1", b"01", b"1 ", b"-0", b"1.0", b"%d" % (LARGEST + 1), "١".encode()):
            space.put(connection, "n", bad)
            with pytest.raises(NotAnInteger):
                space.increment(connection, "n")
            assert space.get(connection, "n") == bad
        with pytest.raises(CounterOverflow):
            space.increment(connection, "n", LARGEST + 1)
        with pytest.raises(NotAnInteger):
            space.execute(connection, Increment("n", 1.5))  # type: ignore[arg-type]


@pytest.mark.promise("S5")
def test_all_or_nothing_with_the_users_own_tables(space: KeySpace) -> None:
    with space.database.begin() as connection:
        connection.execute(sa.text("create table orders (id integer primary key)"))
    with space.database.begin() as connection:
        connection.execute(sa.text("insert into orders values (17)"))
        space.put(connection, "a", b"1")
        space.increment(connection, "n")
        space.send(connection, "box", b"x")
        space.execute(connection, Put("b", b"2"))
        connection.rollback()
    work_off(space)
    with space.database.begin() as connection:
        assert connection.execute(sa.text("select count(*) from orders")).scalar_one() == 0
        assert space.scan(connection) == []
        assert space.reap(connection, "box", 10) == []


@pytest.mark.promise("K15")
def test_only_inside_a_transaction(space: KeySpace) -> None:
    with space.database.engine.connect() as connection:
        with pytest.raises(NotInTransaction):
            space.put(connection, "a", b"1")
        with pytest.raises(NotInTransaction):
            space.reap(connection, "a", 1)
    own = space.database.engine.execution_options(isolation_level="AUTOCOMMIT")
    with own.begin() as connection, pytest.raises(NotInTransaction):
        space.reap(connection, "a", 1)


def test_counters_of_many_threads_add_up(space: KeySpace) -> None:
    def count(thread: int) -> None:
        for _ in range(10):
            space.database.run(lambda connection: space.increment(connection, "n", thread))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, [1, 10, 100, 1000]))
    with space.database.begin() as connection:
        assert space.get(connection, "n") == b"11110"


# -- messages --


@pytest.mark.promise("S8", "S10", "K1", "K12", "K16", "K18")
def test_inboxes_are_reaped_in_order_and_rollback_brings_messages_back(space: KeySpace) -> None:
    for first in (0, 5):
        with space.database.begin() as connection:
            for number in range(first, first + 5):
                space.send(connection, "box", b"%d" % number, sender=b"s%d" % (-number % 3))
        work_off(space, limit=2)
    with space.database.begin() as connection:
        assert space.waiting_keys(connection) == [b"box"]
        reaped = space.reap(connection, "box", 4)
        assert [one.value for one in reaped] == [b"0", b"1", b"2", b"3"]
        assert [one.sender for one in reaped] == [b"s0", b"s2", b"s1", b"s0"]
        assert [one.value for one in space.reap(connection, "box", 2)] == [b"4", b"5"]
        connection.rollback()
    with space.database.begin() as connection:
        assert [one.value for one in space.reap(connection, "box", 100)] == [b"%d" % one for one in range(10)]
        assert space.reap(connection, "box") == []
        for bad in (0, -1, 1.5, True):
            with pytest.raises(BadLimit):
                space.reap(connection, "box", bad)  # type: ignore[arg-type]
            with pytest.raises(BadLimit):
                space.scan(connection, limit=bad)  # type: ignore[arg-type]


WAITING = {
    "postgresql": "select count(*) from pg_stat_activity"
    " where wait_event_type = 'Lock' and datname = current_database()",
    "mariadb": "select count(*) from information_schema.processlist"
    " where db = database() and info like 'DELETE FROM shop_inbox%'",
    "sqlite": "select 1",  # it does not say; the second one cannot even begin
}


def is_blocked(space: KeySpace) -> bool:
    with space.database.reading() as connection:
        return bool(connection.execute(sa.text(WAITING[space.database.kind])).scalar_one())


@pytest.mark.promise("K17", "K20")
@pytest.mark.parametrize("first_commits", [True, False])
def test_a_second_reaper_waits_and_never_gets_what_the_first_got(
    space: KeySpace, first_commits: bool
) -> None:
    with space.database.begin() as connection:
        for number in range(6):
            space.send(connection, "box", b"%d" % number)
    work_off(space)
    begun = Event()

    def second() -> list[bytes]:
        begun.set()
        return space.database.run(lambda connection: [one.value for one in space.reap(connection, "box", 3)])

    with ThreadPoolExecutor(1) as pool:
        with space.database.begin() as connection:
            assert [one.value for one in space.reap(connection, "box", 3)] == [b"0", b"1", b"2"]
            other = pool.submit(second)
            begun.wait()
            wait_until(lambda: is_blocked(space), lambda: "nobody waits for the first one")
            if not first_commits:
                connection.rollback()
        expected = [b"3", b"4", b"5"] if first_commits else [b"0", b"1", b"2"]
        assert other.result() == expected


@pytest.mark.only_on("postgresql", "mariadb")  # SQLite has one writer at a time.
def test_a_slow_reaper_does_not_stop_the_dispatcher(space: KeySpace) -> None:
    """Under the isolation that the database has by default, which is not ours."""
    with space.database.begin() as connection:
        space.send(connection, "box", b"first")
    work_off(space)
    engine = sa.create_engine(space.database.engine.url)
    with engine.begin() as slow:
        assert [one.value for one in space.reap(slow, "box", 10)] == [b"first"]
        with space.database.begin() as connection:
            space.send(connection, "box", b"second")
        work_off(space)
    engine.dispose()
    with space.database.begin() as connection:
        assert [one.value for one in space.reap(connection, "box", 10)] == [b"second"]


@pytest.mark.promise("S11")
@pytest.mark.only_on("postgresql", "mariadb")  # SQLite has one writer at a time.
def test_what_commits_late_is_not_missed(space: KeySpace) -> None:
    with space.database.begin() as late:
        space.send(late, "box", b"sent first")
        space.execute(late, Put("a", b"sent first"))
        with space.database.begin() as connection:
            space.send(connection, "box", b"committed first")
            space.execute(connection, Increment("n"))
        work_off(space)
    work_off(space)
    with space.database.begin() as connection:
        assert [one.value for one in space.reap(connection, "box", 9)] == [b"sent first", b"committed first"]
        assert space.scan(connection) == [(b"a", b"sent first"), (b"n", b"1")]


def test_the_oldest_timestamp_goes_first_whatever_its_number(space: KeySpace) -> None:
    tables = tables_of(space)
    for timestamp_ns in (3, 1, 2):
        tables.now = lambda timestamp_ns=timestamp_ns: sa.literal(timestamp_ns, sa.BigInteger)  # type: ignore[misc]
        with space.database.begin() as connection:
            queues.send(connection, tables, b"box", b"%d" % timestamp_ns, b"s")
            queues.execute(connection, tables, columns_of(Put("a", b"%d" % timestamp_ns)), b"s")
    one = worker("dispatcher")
    space.database.run(lambda connection: leases.beat(connection, tables_of(space), one))
    with space.database.reading() as connection:
        ((held,), _) = leases.ranges_with_work(connection, tables, one)
    space.database.run(lambda connection: steps.dispatch_batch(connection, tables_of(space), one, held, 1))
    with space.database.begin() as connection:
        assert [message.value for message in space.reap(connection, "box", 9)] == [b"1"]
    work_off(space, "executor", limit=2)
    with space.database.begin() as connection:
        assert space.get(connection, "a") == b"3"


@pytest.mark.promise("K14")
def test_a_number_is_given_once_only(space: KeySpace) -> None:
    """Also when all messages that had one are gone: otherwise two could have the same place in an inbox."""
    numbers = []
    for _ in range(3):
        with space.database.begin() as connection:
            space.send(connection, "box", b"")
        work_off(space)
        with space.database.begin() as connection:
            numbers += [one.sequence for one in space.reap(connection, "box", 10)]
    assert len(set(numbers)) == 3
    assert numbers == sorted(numbers)


@pytest.mark.promise("K13")
def test_messages_of_one_moment_do_not_collide(space: KeySpace) -> None:
    """From one sender, and so from one range, to one key at one timestamp."""
    space._tables.now = lambda: sa.literal(5, sa.BigInteger)  # the database's clock stands still
    with space.database.begin() as connection:
        for number in range(20):
            space.send(connection, "box", b"%d" % number, sender="s")
    work_off(space, limit=7)
    with space.database.begin() as connection:
        reaped = space.reap(connection, "box", 100)
        assert [one.value for one in reaped] == [b"%d" % number for number in range(20)]
        assert {one.timestamp_ns for one in reaped} == {5}


@pytest.mark.promise("S12")
@pytest.mark.parametrize("commits", [True, False])
def test_who_wants_to_keep_messages_saves_them_again(space: KeySpace, commits: bool) -> None:
    """Reaping is a part of an ordinary transaction."""
    with space.database.begin() as connection:
        connection.execute(sa.text("create table letters (body varchar(20))"))
        space.send(connection, "box", b"hello")
    work_off(space)
    with space.database.begin() as connection:
        (message,) = space.reap(connection, "box")
        connection.execute(sa.text("insert into letters values (:body)"), {"body": message.value.decode()})
        space.put(connection, "kept", message.value)
        space.send(connection, "archive", message.value, sender="box")
        if not commits:
            connection.rollback()
    work_off(space)
    with space.database.begin() as connection:
        letters = connection.execute(sa.text("select body from letters")).scalars().all()
        archived = [one.value for one in space.reap(connection, "archive", 10)]
        left = [one.value for one in space.reap(connection, "box", 10)]
        kept = space.get(connection, "kept")
    expected = (["hello"], [b"hello"], [], b"hello") if commits else ([], [], [b"hello"], None)
    assert (letters, archived, left, kept) == expected


@pytest.mark.promise("S4", "K8", "K9")
@pytest.mark.parametrize("limit", [1, 4, 100])
def test_operations_are_executed_in_order(space: KeySpace, limit: int) -> None:
    with space.database.begin() as connection:
        for operation in [
            *(Put("a", b"1"), Increment("a", 4), Put("b", b"x"), Increment("b"), Increment("c", 2)),
            *(DeleteRange("b", "c"), Increment("b", 7), Delete("a"), Increment("a"), Delete("gone")),
            *(Account("p/", 1, 100), Account("p/", 2, -30), Account("", LARGEST), Account("", 1)),
        ]:
            space.execute(connection, operation, sender="s")
        before = space.accounting(connection)
        assert (before.executable_count, before.executable_bytes, before.key_count) == (14, 2, 0)
    work_off(space, limit=limit)
    with space.database.begin() as connection:
        assert space.scan(connection) == [(b"a", b"1"), (b"b", b"7"), (b"c", b"2")]
        assert space.accounted(connection, "p/") == Accounted(b"p/", 3, 70)
        assert space.accounted(connection, "other") == Accounted(b"other", 0, 0)
        failed = space.failed(connection)
        assert [(one.operation, one.error_code) for one in failed] == [
            (Increment(b"b", 1), "not_an_integer"),
            (Account(b"", 1, 0), "counter_overflow"),
        ]


@pytest.mark.promise("K2", "K22")
def test_accounting_counts_what_is_in_a_range(space: KeySpace) -> None:
    with space.database.begin() as connection:
        space.put(connection, "a", b"123")
        space.put(connection, "bb", b"")
        space.put(connection, "z", b"not counted")
        space.send(connection, "a", b"12", sender="b")
        space.send(connection, "a", b"not counted", sender="z")
        counted = space.accounting(connection, "a", "c")
        assert (counted.key_count, counted.key_bytes, counted.value_bytes) == (2, 3, 3)
        assert (counted.deliverable_count, counted.deliverable_bytes, counted.inbox_count) == (1, 2, 0)
    work_off(space)
    with space.database.begin() as connection:
        counted = space.accounting(connection, "a", "c")
        assert (counted.inbox_count, counted.inbox_bytes, counted.deliverable_count) == (2, 13, 0)


def test_failed_operations_are_retried_or_dropped(space: KeySpace) -> None:
    with space.database.begin() as connection:
        space.put(connection, "n", b"x")
        for by in (1, 2, 4):
            space.execute(connection, Increment("n", by))
    work_off(space)
    with space.database.begin() as connection:
        first, second, third = space.failed(connection)
        assert [one.operation for one in (first, second, third)] == [Increment(b"n", by) for by in (1, 2, 4)]
        assert first.failed_ns >= first.timestamp_ns
        assert space.drop_failed(connection, [first.sequence]) == 1
        assert space.drop_failed(connection, [first.sequence]) == 0
        assert space.retry_failed(connection, [second.sequence]) == 1
    work_off(space)  # still no integer
    with space.database.begin() as connection:
        assert len(space.failed(connection)) == 2
        space.put(connection, "n", b"10")
        assert space.retry_failed(connection) == 2
        assert space.failed(connection) == []
    work_off(space)
    with space.database.begin() as connection:
        assert space.get(connection, "n") == b"16"


def test_an_operation_that_nobody_knows_is_set_aside(space: KeySpace) -> None:
    with space.database.begin() as connection:
        space.execute(connection, Put("a", b"1"))
        connection.execute(sa.text("update shop_executable set operation = 'launch'"))
        space.execute(connection, Put("b", b"2"))
    work_off(space)
    with space.database.begin() as connection:
        (failed,) = space.failed(connection)
        assert (failed.operation, failed.error_code) == (None, "bad_operation")
        assert space.get(connection, "b") == b"2"


# -- leases --


@pytest.mark.promise("K5")
def test_a_worker_that_lost_its_range_changes_nothing(space: KeySpace) -> None:
    tables, database = tables_of(space), space.database
    old = leases.Worker("dispatcher", "old", lease_ns=1)
    database.run(lambda connection: leases.beat(connection, tables, old))
    with database.begin() as connection:
        space.send(connection, "box", b"x")
        (held,) = [one for one in space.stats().ranges if one.owner == "old"]
    new = worker("dispatcher", "new")
    while not database.run(lambda connection: leases.beat(connection, tables, new)):
        pass  # until the old one's nanosecond is over
    with pytest.raises(LeaseLost) as lost:
        database.run(lambda connection: steps.dispatch_batch(connection, tables, old, held, 10))
    assert lost.value.ids == [b""]
    assert space.stats().deliverable_messages == 1
    assert {one.owner for one in space.stats().ranges} == {"new", None}


@pytest.mark.promise("S1")
def test_ranges_are_split_merged_and_shared_fairly(space: KeySpace) -> None:
    tables, database = tables_of(space), space.database
    assert [space.split(at) for at in ("d", "m", "t", "m")] == [True, True, True, False]
    workers = [worker("executor", name) for name in ("a", "b", "c")]

    def owned() -> list[int]:
        for _ in range(3):
            for one in workers:
                database.run(lambda connection, one=one: leases.beat(connection, tables, one))  # type: ignore[misc]
        owners = [one.owner for one in space.stats().ranges if one.service == "executor"]
        return [owners.count(one.name) for one in workers]

    assert owned() == [2, 1, 1]
    leaving = workers.pop()
    database.run(lambda connection: leases.give_up(connection, tables, leaving))
    assert owned() == [2, 2]
    assert [space.merge(at) for at in ("m", "m", "a")] == [True, False, False]
    assert [(one.start, one.end) for one in space.stats().ranges[:3]] == [
        (b"", b"d"),
        (b"d", b"t"),
        (b"t", None),
    ]
    assert owned() == [2, 1]
    assert space.stats().executors == 2
