"""Topics: made, changed and deleted as a whole or not at all, and nothing left over of those that are gone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.driver import NOW_MS, SMALL, pump
from tests.support.frames import send
from tests.support.full_disk import full_disk
from tests.support.reader import Reader
from tickwheel_native import ffi
from timerlog.commitlog.records import Outbound
from timerlog.errors import (
    BadName,
    BadTopicSettings,
    DiskFull,
    StoreError,
    TooManyTopics,
    TopicExists,
    TransactionTooLarge,
    UnknownGroup,
    UnknownTopic,
)
from timerlog.layout import RecordType
from timerlog.names import check_name, shard_name
from timerlog.store import Store

HOUR_MS = 3_600_000


@pytest.fixture
def topic(store: Store) -> int:
    """Four messages that are due."""
    number = store.open_topic("t", NOW_MS)
    store.ingest(send(number, [b"x"] * 4), NOW_MS)
    pump(store, NOW_MS)
    return number


# -- making ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "x" * 129, "ä"])
def test_bad_names(store: Store, name: str) -> None:
    for act in (check_name, lambda name: store.open_topic(name, NOW_MS)):
        with pytest.raises(BadName):
            act(name)


def test_open_makes_it_once(store: Store) -> None:
    with pytest.raises(UnknownTopic):
        store.open_topic("t", NOW_MS, create=False)
    number = store.open_topic("t", NOW_MS)
    assert store.open_topic("t", NOW_MS + 5, create=False) == number
    assert store.topic("t").created_ms == NOW_MS
    with pytest.raises(TopicExists):
        store.create_topic("t", {"rate": 5}, 0, NOW_MS)
    with pytest.raises(UnknownTopic):
        store.topic("other")


def test_shards_are_made_with_their_topic(tmp_path: Path) -> None:
    store = Store.open(tmp_path, msgspec.structs.replace(SMALL, max_topics=4), NOW_MS)
    for shards in (-1, 1, 257):
        with pytest.raises(BadTopicSettings):
            store.create_topic("t", {}, shards, NOW_MS)
    with pytest.raises(TooManyTopics):
        store.create_topic("t", {}, 4, NOW_MS)
    number = store.create_topic("t", {"priority": 3}, 3, NOW_MS).topic_id
    assert store.shards_of(number) == [number + 1, number + 2, number + 3]
    assert sorted(store.tables.topic_ids) == ["t", "t/-55", "t/55-aa", "t/aa-"]
    assert store.topic("t/55-aa").settings.priority == 3
    assert [shard_name(i, 2) for i in range(2)] == ["-80", "80-"]
    store.close(clean=False)


def test_without_room_no_shard_is_made(store: Store) -> None:
    with full_disk(store), pytest.raises(DiskFull):
        store.create_topic("t", {}, 16, NOW_MS)
    assert store.tables.topic_ids == {}
    assert store.create_topic("t", {}, 2, NOW_MS).topic_id == 1


def test_records_that_never_fit_together_are_refused(store: Store, topic: int) -> None:
    payload = bytes(store.log.largest_record_bytes // 2)
    before, position = store.state_hash(), store.appended_position
    with pytest.raises(TransactionTooLarge):
        store._write_together([(RecordType.DOCUMENT, 0, payload)] * 2)
    assert (store.state_hash(), store.appended_position) == (before, position)


def test_a_group_of_records_without_room_is_taken_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.log.flush()
    position = store.appended_position
    monkeypatch.setattr("timerlog.engine.state.group_room_bytes", lambda records: 40)
    monkeypatch.setattr(store.tables.native, "segment_end", position + 60, raising=True)
    with pytest.raises(StoreError, match="more room"):
        store.create_topic("t", {}, 16, NOW_MS)
    assert store.appended_position == position
    assert store.tables.topic_ids == {}


# -- changing -------------------------------------------------------------------------------------------------


def test_some_settings_are_changed_and_the_others_stay(store: Store) -> None:
    store.create_topic("t", {"ack_wait_ms": 5_000, "rate": 3}, 0, NOW_MS)
    changed = store.set_topic("t", {"cache_size": 7}, ["rate"], True, NOW_MS)
    assert (changed.settings.ack_wait_ms, changed.settings.cache_size, changed.settings.rate) == (
        5_000,
        7,
        None,
    )
    assert changed.paused
    assert store.set_topic("t", {}, [], None, NOW_MS).paused
    for values, unset in (({"cache_size": 0}, []), ({"no_such": 1}, []), ({}, ["no_such"])):
        with pytest.raises(BadTopicSettings):
            store.set_topic("t", values, unset, None, NOW_MS)
    assert store.topic("t") == changed
    with pytest.raises(UnknownTopic):
        store.set_topic("other", {}, [], None, NOW_MS)


@pytest.mark.parametrize("shards", [0, 3])
@pytest.mark.parametrize(("before_ms", "after_ms"), [(0, HOUR_MS), (HOUR_MS, 0)])
def test_a_spread_that_is_not_written_does_not_hold(
    store: Store, shards: int, before_ms: int, after_ms: int
) -> None:
    topic = store.create_topic("t", {"spread_ms": before_ms}, shards, NOW_MS).topic_id
    for index in range(30):
        data = send(topic, [b"x"], keys=[b"%d" % index], times_ms=[NOW_MS + 10_000])
        store.ingest(data, NOW_MS)
    pump(store, NOW_MS)
    settings = store.topic("t").settings
    with full_disk(store), pytest.raises(DiskFull):
        store.set_topic("t", {"spread_ms": after_ms}, [], None, NOW_MS)
    assert store.topic("t").settings == settings
    assert [store.tables.native.topics[part].spread_ms for part in store.shards_of(topic)] == [
        before_ms
    ] * max(1, shards)
    pump(store, NOW_MS + 10_000)
    first = store.describe_topic("t")["ready"]
    assert first == 30 if before_ms == 0 else first < 5
    pump(store, NOW_MS + 10_000 + HOUR_MS)
    assert store.describe_topic("t")["ready"] == 30


def test_another_spread_holds_for_what_waits(store: Store) -> None:
    topic = store.open_topic("t", NOW_MS)
    store.ingest(send(topic, [b"x"] * 30, times_ms=[NOW_MS + 10_000] * 30), NOW_MS)
    pump(store, NOW_MS)
    store.set_topic("t", {"spread_ms": HOUR_MS}, [], None, NOW_MS)
    pump(store, NOW_MS + 10_000)
    assert store.describe_topic("t")["ready"] < 5
    store.set_topic("t", {}, ["spread_ms"], None, NOW_MS + 10_000)
    pump(store, NOW_MS + 10_001)
    assert store.describe_topic("t")["ready"] == 30


# -- deleting -------------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(1)
    reader.nack((1, 1), delay_ms=50, error="why")
    assert store.delete_topic("t").deleted
    assert len(store.tables.failures) == 0
    assert store.cancel([1, 2], NOW_MS) == ["not_found", "not_found"]
    assert pump(store, NOW_MS + 60_000) >= 1, "its timers go off, and nothing happens"
    with pytest.raises(UnknownTopic):
        store.delete_topic("t")
    assert store.open_topic("t", NOW_MS) == topic + 1, "its number is not used again"
    assert store.describe_topic("t")["messages"] == 0


def test_a_shard_cannot_be_deleted_alone(store: Store) -> None:
    store.create_topic("t", {}, 2, NOW_MS)
    with pytest.raises(BadTopicSettings, match="shard"):
        store.delete_topic("t/-80")
    with full_disk(store), pytest.raises(DiskFull):
        store.delete_topic("t")
    assert len(store.tables.topic_ids) == 3
    store.delete_topic("t")
    assert store.tables.topic_ids == {}


def test_deleting_gives_back_the_credit_of_who_held_its_messages(store: Store, topic: int) -> None:
    other = store.open_topic("other", NOW_MS)
    store.ingest(send(other, [b"x"] * 2), NOW_MS)
    pump(store, NOW_MS)
    staying, leaving = Reader(store, other), Reader(store, topic)
    staying.fetch()
    leaving.fetch(3)
    leaving.ack((1, 1))
    pump(store, NOW_MS + 1_000)  # the leases have ended: nothing of them is held any more
    leaving.fetch(2, NOW_MS + 1_000)
    assert store.outstanding(leaving.holder) == 2
    store.drop_holder(leaving.holder)
    store.delete_topic("t")
    assert (store.outstanding(leaving.holder), store.outstanding(staying.holder)) == (0, 0)
    store._free_holders.clear()
    assert store.acquire_holder(staying.group) == leaving.holder, "its number is free again"


def test_deleting_does_not_touch_what_others_hold(store: Store, topic: int) -> None:
    other = store.open_topic("other", NOW_MS)
    store.ingest(send(other, [b"x"] * 2), NOW_MS)
    pump(store, NOW_MS)
    staying, leaving = Reader(store, other), Reader(store, topic)
    staying.fetch()
    leaving.fetch(3)
    store.delete_topic("t")
    assert (store.outstanding(leaving.holder), store.outstanding(staying.holder)) == (0, 2)
    assert staying.ack((5, 1), (6, 1)) == (2, [])


def test_a_group_of_a_deleted_topic_gives_nothing(store: Store) -> None:
    topic = store.open_topic("t", NOW_MS)
    messages = [Outbound(b"%d" % n, order=b"%d" % (n % 5)) for n in range(20)]
    store.commit_internal(topic, messages, [], NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    assert len(reader.fetch()) == 5
    pump(store, NOW_MS + 1_000)  # five in the chain of redeliveries, the others parked behind them
    store.delete_topic("t")
    for act in (
        reader.fetch,
        lambda: store.limits(reader.group),
        lambda: reader.ack((1, 1)),
        lambda: reader.nack((1, 1)),
    ):
        with pytest.raises(UnknownGroup):
            act()
    assert store._select(reader.group, 10, 1_000, NOW_MS) == (0, 24), "C finds nothing, and touches nothing"
    struct_ = store.tables.native.groups[reader.group]
    assert (struct_.orders, struct_.orders_capacity, struct_.orders_count) == (ffi.NULL, 0, 0)
    assert store.tables.native.topics[topic].lanes[0] == 0
    assert store.release_holder(reader.holder, NOW_MS) == 0


@pytest.mark.parametrize("clean", [True, False])
def test_deleting_is_the_same_after_a_restart(tmp_path: Path, clean: bool) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.create_topic("t", {}, 2, NOW_MS).topic_id
    keep = store.open_topic("keep", NOW_MS)
    for number in (topic, keep):
        store.ingest(send(number, [b"x"] * 4, keys=[b"%d" % n for n in range(4)]), NOW_MS)
    pump(store, NOW_MS)
    readers = [Reader(store, number) for number in (topic, keep)]
    for part in store.parts_of(readers[0].group):
        readers[0].fetch(part=part)
    readers[1].fetch()
    store.delete_topic("t")
    before = store.state_hash()
    store.close(clean=clean)
    store = Store.open(tmp_path, SMALL, NOW_MS)
    assert store.state_hash() == before
    assert not np.any(store.tables._outstanding[1:]), "after a start nobody holds anything"
    assert [entry["name"] for entry in store.topics()] == ["keep"]
    store.close(clean=False)
