"""How late messages count as: the engine's figures, at times that the test gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.driver import NOW_MS, pump
from tests.support.frames import send
from tests.support.reader import Reader
from timerlog.store import Store


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
