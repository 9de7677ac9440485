"""Arguments of the outbox that are not what was asked for: a typed error with advice, and nothing is stored."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from tests.support.outbox.databases import DatabaseServer
from tickwheel import outbox
from tickwheel.errors import BadArgument, BadTime, TickwheelError
from tickwheel.outbox import MessageSettings, MessageTable

NOW = datetime(2031, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HALF = "half \ud800 of a pair"


class Odd:
    """Nothing that anybody asked for."""

    def __repr__(self) -> str:
        raise RuntimeError("no picture of me")


HUGE = 10**5_000
MOMENTS: list[Any] = [
    *(1.5, float("nan"), Decimal(1), date(2031, 5, 1), datetime(2031, 5, 1), timedelta.max, True, -1, 1 << 63, HUGE),
    *("2031-05-01", b"2031", Odd(), {}, np.datetime64("2031-05-01"), np.datetime64("NaT", "s"), np.timedelta64(5, "s")),
    *(np.float64(1), np.bool_(True), 253_402_300_799_999, datetime.max.replace(tzinfo=UTC), SECOND),
]  # fmt: skip
DURATIONS: list[Any] = [
    *(5, 1.5, float("nan"), Decimal(1), date(2031, 5, 1), NOW, timedelta.max, timedelta.min, -SECOND, True, -1, HUGE),
    *("5s", b"5s", Odd(), {}, np.datetime64("2031-05-01"), np.datetime64("NaT", "s"), np.timedelta64(5, "s")),
    *(np.int64(5), np.float64(1), timedelta(days=365 * 7_000)),
]  # fmt: skip
MILLISECONDS: list[Any] = [
    1.5,
    float("nan"),
    Decimal(1),
    SECOND,
    NOW,
    True,
    -1,
    1 << 63,
    HUGE,
    "5",
    b"5",
    Odd(),
    {},
]
NANOSECONDS: list[Any] = [None, *MILLISECONDS, date(2031, 5, 1), np.datetime64("2031-05-01"), np.float64(1)]
NUMBERS: list[Any] = [
    1.5,
    float("nan"),
    Decimal(1),
    "1",
    b"1",
    True,
    1 << 63,
    -(1 << 63) - 1,
    HUGE,
    Odd(),
    [1],
    NOW,
]
IDS: list[Any] = [*NUMBERS, 1 << 64, None, np.float64(1), np.bool_(True), {}, UUID(int=1)]
LISTS: list[Any] = [5, None, "12", b"12", Odd(), {1: 2}]
KEYS: list[Any] = [HALF, 5, None, "", b"", "k" * 1_025, 1.5, ["k"], Odd(), NOW]
BOUNDS: list[Any] = [HALF, 5, "k" * 1_025, 1.5, ["k"], Odd()]
VALUES: list[Any] = ["text", 5, None, Odd(), b"x" * ((4 << 20) + 1)]
COUNTS: list[Any] = [0, -1, 1.5, float("nan"), True, "1", 1 << 63, HUGE, Odd(), None]
SECONDS: list[Any] = [0, -1, float("nan"), "5", True, SECOND, Odd(), np.timedelta64(5, "s")]
NAMES: list[Any] = [5, "", b"x", None, HALF, "a\0b", Odd(), ["a"]]
WRONG_TEXTS: list[Any] = [HALF, Odd(), [1], np.datetime64("NaT", "s"), 1 << 64, {}]


class Places:
    """One of each in one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.database = outbox.open_database(url)
        self.table = MessageTable(self.database, "reminders").create(
            [sa.Column("message", sa.Text), sa.Column("size", sa.Integer)], MessageSettings()
        )
        texts = [sa.Column("id", sa.String(20), primary_key=True), sa.Column("message", sa.Text)]
        self.named = MessageTable(self.database, "named").create(texts)
        self.queue = outbox.Queue(self.database, "mails").create()
        self.space = outbox.KeySpace(self.database, "shop").create()
        self.inbox = outbox.Inbox(self.database).create()

    def rows(self) -> int:
        """Everything that is stored anywhere."""
        with self.database.reading() as connection:
            names = sa.inspect(connection).get_table_names()
            return sum(
                connection.scalar(sa.select(sa.func.count()).select_from(sa.table(one))) or 0 for one in names
            )


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    made = Places(f"sqlite:///{tmp_path_factory.mktemp('bad')}/a.db")
    yield made
    made.database.close()


