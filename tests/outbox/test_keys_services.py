"""The dispatcher and the executor at work: woken by commits, sharing ranges, and going on whatever happens."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from anyio.to_thread import run_sync

from tests.support.stores.key_spaces import is_done, tables_of, until
from tickwheel.outbox import BadLimit, Increment, KeySpace, Put, TableMissing
from tickwheel.outbox.keys import leases
from tickwheel.outbox.keys.leases import Worker

DEADLINE_S = 60
NEVER_S = 3_600.0


@pytest.fixture
def space(database_url: str) -> Iterator[KeySpace]:
    with KeySpace(database_url, "shop") as one:
        yield one.create()


@pytest.fixture(params=["trio", "asyncio"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(main: Callable[[], Awaitable[None]], backend: str = "trio") -> None:
    async def with_deadline() -> None:
        with anyio.fail_after(DEADLINE_S):
            await main()

    anyio.run(with_deadline, backend=backend)


def send(space: KeySpace, *values: bytes, sender: str = "s") -> None:
    with space.database.begin() as connection:
        for value in values:
            space.send(connection, "box", value, sender=sender)
            space.execute(connection, Increment("n"), sender=sender)


def reap(space: KeySpace) -> list[bytes]:
    return space.database.run(lambda connection: [one.value for one in space.reap(connection, "box", 1_000)])


def counter(space: KeySpace, key: str = "n") -> bytes | None:
    return space.database.run(lambda connection: space.get(connection, key))


@pytest.mark.promise("S6", "S7", "K6")
def test_a_commit_wakes_both(space: KeySpace, backend: str) -> None:
    async def main() -> None:
        dispatcher = space.dispatcher(poll_interval_s=NEVER_S, lease_s=NEVER_S)
        async with dispatcher, space.executor(poll_interval_s=NEVER_S, lease_s=NEVER_S) as executor:
            for number in range(3):
                await run_sync(send, space, b"%d" % number)
                await until(lambda number=number: executor.processed == number + 1 == dispatcher.processed)  # type: ignore[misc]

    run(main, backend)
    assert reap(space) == [b"0", b"1", b"2"]
    assert counter(space) == b"3"
    assert {one.owner for one in space.stats().ranges} == {None}, "leases are given up at once"
    assert space.stats().dispatchers == 0


@pytest.mark.promise("K7")
def test_polling_is_the_fallback(space: KeySpace, monkeypatch: pytest.MonkeyPatch) -> None:
    class DeafWatch:
        look = staticmethod(leases_free_look)

        async def run(self, _ring: Any) -> None:
            await anyio.sleep_forever()

    monkeypatch.setattr("tickwheel.outbox.keys.service.watch_table", lambda *_: DeafWatch())

    async def main() -> None:
        async with space.dispatcher(poll_interval_s=0.05) as dispatcher:
            await until(lambda: space.stats().dispatchers == 1)
            await run_sync(send, space, b"x")
            await until(lambda: dispatcher.processed == 1)

    run(main)


def leases_free_look() -> Any:
    from contextlib import asynccontextmanager

    from tickwheel.outbox.statistics_watch import Look

    @asynccontextmanager
    async def look() -> Any:
        yield Look()

    return look()


def test_services_say_what_is_wrong(database_url: str) -> None:
    with KeySpace(database_url, "shop") as space:
        with pytest.raises(TableMissing):
            run(space.executor().run)
        for settings in ({"batch_size": 0}, {"poll_interval_s": 0}, {"lease_s": -1.0}):
            with pytest.raises(BadLimit):
                space.dispatcher(**settings)  # type: ignore[arg-type]


REFUSES = {
    "sqlite": "create trigger guard before insert on shop when new.value = x'626164'"
    " begin select raise(abort, 'no'); end",
    "postgresql": "alter table shop add constraint guard check (value <> 'bad'::bytea)",
    "mariadb": "alter table shop add constraint guard check (value <> 'bad')",
}


@pytest.mark.promise("K11")
def test_what_cannot_be_executed_is_set_aside_and_the_rest_goes_on(space: KeySpace) -> None:
    """Also what the database itself refuses, in the middle of a batch."""
    with space.database.begin() as connection:
        connection.execute(sa.text(REFUSES[space.database.kind]))
    with space.database.begin() as connection:
        space.put(connection, "word", b"x")
        for number in range(10):
            space.execute(connection, Increment("n"), sender="s")
            space.execute(connection, Increment("word"), sender="s")
            if number in (3, 7):
                space.execute(connection, Put("n", b"bad"), sender="s")
                space.execute(connection, Put(f"after {number}", b"good"), sender="s")

    async def main() -> None:
        async with space.executor() as executor:
            await until(lambda: executor.processed == 24)
            assert executor.failed == 12

    run(main)
    assert counter(space) == b"10"
    assert counter(space, "after 7") == b"good"
    with space.database.begin() as connection:
        failed = space.failed(connection)
        assert [one.operation for one in failed if one.error_code == "outbox"] == [Put(b"n", b"bad")] * 2
        assert [one.operation for one in failed if one.error_code == "not_an_integer"] == [
            Increment(b"word", 1)
        ] * 10
        assert space.retry_failed(connection) == 12
        space.put(connection, "word", b"0")
        connection.execute(
            sa.text(
                "drop trigger guard"
                if space.database.kind == "sqlite"
                else "alter table shop drop constraint guard"
            )
        )

    async def again() -> None:
        async with space.executor() as executor:
            await until(lambda: executor.processed == 12)

    run(again)
    assert (counter(space), counter(space, "word")) == (b"bad", b"10")


def test_what_is_no_fault_of_an_operation_sets_none_aside(space: KeySpace) -> None:
    """It ends the executor, loudly: a missing table or right would set aside all that waits."""
    data = tables_of(space).data.name

    async def main() -> None:
        async with space.executor() as executor:
            await until(lambda: space.stats().executors == 1)
            space.database.run(lambda one: one.execute(sa.text(f"alter table {data} rename to elsewhere")))
            space.database.run(lambda one: space.execute(one, Increment("n"), sender="s"))
            await until(lambda: executor.failed > 0)

    with pytest.raises(BaseExceptionGroup) as caught:
        run(main)
    assert caught.group_contains(sa.exc.DBAPIError)
    space.database.run(lambda one: one.execute(sa.text(f"alter table elsewhere rename to {data}")))
    stats = space.stats()
    assert (stats.executable_messages, stats.failed_operations) == (1, 0)


@pytest.mark.promise("K4")
def test_workers_share_ranges_and_take_over_what_a_dead_one_had(space: KeySpace) -> None:
    for at in ("b", "c", "d"):
        space.split(at)
    dead = Worker("dispatcher", "dead", lease_ns=500_000_000)
    space.database.run(lambda connection: leases.beat(connection, tables_of(space), dead))
    assert [one.owner for one in space.stats().ranges][:4] == ["dead"] * 4
    for sender in ("a", "b", "c", "d"):
        send(space, sender.encode(), sender=sender)

    def shares() -> list[int]:
        owners = [one.owner for one in space.stats().ranges if one.service == "dispatcher"]
        return sorted(owners.count(one) for one in set(owners) - {None, "dead"})

    async def main() -> None:
        async with space.dispatcher(lease_s=0.5):
            await until(lambda: space.stats().deliverable_messages == 0)
            assert shares() == [4]
            async with space.dispatcher(lease_s=0.5) as second:
                await until(lambda: shares() == [2, 2])
                for sender in ("a", "b", "c", "d"):
                    await run_sync(lambda sender=sender: send(space, sender.encode(), sender=sender))  # type: ignore[misc]
                await until(lambda: space.stats().deliverable_messages == 0)
                await until(lambda: second.processed == 2)  # counted when the transaction has ended
            await until(lambda: shares() == [4])

    run(main)
    assert sorted(reap(space)) == sorted([b"a", b"b", b"c", b"d"] * 2)


@pytest.mark.promise("S2", "K3")
def test_ranges_change_shape_under_load(space: KeySpace) -> None:
    """Nothing is done twice, and what one sender sends stays in order."""
    rounds = 30

    def load() -> None:
        draw = random.Random(4)
        for number in range(rounds):
            for sender in ("a", "m", "z"):
                send(space, f"{sender}{number:03d}".encode(), sender=sender)
            draw.choice([space.split, space.merge])(draw.choice(["b", "m", "y"]))

    async def main() -> None:
        async with (
            space.dispatcher(batch_size=5, lease_s=1),
            space.dispatcher(batch_size=5, lease_s=1),
            space.executor(batch_size=5, lease_s=1),
            space.executor(batch_size=5, lease_s=1),
        ):
            await run_sync(load)
            await until(lambda: is_done(space))

    run(main)
    values = reap(space)
    assert len(values) == 3 * rounds
    for sender in (b"a", b"m", b"z"):
        assert [one for one in values if one[:1] == sender] == [
            b"%b%03d" % (sender, n) for n in range(rounds)
        ]
    assert counter(space) == b"%d" % (3 * rounds)


LOST = {
    "sqlite": sqlite3.OperationalError("connection is closed"),
    "postgresql": psycopg.OperationalError("server closed the connection unexpectedly"),
    "mariadb": pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query"),
}


@pytest.mark.promise("K21")
def test_commits_whose_answer_is_lost_are_not_done_twice(
    space: KeySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(space, *(b"%d" % number for number in range(40)))
    kind, draw, lost = space.database.kind, random.Random(7), []
    real = type(space.database.engine.dialect).do_commit

    def commit(dialect: Any, connection: Any) -> None:
        real(dialect, connection)
        if draw.random() < 0.3:
            lost.append(1)
            raise LOST[kind]

    monkeypatch.setattr(type(space.database.engine.dialect), "do_commit", commit)

    async def main() -> None:
        async with space.dispatcher(batch_size=8, lease_s=1), space.executor(batch_size=8, lease_s=1):
            await until(lambda: is_done(space))

    run(main)
    monkeypatch.undo()
    assert len(lost) > 1
    assert reap(space) == [b"%d" % number for number in range(40)]
    assert counter(space) == b"40"
