"""Very many ids, and settings that are very large or make no sense."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.outbox.messages import execute, fast, get_many, rolled_back
from tests.support.stores.key_spaces import work_off
from tickwheel.outbox import BadTable, Database, Increment, KeySpace, MessageTable, open_database
from tickwheel.outbox.messages import hub as hubs
from tickwheel.outbox.messages.settings import MessageSettings, parse_comment
from tickwheel.protocol.errors import BadArgument

NUMBERS = count()
MANY = 70_000
"""More than 65,535, the most parameters of PostgreSQL's protocol; SQLite takes 32,766."""


def test_seventy_thousand_ids(database: Database) -> None:
    name = f"many{next(NUMBERS)}"
    with MessageTable(database, name) as table:
        table.create(settings=fast())
        ids = [*range(1, 2_001), *range(1_000_000, 1_000_000 + MANY - 2_000)]
        with database.begin() as connection:
            assert table.send_many(connection, [{"message": "x"}] * 2_000) == 2_000
        later = database.now_ns() // 1_000_000 + 3_600_000

        counts: list[int] = []
        with pytest.raises(ZeroDivisionError):
            rolled_back(
                database,
                lambda one: counts.append(table.reschedule(one, ids[:2_001], deliver_at=later)),
                lambda one: counts.append(table.ack(one, ids[:1_001])),
                lambda one: counts.append(table.cancel(one, ids[:2_001])),
            )
        assert counts == [2_000, 1_001, 999]
        assert table.stats().due == 2_000
        with database.begin() as connection:
            assert table.reschedule(connection, ids, deliver_at=later, priority=7) == 2_000
        assert (table.stats().due, table.stats().waiting) == (0, 2_000)
        with database.begin() as connection:
            assert table.cancel(connection, ids) == 2_000
            assert table.cancel(connection, ids[:5]) == 0
        assert table.stats().waiting == 0


STOPS = {
    "sqlite": [
        "create trigger {name}_stop before delete on {name} when old.id = 1500"
        " begin select raise(abort, 'no'); end"
    ],
    "postgresql": [
        "create or replace function {name}_stop() returns trigger language plpgsql as"
        " $$begin raise exception 'no'; end$$",
        "create trigger stop before delete on {name} for each row when (old.id = 1500)"
        " execute function {name}_stop()",
    ],
    "mariadb": [
        "create trigger {name}_stop before delete on {name} for each row"
        " if old.id = 1500 then signal sqlstate '45000' set message_text = 'no'; end if"
    ],
}


def test_parts_are_one_change_also_if_the_caller_goes_on_after_an_error(database: Database) -> None:
    name = f"many{next(NUMBERS)}"
    table = MessageTable(database, name).create(settings=fast())
    with database.begin() as connection:
        table.send_many(connection, [{"message": "x"}] * 2_000)
    for one in STOPS[database.kind]:
        execute(table, one.format(name=name))
    engine = sa.create_engine(database.engine.url)
    with engine.begin() as connection:  # also on SQLite, where the driver has begun nothing yet
        with pytest.raises(sa.exc.DBAPIError):
            table.cancel(connection, range(1, 2_001))
        table.send(connection, message="and yet")
    assert table.stats().due == 2_001
    with pytest.raises(ZeroDivisionError), engine.begin() as connection:  # noqa: PT012
        assert table.reschedule(connection, range(1, 2_001), delay_ms=3_600_000) == 2_000
        raise ZeroDivisionError
    assert table.stats().due == 2_001
    engine.dispose()


def test_key_spaces_with_any_number_of_rows(tmp_path: Path) -> None:
    with open_database(f"sqlite:///{tmp_path / 'a.db'}") as database:
        space = KeySpace(database, "space")
        space.create()
        with database.begin() as connection:
            space.put(connection, "n", b"x")
            for number in range(1_100):
                space.send(connection, "inbox", str(number).encode())
                space.execute(connection, Increment("n", 1))
        work_off(space, limit=MANY)
        with database.begin() as connection:
            assert [one.value for one in space.reap(connection, "inbox", 2_000)] == [
                str(number).encode() for number in range(1_100)
            ]
            assert space.retry_failed(connection, range(1_000 + MANY)) == 1_100
        work_off(space, limit=MANY)
        with database.begin() as connection:
            assert space.drop_failed(connection, range(MANY)) == 1_100