Operation = Callable[[Places, Any, Any], Any]


def sent(option: str) -> Operation:
    return lambda p, c, v: p.table.send(c, **{"message": "x", option: v})


def many(option: str) -> Operation:
    return lambda p, c, v: p.table.send_many(c, [{"message": "x"}] * 2, **{option: v})


def row(column: str) -> Operation:
    return lambda p, c, v: p.table.send_many(c, [{"message": "x"}, {"message": "y", column: v}])


def rescheduled(option: str) -> Operation:
    return lambda p, c, v: p.table.reschedule(c, [1], **{option: v})


def relayed(option: str, where: str = "sqlite:///a.db") -> Operation:
    return lambda p, c, v: outbox.Relay(where, "reminders", None, "orders", **{option: v})


IN_TRANSACTIONS: dict[str, tuple[list[Any], Operation]] = {
    "send at": (MOMENTS, sent("deliver_at")),
    "send in": (DURATIONS, sent("delay")),
    "send in ms": (MILLISECONDS, sent("delay_ms")),
    "send time": (NANOSECONDS, sent("time_next")),
    "send priority": ([*NUMBERS, -(1 << 63) - 1], sent("priority")),
    "send id": ([one for one in IDS if one is not None], sent("id")),
    "send text": (WRONG_TEXTS, sent("message")),
    "send number": ([1 << 63, float("nan"), float("inf"), Decimal("NaN"), Odd(), HUGE], sent("size")),
    "send column": ([1], sent("epoch")),
    "many at": (MOMENTS, many("deliver_at")),
    "many in": (DURATIONS, many("delay")),
    "many in ms": (MILLISECONDS, many("delay_ms")),
    "many priority": (NUMBERS, many("priority")),
    "many rows": (
        [5, None, "ab", b"ab", {"message": "x"}, [5], [None], [{}, "x"], [{1: 2}], [{HALF: 1}], [{"epoch": 1}]],
        lambda p, c, v: p.table.send_many(c, v),
    ),
    "row time": (NANOSECONDS, row("time_next")),
    "row priority": (NUMBERS, row("priority")),
    "row id": ([one for one in IDS if one is not None], row("id")),
    "row text": (WRONG_TEXTS, row("message")),
    "row number": ([1 << 63, float("nan"), HUGE, Odd()], row("size")),
    "ack": ([*LISTS, *([1, one] for one in IDS)], lambda p, c, v: p.table.ack(c, v)),
    "cancel": ([*LISTS, *([1, one] for one in IDS)], lambda p, c, v: p.table.cancel(c, v)),
    "cancel texts": ([[5], [HALF], [None], [Odd()], [b"x"]], lambda p, c, v: p.named.cancel(c, v)),
    "send texts": ([5, HALF, Odd(), b"x", 1.5], lambda p, c, v: p.named.send(c, id=v, message="x")),
    "reschedule": ([*LISTS, *([1, one] for one in IDS)], lambda p, c, v: p.table.reschedule(c, v)),
    "reschedule at": (MOMENTS, rescheduled("deliver_at")),
    "reschedule in": (DURATIONS, rescheduled("delay")),
    "reschedule in ms": (MILLISECONDS, rescheduled("delay_ms")),
    "reschedule priority": (NUMBERS, rescheduled("priority")),
    "reschedule epoch": ([*NUMBERS, -1], rescheduled("epoch")),
    "put": ([HALF, 5, None, Odd(), [b"x"]], lambda p, c, v: p.queue.put(c, v)),
    "put many": ([5, None, "ab", b"ab", [b"x", HALF], [b"x", 5], {"a": 1}], lambda p, c, v: p.queue.put_many(c, v)),
    "key put": (KEYS, lambda p, c, v: p.space.put(c, v, b"x")),
    "key value": (VALUES, lambda p, c, v: p.space.put(c, "k", v)),
    "key get": (KEYS, lambda p, c, v: p.space.get(c, v)),
    "key delete": (KEYS, lambda p, c, v: p.space.delete(c, v)),
    "increment": (NUMBERS, lambda p, c, v: p.space.increment(c, "n", v)),
    "increment key": (KEYS, lambda p, c, v: p.space.increment(c, v)),
    "delete range": (BOUNDS, lambda p, c, v: p.space.delete_range(c, v)),
    "delete range to": (BOUNDS, lambda p, c, v: p.space.delete_range(c, "a", v)),
    "scan": (BOUNDS, lambda p, c, v: p.space.scan(c, v)),
    "scan some": (COUNTS, lambda p, c, v: p.space.scan(c, limit=v)),
    "prefix": (BOUNDS, lambda p, c, v: p.space.prefix_range(v)),
    "prefixes": (["/", b"", 5, None], lambda p, c, v: p.space.prefixes_of("a/b", v)),
    "key send": (KEYS, lambda p, c, v: p.space.send(c, v, b"x")),
    "key send value": (VALUES, lambda p, c, v: p.space.send(c, "k", v)),
    "key sender": ([one for one in KEYS if one is not None], lambda p, c, v: p.space.send(c, "k", b"x", sender=v)),
    "execute": ([5, None, "put", Odd(), outbox.Put], lambda p, c, v: p.space.execute(c, v)),
    "execute put": (KEYS, lambda p, c, v: p.space.execute(c, outbox.Put(v, b"x"))),
    "execute value": (VALUES, lambda p, c, v: p.space.execute(c, outbox.Put("k", v))),
    "execute increment": (NUMBERS, lambda p, c, v: p.space.execute(c, outbox.Increment("k", v))),
    "execute account": (NUMBERS, lambda p, c, v: p.space.execute(c, outbox.Account("k", v, 1))),
    "reap": (KEYS, lambda p, c, v: p.space.reap(c, v)),
    "reap some": (COUNTS, lambda p, c, v: p.space.reap(c, "k", v)),
    "waiting": (COUNTS, lambda p, c, v: p.space.waiting_keys(c, limit=v)),
    "failed": (COUNTS, lambda p, c, v: p.space.failed(c, v)),
    "retry": ([5, "12", *([1, one] for one in (*IDS, -1))], lambda p, c, v: p.space.retry_failed(c, v)),
    "drop": ([5, "12", *([1, one] for one in (*IDS, -1))], lambda p, c, v: p.space.drop_failed(c, v)),
    "accounting": (BOUNDS, lambda p, c, v: p.space.accounting(c, v)),
}  # fmt: skip
BY_THEMSELVES: dict[str, tuple[list[Any], Operation]] = {
    "claim": ([one for one in COUNTS if one is not None] + [100_001], lambda p, c, v: p.table.claim(v)),
    "table name": (NAMES, lambda p, c, v: MessageTable(p.database, v).create()),
    "create": ([5, "ab", [5], ["message"], Odd()], lambda p, c, v: MessageTable(p.database, "new").create(v)),
    "create as": ([5, "ab", {}, Odd()], lambda p, c, v: MessageTable(p.database, "new").create(settings=v)),
    "adopt": ([5, "ab", Odd()], lambda p, c, v: p.table.adopt(v)),
    "change": (COUNTS, lambda p, c, v: p.table.change_settings(ack_wait_ms=v)),
    "change what": ([1], lambda p, c, v: p.table.change_settings(ack_wait=v)),
    "columns": ([5, "id", [5], ["id", HALF], ["id", ""], Odd(), {}], lambda p, c, v: MessageSettings(columns=v)),
    **{
        name: (COUNTS[1:-1], lambda p, c, v, name=name: MessageSettings(**{name: v}))
        for name in ("ack_wait_ms", "min_backoff_ms", "max_backoff_ms", "purge_after_ms", "batch_size", "cache_size")
    },
    "queue name": (NAMES, lambda p, c, v: outbox.Queue(p.database, v)),
    "queue claim": ([*COUNTS, 10_001], lambda p, c, v: p.queue.claim(v)),
    "queue lease": ([*DURATIONS, 0, timedelta(0)], lambda p, c, v: p.queue.claim(lease=v)),
    "queue owner": ([5, "", HALF, "a\0b", "o" * 256, Odd()], lambda p, c, v: p.queue.claim(name=v)),
    "consume": ([*COUNTS, 10_001], lambda p, c, v: p.queue.consume(batch=v)),
    "consume lease": (DURATIONS, lambda p, c, v: p.queue.consume(lease=v)),
    "space name": (NAMES, lambda p, c, v: outbox.KeySpace(p.database, v)),
    "dispatcher batch": (COUNTS, lambda p, c, v: p.space.dispatcher(batch_size=v)),
    "dispatcher lease": ([*SECONDS, float("inf"), 1e300], lambda p, c, v: p.space.dispatcher(lease_s=v)),
    "executor poll": ([*SECONDS, float("inf")], lambda p, c, v: p.space.executor(poll_interval_s=v)),
    "split": (KEYS, lambda p, c, v: p.space.split(v)),
    "merge": (KEYS, lambda p, c, v: p.space.merge(v)),
    "inbox table": ([5, "", "a.", None, HALF, Odd()], lambda p, c, v: outbox.Inbox(p.database, v)),
    "inbox by": ([5, "name", None, ["id"], np.zeros(2)], lambda p, c, v: outbox.Inbox(p.database, by=v)),
    "inbox purge": ([5, None, NOW, -SECOND, timedelta.max, timedelta.min, Odd()], lambda p, c, v: p.inbox.purge(v)),
    "inbox message": ([5, None, Odd()], lambda p, c, v: p.inbox.mark_sync(v, c)),
    "inbox mark": ([5, None, Odd()], lambda p, c, v: anyio.run(p.inbox.mark, v, c)),
    "relay batch": ([*COUNTS, 10_001], relayed("batch")),
    "relay poll": (SECONDS, relayed("poll_s")),
    "relay timeout": (SECONDS, relayed("send_timeout_s")),
    "relay body": ([5, HALF, Odd(), ["body"]], relayed("body")),
    "relay key": ([5, HALF, Odd(), ["body"]], relayed("order_key")),
    "relay headers": ([5, "ab", [5], [HALF], Odd()], relayed("headers")),
    "relay columns": ([5, "ab", [5], [HALF], Odd()], relayed("columns")),
    "database": ([5, None, "", "nowhere", b"sqlite:///a", Odd()], lambda p, c, v: outbox.open_database(v)),
}  # fmt: skip


