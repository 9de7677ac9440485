"""Topics: made, changed and deleted as a whole or not at all, and nothing left over of those that are gone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.full_disk import full_disk
from tests.support.stores.reader import Reader
from tickwheel_native import ffi
from timerlog.commitlog.records import Outbound
from timerlog.engine.topics import Maker
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
from timerlog.recovery import checkpoint
from timerlog.store import Store

HOUR_MS = 3_600_000


@pytest.fixture
def topic(store: Store) -> int:
    """Four messages that are due."""
    number = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(number, [b"x"] * 4), NOW_MS)
    pump(store, NOW_MS)
    return number


# -- making ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "x" * 129, "ä"])
def test_bad_names(store: Store, name: str) -> None:
    for act in (check_name, lambda name: store.topics.open(name, NOW_MS)):
        with pytest.raises(BadName):
            act(name)


def test_open_makes_it_once(store: Store) -> None:
    with pytest.raises(UnknownTopic):
        store.topics.open("t", NOW_MS, create=False)
    number = store.topics.open("t", NOW_MS)
    assert store.topics.open("t", NOW_MS + 5, create=False) == number
    assert store.topics.record("t").created_ms == NOW_MS
    with pytest.raises(TopicExists):
        store.topics.create("t", {"rate": 5}, 0, NOW_MS)
    with pytest.raises(UnknownTopic):
        store.topics.record("other")


def test_shards_are_made_with_their_topic(tmp_path: Path) -> None:
    store = Store.open(tmp_path, msgspec.structs.replace(SMALL, max_topics=4), NOW_MS)
    for shards in (-1, 1, 257):
        with pytest.raises(BadTopicSettings):
            store.topics.create("t", {}, shards, NOW_MS)
    with pytest.raises(TooManyTopics):
        store.topics.create("t", {}, 4, NOW_MS)
    number = store.topics.create("t", {"priority": 3}, 3, NOW_MS).topic_id
    assert store.topics.shards_of(number) == [number + 1, number + 2, number + 3]
    assert sorted(store.tables.topic_ids) == ["t", "t/-55", "t/55-aa", "t/aa-"]
    assert store.topics.record("t/55-aa").settings.priority == 3
    assert [shard_name(i, 2) for i in range(2)] == ["-80", "80-"]
    store.close(clean=False)


@pytest.mark.parametrize("ends", ["clean", "killed", "without a checkpoint"])
def test_what_a_token_has_made_counts_for_ever(tmp_path: Path, ends: str) -> None:
    """Also topics that were deleted."""
    store = Store.open(tmp_path, SMALL, NOW_MS)
    shop, other = Maker("shop", 4), Maker("other", 4)
    store.topics.open("a", NOW_MS, maker=shop)
    store.topics.open("a", NOW_MS, maker=other)
    store.topics.delete("a")
    store.topics.open("nobodys", NOW_MS)
    store.topics.create("b", {}, 2, NOW_MS, maker=shop)
    if ends == "without a checkpoint":
        store.log.roll()
        store.topics.open("c", NOW_MS)
    store.sync()
    state = store.look.state_hash()
    store.close(clean=ends == "clean")
    if ends == "without a checkpoint":
        (tmp_path / checkpoint.NAME).unlink()
    store = Store.open(tmp_path, SMALL, NOW_MS)
    assert store.look.state_hash() == state
    assert store.tables.topics_made == {"shop": 4}
    before = store.log.appended_position
    for make in (
        lambda: store.topics.open("d", NOW_MS, maker=shop),
        lambda: store.topics.create("d", {}, 4, NOW_MS, maker=other),
    ):
        with pytest.raises(TooManyTopics, match="this token has made") as raised:
            make()
        assert "max_topics_per_token" in str(raised.value.advice)
    assert store.log.appended_position == before
    assert store.topics.open("b", NOW_MS, maker=shop) == store.topics.record("b").topic_id, "it is there"
    assert store.topics.open("d", NOW_MS, maker=other) > 0
    assert store.topics.open("e", NOW_MS) > 0
    store.close(clean=False)


def test_without_room_no_shard_is_made(store: Store) -> None:
    with full_disk(store), pytest.raises(DiskFull):
        store.topics.create("t", {}, 16, NOW_MS)
    assert store.tables.topic_ids == {}
    assert store.topics.create("t", {}, 2, NOW_MS).topic_id == 1


def test_records_that_never_fit_together_are_refused(store: Store, topic: int) -> None:
    payload = bytes(store.log.largest_record_bytes // 2)
    before, position = store.look.state_hash(), store.log.appended_position
    with pytest.raises(TransactionTooLarge):
        store.writer.write_together([(RecordType.DOCUMENT, 0, payload)] * 2)
    assert (store.look.state_hash(), store.log.appended_position) == (before, position)


def test_a_group_of_records_without_room_is_taken_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.log.flush()
    position = store.log.appended_position
    monkeypatch.setattr("timerlog.engine.state.group_room_bytes", lambda records: 40)
    monkeypatch.setattr(store.tables.native, "segment_end", position + 60, raising=True)
    with pytest.raises(StoreError, match="more room"):
        store.topics.create("t", {}, 16, NOW_MS)
    assert store.log.appended_position == position
    assert store.tables.topic_ids == {}


# -- changing -------------------------------------------------------------------------------------------------


def test_some_settings_are_changed_and_the_others_stay(store: Store) -> None:
    store.topics.create("t", {"ack_wait_ms": 5_000, "rate": 3}, 0, NOW_MS)
    changed = store.topics.set("t", {"cache_size": 7}, ["rate"], True, NOW_MS)
    assert (changed.settings.ack_wait_ms, changed.settings.cache_size, changed.settings.rate) == (
        5_000,
        7,
        None,
    )
    assert changed.paused
    assert store.topics.set("t", {}, [], None, NOW_MS).paused
    for values, unset in (({"cache_size": 0}, []), ({"no_such": 1}, []), ({}, ["no_such"])):
        with pytest.raises(BadTopicSettings):
            store.topics.set("t", values, unset, None, NOW_MS)
    assert store.topics.record("t") == changed
    with pytest.raises(UnknownTopic):
        store.topics.set("other", {}, [], None, NOW_MS)


@pytest.mark.parametrize("shards", [0, 3])
@pytest.mark.parametrize(("before_ms", "after_ms"), [(0, HOUR_MS), (HOUR_MS, 0)])
def test_a_spread_that_is_not_written_does_not_hold(
    store: Store, shards: int, before_ms: int, after_ms: int
) -> None:
    topic = store.topics.create("t", {"spread_ms": before_ms}, shards, NOW_MS).topic_id
    for index in range(30):
        data = send(topic, [b"x"], keys=[b"%d" % index], times_ms=[NOW_MS + 10_000])
        store.produce.ingest(data, NOW_MS)
    pump(store, NOW_MS)
    settings = store.topics.record("t").settings
    with full_disk(store), pytest.raises(DiskFull):
        store.topics.set("t", {"spread_ms": after_ms}, [], None, NOW_MS)
    assert store.topics.record("t").settings == settings
    assert [store.tables.native.topics[part].spread_ms for part in store.topics.shards_of(topic)] == [
        before_ms
    ] * max(1, shards)
    pump(store, NOW_MS + 10_000)
    first = store.look.describe_topic("t")["ready"]
    assert first == 30 if before_ms == 0 else first < 5
    pump(store, NOW_MS + 10_000 + HOUR_MS)
    assert store.look.describe_topic("t")["ready"] == 30


def test_another_spread_holds_for_what_waits(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"x"] * 30, times_ms=[NOW_MS + 10_000] * 30), NOW_MS)
    pump(store, NOW_MS)
    store.topics.set("t", {"spread_ms": HOUR_MS}, [], None, NOW_MS)
    pump(store, NOW_MS + 10_000)
    assert store.look.describe_topic("t")["ready"] < 5
    store.topics.set("t", {}, ["spread_ms"], None, NOW_MS + 10_000)
    pump(store, NOW_MS + 10_001)
    assert store.look.describe_topic("t")["ready"] == 30


@pytest.mark.parametrize("how", ["spread and back", "a version that comes again"])
def test_two_timers_of_a_message_that_are_alike_bring_it_once(store: Store, how: str) -> None:
    """Both are due at the same turn of the wheel; it was put into its topic twice, so that a group waited for one of
    the two until a restart."""
    topic = store.topics.open("t", NOW_MS)
    reader, due_ms = Reader(store, topic), NOW_MS + 10_000
    store.produce.ingest(send(topic, [b"x"] * 30, times_ms=[due_ms] * 30), NOW_MS)
    pump(store, NOW_MS)
    if how == "spread and back":
        store.topics.set("t", {"spread_ms": 60_000}, [], None, NOW_MS)
        store.topics.set("t", {}, ["spread_ms"], None, NOW_MS)
    else:
        store.tables.rows["version"][7] = 65_535  # as after so many reschedules
        assert store.change.reschedule([7], due_ms, NOW_MS) == ["rescheduled"]
    pump(store, due_ms + 60_000)
    native = store.tables.native
    assert (native.topics[topic].count, native.groups[reader.group].pending) == (30, 30)
    receipts = reader.fetch(60, now_ms=due_ms + 60_001)
    assert [number for number, _ in receipts] == list(range(1, 31))
    reader.ack(*receipts, now_ms=due_ms + 60_002)
    assert store.groups.backlog_of(reader.group) == 0


# -- deleting -------------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(1)
    reader.nack((1, 1), delay_ms=50, error="why")
    assert store.topics.delete("t").deleted
    assert len(store.tables.failures) == 0
    assert store.change.cancel([1, 2], NOW_MS) == ["not_found", "not_found"]
    assert pump(store, NOW_MS + 60_000) >= 1, "its timers go off, and nothing happens"
    with pytest.raises(UnknownTopic):
        store.topics.delete("t")
    assert store.topics.open("t", NOW_MS) == topic + 1, "its number is not used again"
    assert store.look.describe_topic("t")["messages"] == 0


def test_a_shard_cannot_be_deleted_alone(store: Store) -> None:
    store.topics.create("t", {}, 2, NOW_MS)
    with pytest.raises(BadTopicSettings, match="shard"):
        store.topics.delete("t/-80")
    with full_disk(store), pytest.raises(DiskFull):
        store.topics.delete("t")
    assert len(store.tables.topic_ids) == 3
    store.topics.delete("t")
    assert store.tables.topic_ids == {}


def test_deleting_gives_back_the_credit_of_who_held_its_messages(store: Store, topic: int) -> None:
    other = store.topics.open("other", NOW_MS)
    store.produce.ingest(send(other, [b"x"] * 2), NOW_MS)
    pump(store, NOW_MS)
    staying, leaving = Reader(store, other), Reader(store, topic)
    staying.fetch()
    leaving.fetch(3)
    leaving.ack((1, 1))
    pump(store, NOW_MS + 1_000)  # the leases have ended: nothing of them is held any more
    leaving.fetch(2, NOW_MS + 1_000)
    assert store.holders.outstanding(leaving.holder) == 2
    store.holders.drop(leaving.holder)
    store.topics.delete("t")
    assert (store.holders.outstanding(leaving.holder), store.holders.outstanding(staying.holder)) == (0, 0)
    store.holders._free.clear()
    assert store.holders.acquire(staying.group) == leaving.holder, "its number is free again"


def test_deleting_does_not_touch_what_others_hold(store: Store, topic: int) -> None:
    other = store.topics.open("other", NOW_MS)
    store.produce.ingest(send(other, [b"x"] * 2), NOW_MS)
    pump(store, NOW_MS)
    staying, leaving = Reader(store, other), Reader(store, topic)
    staying.fetch()
    leaving.fetch(3)
    store.topics.delete("t")
    assert (store.holders.outstanding(leaving.holder), store.holders.outstanding(staying.holder)) == (0, 2)
    assert staying.ack((5, 1), (6, 1)) == (2, [])


def test_a_group_of_a_deleted_topic_gives_nothing(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    messages = [Outbound(b"%d" % n, order=b"%d" % (n % 5)) for n in range(20)]
    store.commit.write_internal(topic, messages, [], NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    assert len(reader.fetch()) == 5
    pump(store, NOW_MS + 1_000)  # five in the chain of redeliveries, the others parked behind them
    store.topics.delete("t")
    for act in (
        reader.fetch,
        lambda: store.deliver.limits(reader.group),
        lambda: reader.ack((1, 1)),
        lambda: reader.nack((1, 1)),
    ):
        with pytest.raises(UnknownGroup):
            act()
    assert store.deliver._select(reader.group, 10, 1_000, 1, NOW_MS) == (0, 24), (
        "C finds nothing, and touches nothing"
    )
    struct_ = store.tables.native.groups[reader.group]
    assert (struct_.orders, struct_.orders_capacity, struct_.orders_count) == (ffi.NULL, 0, 0)
    assert store.tables.native.topics[topic].lanes[0] == 0
    assert store.settle.release_holder(reader.holder, NOW_MS) == 0


@pytest.mark.parametrize("clean", [True, False])
def test_deleting_is_the_same_after_a_restart(tmp_path: Path, clean: bool) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.create("t", {}, 2, NOW_MS).topic_id
    keep = store.topics.open("keep", NOW_MS)
    for number in (topic, keep):
        store.produce.ingest(send(number, [b"x"] * 4, keys=[b"%d" % n for n in range(4)]), NOW_MS)
    pump(store, NOW_MS)
    readers = [Reader(store, number) for number in (topic, keep)]
    for part in store.groups.parts_of(readers[0].group):
        readers[0].fetch(part=part)
    readers[1].fetch()
    store.topics.delete("t")
    before = store.look.state_hash()
    store.close(clean=clean)
    store = Store.open(tmp_path, SMALL, NOW_MS)
    assert store.look.state_hash() == before
    assert not np.any(store.tables._outstanding[1:]), "after a start nobody holds anything"
    assert [entry["name"] for entry in store.look.topics()] == ["keep"]
    store.close(clean=False)
