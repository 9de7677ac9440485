"""Counters, pictures and the state hash."""

from __future__ import annotations

import pytest

from tests.support.native.driver import MIB, NOW_MS, pump
from tests.support.native.frames import send
from timerlog.store import Store


@pytest.fixture
def topic(store: Store) -> int:
    number = store.topics.open("t", NOW_MS)
    times = [NOW_MS, NOW_MS, NOW_MS + 50, NOW_MS + 50]
    store.produce.ingest(send(number, [b"x"] * 4, keys=[b"a", b"b", b"c", b"d"], times_ms=times), NOW_MS)
    return number


def test_counts(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    store.change.cancel([2, 3], NOW_MS)
    stats = store.look.stats(NOW_MS)
    assert {name: stats[name] for name in ("messages", "scheduled", "ready", "cancelled")} == {
        "messages": 4,
        "scheduled": 1,
        "ready": 1,
        "cancelled": 2,
    }
    store.groups.open(topic, "g", NOW_MS)
    (entry,) = store.look.topics()
    assert (entry["name"], entry["scheduled"], entry["ready"]) == ("t", 1, 1)
    assert entry["groups"][0]["backlog"] == 1


def test_the_picture_counts_what_is_due_when(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 3, times_ms=[NOW_MS + 90_000_000] * 3), NOW_MS)
    pump(store, NOW_MS)
    picture = store.look.wheel_picture(NOW_MS).whole()
    counts = {part["label"]: part["timers"] for part in picture["forecast"]}
    assert counts["second"] == 2
    assert counts["later"] == 5
    assert sum(level["timers"] for level in picture["levels"]) == 5


def test_the_state_hash_sees_each_change(store: Store, topic: int) -> None:
    seen = {store.look.state_hash()}
    pump(store, NOW_MS)
    seen.add(store.look.state_hash())
    store.change.cancel([3], NOW_MS)
    seen.add(store.look.state_hash())
    store.change.reschedule([4], NOW_MS + 7, NOW_MS)
    seen.add(store.look.state_hash())
    group = store.groups.open(topic, "g", NOW_MS)
    seen.add(store.look.state_hash())
    store.deliver.fetch(group, store.holders.acquire(group), 1, 1, MIB, NOW_MS)
    seen.add(store.look.state_hash())
    assert len(seen) == 6