def refused(call: Callable[[], object], what: str) -> TickwheelError:
    found: Any = None
    try:
        found = call()
    except BaseException as error:
        found = error
    if not isinstance(found, TickwheelError):
        raise AssertionError(f"{what}: {type(found).__name__}: {found}")
    assert found.message, what
    assert found.advice, what
    return found


@pytest.mark.parametrize("name", IN_TRANSACTIONS)
def test_in_a_transaction_it_is_refused_and_nothing_of_it_stays(places: Places, name: str) -> None:
    wrong, call = IN_TRANSACTIONS[name]
    before = places.rows()
    for value in wrong:
        with places.database.begin() as connection:  # and the caller goes on, and commits
            refused(lambda: call(places, connection, value), f"{name} of a {type(value).__name__}")  # noqa: B023
    assert places.rows() == before


@pytest.mark.parametrize("name", BY_THEMSELVES)
def test_where_there_is_no_transaction_it_is_refused_as_well(places: Places, name: str) -> None:
    wrong, call = BY_THEMSELVES[name]
    before = places.rows()
    with places.database.engine.connect() as connection:
        for value in wrong:
            refused(lambda: call(places, connection, value), f"{name} of a {type(value).__name__}")  # noqa: B023
    assert places.rows() == before


def test_deliveries_are_given_back_and_kept_for_times_only(places: Places) -> None:
    table, queue = (
        MessageTable(places.database, "given").create(),
        outbox.Queue(places.database, "given_q").create(),
    )
    with places.database.begin() as connection:
        table.send(connection, message="x")
        queue.put(connection, "x")
    for batch in (table.claim(), queue.claim()):
        for holder in (batch, batch[0]):
            for value in DURATIONS:
                refused(lambda: holder.nack(value), "nack")  # type: ignore[union-attr] # noqa: B023
                if hasattr(holder, "extend"):
                    refused(lambda: holder.extend(value), "extend")  # type: ignore[union-attr] # noqa: B023
            for value in MILLISECONDS:
                refused(lambda: holder.nack(delay_ms=value), "nack")  # type: ignore[union-attr] # noqa: B023
        batch.ack()  # it is held still

    async def streams() -> None:
        async with table.hub() as hub:
            for size in (*COUNTS[:-1], 100_001):
                with pytest.raises(BadArgument):
                    async with hub.subscribe(size):
                        pass

    anyio.run(streams, backend="trio")


