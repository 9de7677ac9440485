"""The last transactions, so that none is done twice."""

from __future__ import annotations

from timerlog.tables.histories import MOST_TRANSACTIONS as MOST_TRANSACTIONS
from timerlog.tables.histories import RecentTransactions


def number(n: int) -> bytes:
    return n.to_bytes(16, "big")


def test_what_a_transaction_stored_is_known_by_its_id() -> None:
    recent = RecentTransactions()
    assert recent.get(number(1)) is None
    recent.add(number(1), [(5, 2), (7, 1)])
    recent.add(number(2), [])
    assert recent.get(number(1)) == [(5, 2), (7, 1)]
    assert recent.get(number(2)) == [], "one that sent nothing is known as well"


def test_the_oldest_are_forgotten() -> None:
    recent = RecentTransactions()
    for n in range(MOST_TRANSACTIONS + 1):
        recent.add(number(n), [(n, 1)])
    assert recent.get(number(0)) is None
    assert recent.get(number(1)) == [(1, 1)]
    assert len(recent.dump()) == MOST_TRANSACTIONS


def test_what_was_dumped_can_be_loaded() -> None:
    recent, loaded = RecentTransactions(), RecentTransactions()
    for n in range(3):
        recent.add(number(n), [(n, 1)])
    loaded.load(recent.dump())
    assert loaded.dump() == recent.dump()
    loaded.add(number(3), [])
    assert recent.get(number(3)) is None