BATCHES = {"batch_size": 100_000, "cache_size": 1_000_000}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("value", [0, -1, 10**9, 1 << 63, 1.5, "10", None, True])
def test_sizes_that_do_not_work_are_refused(name: str, value: object) -> None:
    with pytest.raises(BadTable, match=name) as caught:
        MessageSettings(**{name: value})  # type: ignore[arg-type]
    assert f"{BATCHES[name]:,}" in caught.value.advice
    assert getattr(MessageSettings(**{name: BATCHES[name]}), name) == BATCHES[name]


@pytest.mark.parametrize("name", ["ack_wait_ms", "max_backoff_ms", "purge_after_ms", "poller_interval_ms"])
def test_times_that_do_not_work_are_refused(name: str) -> None:
    for value in (-1, 1 << 63, 10**400, float("nan"), None):
        with pytest.raises(BadTable, match=name):
            MessageSettings(**{name: value})  # type: ignore[arg-type]


def comment(**changes: str) -> str:
    values = {
        "ack_wait": "30",
        "purge_after": "1",
        "batch_size": "10",
        "cache_size": "10",
        "poller_interval": "3600",
    }
    return ",".join(["vitess_message", *(f"vt_{name}={value}" for name, value in (values | changes).items())])


def test_a_comment_that_says_too_much_counts_as_the_most_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = parse_comment(
        comment(
            batch_size="1000000000", cache_size=str(1 << 63), purge_after="1e300", poller_interval="1e18"
        ),
        "t",
    )
    assert (found.batch_size, found.cache_size) == (100_000, 1_000_000)
    assert found.purge_after_ms == found.poller_interval_ms == (1 << 63) - 1
    assert "sets batch_size to 1000000000, which counts as 100000" in caplog.text
    assert caplog.text.count("which counts as") == 4
    for name in ("batch_size", "cache_size"):
        for value in ("0", "-1", "ten", "1.5", "", "²", "9" * 5_000):
            with pytest.raises(BadTable, match=f"vt_{name}"):
                parse_comment(comment(**{name: value}), "t")
    for value in ("nan", "inf", "-1", "1e400"):
        with pytest.raises(BadTable, match="vt_ack_wait"):
            parse_comment(comment(ack_wait=value), "t")


async def test_sizes_at_their_most_work_and_change_while_streaming(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "_CHECK_INTERVAL_S", 0.05)
    name = f"many{next(NUMBERS)}"
    table = MessageTable(database, name).create(settings=fast(**BATCHES))
    huge = comment(batch_size=str(10**9), cache_size=str(1 << 63), poller_interval="1e300")
    change = {
        "sqlite": f"update tickwheel_message_tables set comment = '{huge}' where name = '{name}'",
        "postgresql": f"comment on table {name} is '{huge}'",
        "mariadb": f"alter table {name} comment '{huge}'",
    }[database.kind]
    async with table.hub() as hub, hub.subscribe() as stream:
        for batch_size in (0, -1, 100_001, 1 << 63, 1.5):
            with pytest.raises(BadArgument, match="batch_size"):
                async with hub.subscribe(batch_size):  # type: ignore[arg-type]
                    pass
        with database.begin() as connection:
            table.send(connection, message="first")
        assert len(await get_many(stream, 1)) == 1
        with database.engine.begin() as connection:
            connection.exec_driver_sql(change)
        with database.begin() as connection:
            table.send_many(connection, [{"message": "second"}] * 3)
        assert len(await get_many(stream, 3)) == 3
        while table.settings.purge_after_ms != 1_000:
            await stream.receive(0.05)
        with database.begin() as connection:
            table.send(connection, message="third")
        (third,) = await get_many(stream, 1)
        assert third["message"] == "third"
        assert hub.stats.failures == 0
    assert table.settings.batch_size == 100_000