def test_what_is_as_good_as_an_int_is_one(places: Places) -> None:
    table = MessageTable(places.database, "numpy").create([sa.Column("size", sa.Integer)])
    with places.database.begin() as connection:
        ids = [table.send(connection, size=np.int64(5), priority=np.uint8(7)) for _ in range(3)]
        rows = [
            {"size": np.int32(5), "time_next": np.int64(10**18 + 7), "priority": None},
            {"id": None, "size": True},
        ]
        assert table.send_many(connection, rows) == 2
        assert table.ack(connection, np.array(ids[:1])) == 1
        assert table.cancel(connection, {np.int64(ids[1])}) == 1
        assert table.reschedule(connection, array("q", ids[2:]), priority=np.int16(3), epoch=np.int64(1)) == 1
        kinds = sa.select(sa.func.typeof(table.table.c.size)).distinct()
        assert connection.scalars(kinds).all() == ["integer"]
        assert table.send(connection, id=None, size=1) > max(ids)


def test_of_many_rows_none_stays_when_the_driver_refuses_one(places: Places) -> None:
    table = MessageTable(places.database, "halves").create([sa.Column("message", sa.Text)])
    rows = [{"message": "x"}, {"message": "y", "priority": 3}, {"message": [1]}]
    with places.database.begin() as connection:
        table.send(connection, message="before")
        for wrong in (rows, rows[::-1], [*rows[:1], {"message": 1 << 64}]):
            with pytest.raises(BadArgument, match="cannot store a value"):
                table.send_many(connection, wrong)
        table.send(connection, message="after")
    assert [one["message"] for one in table.claim()] == ["before", "after"]


