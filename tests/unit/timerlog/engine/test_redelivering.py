"""Messages that are called for again, and the order and the chains that they stand in, also over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.reader import Reader
from timerlog.commitlog.records import Outbound
from timerlog.store import Store

LAST_MS = NOW_MS + 3_600_000


@pytest.fixture
def topic(store: Store) -> int:
    """Five messages that are due; each may be tried twice."""
    number = store.topics.create("t", {"max_attempts": 2}, 0, NOW_MS).topic_id
    store.produce.ingest(send(number, [b"body %d" % index for index in range(5)]), NOW_MS)
    pump(store, NOW_MS)
    return number


def test_what_is_open_and_called_for_later_keeps_its_place_over_a_restart(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.commit.write_internal(topic, [Outbound(b"1", order=b"k"), Outbound(b"2", order=b"k")], [], NOW_MS)
    pump(store, NOW_MS)
    assert Reader(store, topic).fetch() == [(1, 1)]
    assert store.change.redeliver([1], None, NOW_MS + 500, NOW_MS) == ["redelivered"]
    assert Reader(store, topic).fetch() == []
    store.close(clean=False)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    reader = Reader(store, topic)
    assert reader.fetch() == [], "the first one is not done"
    pump(store, NOW_MS + 500)
    assert reader.fetch(now_ms=NOW_MS + 500) == [(1, 2)]
    store.close()


@pytest.mark.parametrize("keep_attempts", [False, True])
def test_what_was_done_and_is_called_for_later_holds_nobody_up(tmp_path: Path, keep_attempts: bool) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.commit.write_internal(topic, [Outbound(b"1", order=b"k")], [], NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch()
    assert reader.ack((1, 1)) == (1, [])
    later_ms, reset = NOW_MS + 86_400_000, not keep_attempts
    assert store.change.redeliver([1], None, later_ms, NOW_MS, acked=True, reset_attempts=reset) == [
        "redelivered"
    ]
    store.commit.write_internal(topic, [Outbound(b"2", order=b"k")], [], NOW_MS)
    store.close(clean=False)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    assert reader.fetch() == [(2, 1)]
    assert reader.ack((2, 1)) == (1, [])
    pump(store, later_ms)
    assert reader.fetch(now_ms=later_ms) == [(1, 2)]
    store.close()


def test_what_was_put_off_can_be_called_for_at_once(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(1)
    pump(store, NOW_MS + 1_000)
    assert reader.ack((1, 1)) == (1, []), "late, and it stands in the chain of redeliveries"
    assert store.change.redeliver([1], None, LAST_MS, NOW_MS, acked=True) == ["redelivered"]
    assert store.change.redeliver([1], None, None, NOW_MS) == ["redelivered"], "nothing would bring it before"
    assert (1, 2) in reader.fetch(now_ms=NOW_MS + 1_000)
