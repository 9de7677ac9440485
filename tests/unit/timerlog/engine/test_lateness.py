"""How late messages count as: the engine's figures, at times that the test gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.native.driver import NOW_MS, pump
from tests.support.native.frames import send
from tests.support.stores.reader import Reader
from timerlog.store import Store
from timerlog.tables.lateness import LATENESS_MS, LatenessOf


@pytest.fixture
def topic(store: Store) -> int:
    return store.topics.open("t", NOW_MS)


def test_lateness_is_counted_from_the_time_or_from_the_sending(store: Store, topic: int) -> None:
    """Who sends with a time in the past has no late message."""
    store.produce.ingest(send(topic, [b"x"] * 3, times_ms=[NOW_MS + 100, NOW_MS - 5_000, 0]), NOW_MS)
    ids = np.array([1, 2, 3], np.uint64)
    assert store.look.lateness_ms(ids, NOW_MS + 130).tolist() == [30, 130, 130]
    assert store.look.lateness_ms(ids, NOW_MS).tolist() == [0, 0, 0], "before its time nothing is late"
    assert store.look.lateness_ms(ids[:0], NOW_MS).tolist() == []


def test_only_what_was_moved_is_named(store: Store, topic: int) -> None:
    store.produce.ingest(send(topic, [b"x"] * 2), NOW_MS)
    store.sync()
    batch = store.enqueue_get.take(10)
    assert batch is not None
    due = store.enqueue_put.link(batch, NOW_MS)
    assert due is not None
    ready = store.dequeue_get_message.look_up(due, NOW_MS)
    assert sorted(store.dequeue_put_message.move(ready, NOW_MS).tolist()) == [1, 2]
    assert store.dequeue_put_message.move(ready, NOW_MS).tolist() == []


def test_first_deliveries_and_repeated_ones(store: Store, topic: int) -> None:
    """Of two groups each has its own first delivery."""
    store.produce.ingest(send(topic, [b"x"] * 5), NOW_MS)
    pump(store, NOW_MS)
    one, other = Reader(store, topic), Reader(store, topic, "other")
    one.fetch(3)
    assert store.deliver.first_lateness_ms.count == 3
    other.fetch(5)
    assert store.deliver.first_lateness_ms.count == 8
    assert sum(store.groups.redelivered.values()) == 0
    store.settle.release_holder(one.holder, NOW_MS)
    pump(store, NOW_MS + 10_000_000)
    assert [epoch for _, epoch in one.fetch(5)].count(2) == 3
    assert store.groups.redelivered[one.group] == 3
    assert store.deliver.first_lateness_ms.count == 10


def test_the_oldest_that_is_due(store: Store, topic: int) -> None:
    store.produce.ingest(send(topic, [b"x"] * 2, times_ms=[NOW_MS + 700, NOW_MS + 900]), NOW_MS)
    pump(store, NOW_MS)
    assert store.wheel.oldest_due_ms(NOW_MS + 699) is None
    assert store.wheel.oldest_due_ms(NOW_MS + 5_000) == NOW_MS + 700


def test_each_group_has_its_own_and_the_whole_keeps_what_was_deleted(store: Store, topic: int) -> None:
    store.produce.ingest(send(topic, [b"x"] * 5), NOW_MS)
    pump(store, NOW_MS)
    one, other = Reader(store, topic), Reader(store, topic, "other")
    one.fetch(3)
    other.fetch(5)
    late = store.deliver.first_lateness_ms
    assert (sum(late.of([one.group])), sum(late.of([other.group])), late.count) == (3, 5, 8)
    assert sum(late.of([one.group, other.group])) == 8
    assert late.of([other.group + 1]) == []


def test_each_topic_has_its_own(store: Store, topic: int) -> None:
    second = store.topics.open("second", NOW_MS)
    for of, count in ((topic, 3), (second, 2), (topic, 4)):
        store.produce.ingest(send(of, [b"x"] * count), NOW_MS)
    late = LatenessOf(store.tables.topics)
    store.look.count_lateness(late, np.arange(1, 10, dtype=np.uint64), NOW_MS + 4)
    store.look.count_lateness(late, np.zeros(0, np.uint64), NOW_MS + 4)
    store.look.count_lateness(late, np.array([4], np.uint64), NOW_MS + 90)
    place = LATENESS_MS.index(5)
    assert [late.of([one])[place] for one in (topic, second)] == [7, 2]
    assert (late.of([second])[LATENESS_MS.index(100)], late.count) == (1, 10)
    assert late.sum == 9 * 4 + 90


def test_what_is_gone_is_forgotten_but_in_the_whole(store: Store, topic: int) -> None:
    store.produce.ingest(send(topic, [b"x"]), NOW_MS)
    alive = {5}
    late = LatenessOf(alive)
    for one in range(1_000):
        late.take_of(one, store.tables.native, 0, np.array([1], np.uint64), None, NOW_MS)
    assert late.count == 1_000
    assert sum(late.of([5])) == 1
    assert sum(late.of(range(1_000))) < 200
