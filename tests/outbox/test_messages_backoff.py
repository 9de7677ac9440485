"""When a message comes again, as its row says it: on each database, after the first delivery and the thousandth."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.support.outbox.messages import execute, message_table, rows, send
from tickwheel.outbox import LeaseLost, MessageTable

SECOND_NS = 1_000_000_000
COPIES = 40
# The document's settings, and what its page says of them: number of a delivery, and shortest and longest wait.
BOUNDED = [(1, 30, 30), (2, 40, 80), (3, 80, 160), (7, 1_280, 2_560), (8, 2_400, 3_600)]
BOUNDED += [(number, 2_400, 3_600) for number in (29, 30, 54, 55, 63, 64, 65, 200, 1_000_000)]
# Without an upper bound: each is twice the one before, as long as 64 bits hold it; that is 73 years.
FOREVER_S = (1 << 61) / SECOND_NS
UNBOUNDED = [(12, 30 * 2**11 * 2 / 3, 30 * 2**11 * 4 / 3)]
UNBOUNDED += [(number, FOREVER_S / 2, FOREVER_S) for number in (29, 30, 54, 55, 63, 64, 65, 200, 1_000_000)]


def clock_ns(table: MessageTable) -> int:
    """The database's clock itself: ``now_ns`` compares it with ours, and is wrong by a part of a round trip."""
    now = table.database.now_sql()
    if isinstance(now, int):
        return now
    with table.database.reading() as connection:
        return int(connection.execute(sa.select(now)).scalar_one())


def waits_s(table: MessageTable, number: int) -> tuple[list[float], float]:
    """How long delivery ``number`` of many messages may take; and how exact that is."""
    execute(table, "update reminders set epoch = :epoch, time_next = 0", epoch=number - 1)
    before = clock_ns(table)
    assert len(table.claim(COPIES)) == COPIES
    exact_ns = clock_ns(table) - before
    return [(one - before) / SECOND_NS for (one,) in rows(table, "time_next")], exact_ns / SECOND_NS


@pytest.mark.promise("V2", "V4", "V59", "V60", "V61", "V62", "V63", "V82", "V95", "V106")
@pytest.mark.parametrize(("max_backoff_s", "expected"), [(3_600, BOUNDED), (0, UNBOUNDED)])
def test_waits_double_between_their_bounds_and_differ(
    database_url: str, max_backoff_s: int, expected: list[tuple[int, float, float]]
) -> None:
    settings = {"ack_wait_ms": 30_000, "min_backoff_ms": 30_000, "max_backoff_ms": max_backoff_s * 1_000}
    with message_table(database_url, **settings) as table:
        send(table, *map(str, range(COPIES)))
        for number, shortest, longest in expected:
            waits, exact_s = waits_s(table, number)
            assert shortest - exact_s <= min(waits) <= max(waits) <= longest + exact_s, number
            if number > 1:  # each message has its own, also at the bounds
                assert len(set(waits)) > COPIES / 2, number
                assert max(waits) - min(waits) > (longest - shortest) / 3, number


@pytest.mark.promise("V71")
def test_a_lower_epoch_shortens_the_wait_and_effects_still_count_once(database_url: str) -> None:
    """The new deliveries have numbers that old ones had; only one of two of the same number can ack."""
    effects = sa.Table("effects", sa.MetaData(), sa.Column("by", sa.String(10)))
    with message_table(database_url, ack_wait_ms=30_000, max_backoff_ms=3_600_000) as table:
        effects.create(table.database.engine)
        (number,) = send(table, "a")
        (old,) = table.claim()
        execute(table, "update reminders set epoch = 20, time_next = 0")
        assert len(table.claim()) == 1
        assert rows(table, "time_next")[0][0] > table.database.now_ns() + 2_300 * SECOND_NS
        with table.database.begin() as connection:
            assert table.reschedule(connection, [number], epoch=0) == 1
        (new,) = table.claim()
        assert (old.epoch, new.epoch) == (1, 1)
        assert rows(table, "time_next")[0][0] < table.database.now_ns() + 31 * SECOND_NS
        with table.database.begin() as connection:
            connection.execute(sa.insert(effects).values(by="old"))
            old.ack_in(connection)
        with pytest.raises(LeaseLost), table.database.begin() as connection:  # noqa: PT012
            connection.execute(sa.insert(effects).values(by="new"))
            new.ack_in(connection)
        with table.database.reading() as connection:
            assert connection.execute(sa.select(effects.c.by)).scalars().all() == ["old"]