@pytest.mark.parametrize(
    ("column", "value", "cls"),
    [("message", "a\0b", BadArgument), ("message", HALF, BadArgument), ("size", 1 << 31, BadArgument),
     ("size", float("nan"), BadArgument), ("time_next", 1.5, BadTime), ("priority", 1 << 15, BadArgument)],
)  # fmt: skip
def test_postgresql_is_not_asked_for_what_it_cannot_store(
    postgres: Places, column: str, value: Any, cls: type[TickwheelError]
) -> None:
    asked: list[str] = []
    with postgres.database.begin() as connection:
        event.listen(connection, "before_cursor_execute", lambda *of: asked.append(of[2]))
        for call in (
            lambda: postgres.table.send(connection, **{"message": "x", column: value}),
            lambda: postgres.table.send_many(connection, [{"message": "x"}, {"message": "x", column: value}]),
        ):
            assert isinstance(refused(call, column), cls)
        assert asked == []
        assert postgres.table.send(connection, message="the transaction goes on")


def test_what_postgresql_itself_refuses_is_typed_too(postgres: Places) -> None:
    columns = [sa.Column("at", sa.DateTime), sa.Column("name", sa.String(3)), sa.Column("data", sa.JSON)]
    table = MessageTable(postgres.database, "typed").create(columns)
    for values in (
        {"at": "soon"},
        {"name": "long text"},
        {"at": Odd()},
        {"data": {"a": Odd()}},
    ):
        with pytest.raises(BadArgument), postgres.database.begin() as connection:
            table.send(connection, **values)
        with postgres.database.begin() as connection:
            with pytest.raises(BadArgument):
                table.send_many(connection, [{"name": "a"}, values])
            table.send(connection, name="b")  # after a savepoint the transaction goes on
    assert [one["name"] for one in table.claim()] == ["b"] * 4


@pytest.fixture(scope="module")
def postgres(postgres_server: DatabaseServer) -> Iterator[Places]:
    with postgres_server.database() as url:
        made = Places(url)
        yield made
        made.database.close()


def test_a_url_of_nonsense(tmp_path: Path) -> None:
    for where in (
        f"sqlite:///{tmp_path}/no/directory/a.db",
        "mongodb://a/b",
        f"sqlite:///{HALF}.db",
        "sqlite:///a\0b",
    ):
        refused(lambda: outbox.open_database(where), where)  # noqa: B023
