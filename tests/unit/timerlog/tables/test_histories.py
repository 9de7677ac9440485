"""Histories of failures and of transactions: bounded, and the same after a replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.reader import Reader
from timerlog.store import Store
from timerlog.tables.histories import (
    ATTEMPTS_KEPT,
    CAPACITY_CHARS,
    MOST_TRANSACTIONS,
    Failure,
    Failures,
    RecentTransactions,
)


def failure(epoch: int, error: str = "e") -> Failure:
    return Failure(epoch, NOW_MS + epoch, error)


def test_the_last_ones_of_each_message() -> None:
    failures = Failures()
    for epoch in range(1, ATTEMPTS_KEPT + 4):
        failures.add(1, 7, failure(epoch))
    failures.add(2, 7, failure(1))
    assert failures.of(1, 7) == [failure(epoch) for epoch in range(4, ATTEMPTS_KEPT + 4)]
    assert failures.of(2, 7) == [failure(1)]
    assert failures.of(1, 8) == []
    assert len(failures) == 2


def test_who_is_done_is_forgotten() -> None:
    failures = Failures()
    for seq in range(10):
        failures.add(1, seq, failure(1))
        failures.add(2, seq, failure(1))
    failures.done(1, 0)
    failures.done(1, 99)
    failures.done_range(1, 1, 3)
    failures.done_range(1, 5, 1 << 40)
    assert [seq for seq in range(10) if failures.of(1, seq)] == [4]
    assert len(failures) == 11
    failures.forget_group(2)
    assert [entry[:2] for entry in failures.dump()] == [(1, 4)]


def test_beyond_the_bound_the_oldest_are_forgotten() -> None:
    failures, error = Failures(), "x" * 460  # 500 with what each entry costs
    fit = CAPACITY_CHARS // 500
    for seq in range(fit):
        failures.add(1, seq, failure(1, error))
    assert len(failures) == fit
    failures.add(1, fit, failure(1, error))
    assert (failures.of(1, 0), len(failures)) == ([], fit)
    failures.done_range(1, 1, 10)
    for seq in range(fit + 1, fit + 11):
        failures.add(1, seq, failure(1, error))
    assert len(failures) == fit, "what was forgotten makes room"


def test_what_was_dumped_can_be_loaded() -> None:
    failures, loaded = Failures(), Failures()
    error = "x" * 460
    for seq in range(CAPACITY_CHARS // 500):
        failures.add(1, seq, failure(1, error))
    loaded.load(failures.dump())
    assert loaded.dump() == failures.dump()
    for both in (failures, loaded):
        both.add(1, 0, failure(2, error))
    assert loaded.dump() == failures.dump(), "the bound is known, too"
    failures.add(1, 5, failure(2))
    assert loaded.of(1, 5) == [failure(1, error)], "it shares nothing with what was dumped"


@pytest.mark.parametrize("with_tables", [True, False])
def test_they_do_not_depend_on_where_attempts_are_counted_from_later(
    tmp_path: Path, with_tables: bool
) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    for epoch in (1, 2):
        assert reader.fetch() == [(1, epoch)]
        reader.nack((1, epoch), error=f"epoch {epoch}")
    reader.fetch()
    store.change.redeliver([1], None, None, NOW_MS)
    reader.fetch()
    reader.nack((1, 4), error="epoch 4")
    before = store.tables.failures.dump()
    assert [one.epoch for one in before[0][2]] == [1, 2, 4]
    store.close(clean=False)
    if not with_tables:
        (tmp_path / "checkpoint").unlink()
    store = Store.open(tmp_path, SMALL, NOW_MS)
    assert store.recovery.from_checkpoint == with_tables
    assert store.recovery.replayed_records > 0
    assert store.tables.failures.dump() == before
    store.close(clean=False)


def number(n: int) -> bytes:
    return n.to_bytes(16, "big")


def test_what_a_transaction_stored_is_known_by_its_id() -> None:
    recent = RecentTransactions()
    assert recent.get(number(1)) is None
    recent.add(number(1), [(5, 2), (7, 1)])
    recent.add(number(2), [])
    assert recent.get(number(1)) == [(5, 2), (7, 1)]
    assert recent.get(number(2)) == [], "one that sent nothing is known as well"


def test_the_oldest_transactions_are_forgotten() -> None:
    recent = RecentTransactions()
    for n in range(MOST_TRANSACTIONS + 1):
        recent.add(number(n), [(n, 1)])
    assert recent.get(number(0)) is None
    assert recent.get(number(1)) == [(1, 1)]
    assert len(recent.dump()) == MOST_TRANSACTIONS


def test_dumped_transactions_can_be_loaded() -> None:
    recent, loaded = RecentTransactions(), RecentTransactions()
    for n in range(3):
        recent.add(number(n), [(n, 1)])
    loaded.load(recent.dump())
    assert loaded.dump() == recent.dump()
    loaded.add(number(3), [])
    assert recent.get(number(3)) is None
