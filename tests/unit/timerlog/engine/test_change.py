"""Messages are changed after they were sent: the truth about each, and nothing of it when the disk is full."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.full_disk import full_disk
from tests.support.stores.reader import Reader
from timerlog.commitlog.log import CommitLog
from timerlog.commitlog.records import RUNS_A_RECORD, Outbound
from timerlog.engine.change import DELIVERED, READY, SCHEDULED, UNKNOWN
from timerlog.engine.changed import Revoked
from timerlog.errors import BadTime, DiskFull, UnknownGroup
from timerlog.layout import MAX_TIME_MS, RecordType
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files


@pytest.fixture
def topic(store: Store) -> int:
    """Two messages that are due, and two for later."""
    number = store.topics.open("t", NOW_MS)
    times = [NOW_MS, NOW_MS, NOW_MS + 50, NOW_MS + 50]
    store.produce.ingest(send(number, [b"x"] * 4, keys=[b"a", b"b", b"c", b"d"], times_ms=times), NOW_MS)
    return number


def test_cancel(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    store.deliver.fetch(group, store.holders.acquire(group), 1, 1, MIB, NOW_MS)
    assert store.change.cancel([1, 2, 3, 3, 2, 0, -1, 99], NOW_MS) == [
        "already_delivered",
        "cancelled",
        "cancelled",
        "already_cancelled",
        "already_cancelled",
        "not_found",
        "not_found",
        "not_found",
    ]
    assert store.select.find("t", ["a", "b", "c", "d"]) == [1, 0, 0, 4], "a cancelled message frees its key"
    store.produce.ingest(send(topic, [b"again"], keys=[b"c"]), NOW_MS)
    assert store.select.find("t", ["c"]) == [5]


def test_reschedule(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    at_ms = NOW_MS + 500
    group = store.groups.open(topic, "g", NOW_MS)
    store.deliver.fetch(group, store.holders.acquire(group), 1, 1, MIB, NOW_MS)
    assert store.change.reschedule([1, 3, 4, 99], at_ms, NOW_MS) == [
        "already_delivered",
        "rescheduled",
        "rescheduled",
        "not_found",
    ]
    assert store.change.reschedule([3], NOW_MS + 20, NOW_MS) == ["rescheduled"]
    pump(store, NOW_MS + 50)
    assert store.look.stats(NOW_MS)["ready"] == 3
    pump(store, at_ms)
    assert store.look.stats(at_ms)["ready"] == 4
    for bad_ms in (-1, 253_402_300_800_000):
        with pytest.raises(BadTime):
            store.change.reschedule([4], bad_ms, NOW_MS)


def test_reschedule_before_the_message_is_on_the_wheel(store: Store, topic: int) -> None:
    assert store.change.reschedule([3], NOW_MS + 1_000, NOW_MS) == ["rescheduled"]
    pump(store, NOW_MS + 50)
    assert store.look.stats(NOW_MS)["scheduled"] == 1
    assert pump(store, NOW_MS + 1_000) == 1


def test_unknown_topics_and_keys(store: Store, topic: int) -> None:
    assert store.select.find("unknown", ["a"]) == [0]
    assert store.select.find("t", ["", "zz", "a" * 300]) == [0, 0, 0]


@pytest.mark.promise("cancel-and-reschedule-racing-delivery")
def test_verdicts_and_their_answers(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    Reader(store, topic).fetch(1)
    assert store.change.verdicts([1, 2, 3, 99]) == [DELIVERED, READY, SCHEDULED, UNKNOWN]
    assert [store.change.answer_for(verdict) for verdict in (UNKNOWN, DELIVERED)] == [
        "not_found",
        "already_delivered",
    ]


# -- stop and expire ------------------------------------------------------------------------------------------


def test_who_holds_what_is_stopped_is_told(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    one, other = Reader(store, topic), Reader(store, topic, "other")
    one.fetch()
    other.fetch(1)
    assert store.change.cancel([1, 2, 3], NOW_MS, stop=True) == ["stopped", "stopped", "cancelled"]
    assert store.changes.take().revoked == [
        Revoked(one.holder, [1, 2], [1, 1]),
        Revoked(other.holder, [1], [1]),
    ]
    assert store.changes.take().revoked == []
    assert (store.holders.outstanding(one.holder), store.holders.outstanding(other.holder)) == (0, 0)
    assert one.ack((1, 1)) == (0, [5])


def test_the_next_of_an_ordering_key_may_go_when_one_is_cancelled(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.commit.write_internal(topic, [Outbound(b"1", order=b"o"), Outbound(b"2", order=b"o")], [], NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    assert reader.fetch() == [(1, 1)]
    store.change.cancel([1], NOW_MS, stop=True)
    assert store.changes.take().woken == {reader.group}
    assert store.changes.take().woken == set()
    assert reader.fetch() == [(2, 1)]


def test_expired_messages_are_taken_from_who_holds_them(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch(1)
    assert store.change.expire(np.array([1, 2], np.uint64), NOW_MS + 1) == 2
    assert store.changes.take().revoked == [Revoked(reader.holder, [1], [1])]
    assert reader.fetch() == []
    assert store.change.cancel([1, 2], NOW_MS) == ["expired", "expired"]


def test_what_was_rescheduled_or_acked_since_it_was_selected_does_not_expire(
    store: Store, topic: int
) -> None:
    store.change.reschedule([3, 4], NOW_MS, NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    assert reader.fetch(2) == [(1, 1), (2, 1)]
    assert reader.ack((1, 1)) == (1, [])
    assert store.change.reschedule([3], NOW_MS + 60_000, NOW_MS) == ["rescheduled"]
    assert store.change.reschedule([4], NOW_MS + 1, NOW_MS) == ["rescheduled"]
    pump(store, NOW_MS + 1)
    selected = np.array([1, 2, 3, 4], np.uint64)
    assert store.change.expire(selected, NOW_MS + 1) == 1
    verdicts = ["already_acked", "expired", "rescheduled", "rescheduled"]
    assert store.change.reschedule([1, 2, 3, 4], NOW_MS + 60_000, NOW_MS) == verdicts
    assert store.select.find("t", ["a", "b"]) == [1, 0], "the key of an acked message stays taken"


def test_what_was_in_a_deleted_topic_does_not_expire(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    other = store.topics.open("other", NOW_MS)
    store.produce.ingest(send(other, [b"x"]), NOW_MS)
    pump(store, NOW_MS)
    store.topics.delete("t")
    position = store.log.appended_position
    assert store.change.expire(np.array([1, 2], np.uint64), NOW_MS + 1) == 0
    assert store.log.appended_position == position
    assert store.change.expire(np.array([1, 5], np.uint64), NOW_MS + 1) == 1
    assert store.change.cancel([5], NOW_MS) == ["expired"]


# -- redeliver ------------------------------------------------------------------------------------------------


def test_redeliver_answers_for_each_message(store: Store, topic: int) -> None:
    store.produce.ingest(send(topic, [b"x"] * 4), NOW_MS)  # 5 to 8
    store.change.cancel([8], NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    assert reader.fetch(3) == [(1, 1), (2, 1), (5, 1)]
    reader.ack((2, 1))
    reader.nack((5, 1), delay_ms=None)
    store.changes.take()
    assert store.change.redeliver([1, 2, 3, 5, 6, 8, 99], None, None, NOW_MS) == [
        "redelivered",
        "already_acked",
        "waiting",
        "redelivered",
        "waiting",
        "already_cancelled",
        "not_found",
    ]
    changed = store.changes.take()
    assert changed.revoked == [Revoked(reader.holder, [1], [1])]
    assert changed.woken == {reader.group}
    assert reader.fetch(2) == [(1, 2), (5, 2)]
    assert store.change.redeliver([2], "g", None, NOW_MS, acked=True) == ["redelivered"]
    assert reader.fetch(1) == [(2, 2)]


def test_redeliver_at_a_time(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch()
    assert store.change.redeliver([1], None, NOW_MS + 500, NOW_MS) == ["redelivered"]
    pump(store, NOW_MS + 499)
    assert (1, 2) not in reader.fetch(now_ms=NOW_MS + 499), "never early"
    pump(store, NOW_MS + 500)
    assert reader.fetch(now_ms=NOW_MS + 500) == [(1, 2)]


def test_what_could_be_delivered_by_now_can_be_postponed(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.nack(*reader.fetch(), delay_ms=0)
    assert reader.has_ready
    later_ms = NOW_MS + 500
    assert store.change.redeliver([1, 2], None, later_ms, NOW_MS) == ["waiting", "waiting"]
    assert store.change.redeliver([1, 2], None, later_ms, NOW_MS, postpone=True) == [
        "redelivered",
        "redelivered",
    ]
    assert store.change.redeliver([2], None, NOW_MS, NOW_MS, postpone=True) == ["redelivered"], (
        "its time is now"
    )
    assert reader.fetch() == [(2, 2)]
    pump(store, later_ms - 1)
    assert reader.fetch(now_ms=later_ms - 1) == [(3, 1), (4, 1)], "never early"
    pump(store, later_ms)
    assert reader.fetch(now_ms=later_ms) == [(1, 2)]


def test_redeliver_refuses(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    Reader(store, topic).fetch()
    for bad_ms in (-1, MAX_TIME_MS + 1):
        with pytest.raises(BadTime):
            store.change.redeliver([1], None, bad_ms, NOW_MS)
    with pytest.raises(UnknownGroup):
        store.change.redeliver([1], "no such group", None, NOW_MS)


@pytest.mark.parametrize("at_ms", [None, NOW_MS + 60_000])
def test_what_was_acked_late_can_be_called_for(store: Store, at_ms: int | None) -> None:
    topic = store.topics.open("t", NOW_MS)
    for priority in (50, 50, 50, 7):
        store.produce.ingest(send(topic, [b"x"], priority=priority), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch()
    late_ms = NOW_MS + 1_000
    pump(store, late_ms)
    assert reader.ack((1, 1), (3, 1), (4, 1)) == (3, []), "late, but nobody else got them"
    assert store.change.redeliver([1, 2, 3, 4], None, at_ms, late_ms) == [
        "already_acked",
        "waiting",
        "already_acked",
        "already_acked",
    ]
    assert store.change.redeliver([1, 2, 3, 4], None, at_ms, late_ms, acked=True) == [
        "redelivered",
        "waiting",
        "redelivered",
        "redelivered",
    ]
    if at_ms is not None:
        assert reader.fetch(now_ms=late_ms) == [(2, 2)], "the others are for later"
        assert not reader.has_ready
        reader.ack((2, 2))
        pump(store, at_ms - 1)
        assert reader.fetch(now_ms=at_ms - 1) == [], "never early"
        pump(store, at_ms)
        assert reader.fetch(now_ms=at_ms) == [(4, 2), (1, 2), (3, 2)]
    else:
        assert reader.fetch(now_ms=late_ms) == [(4, 2), (1, 2), (2, 2), (3, 2)]


def test_many_are_called_for_in_records_of_a_bounded_size(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, count = store.topics.open("t", NOW_MS), 140_000
    for _ in range(14):
        store.produce.ingest(send(topic, [b""] * (count // 14)), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    while reader.fetch(8_192):
        pass
    record_bytes: list[int] = []
    append = CommitLog.append

    def watch(log: CommitLog, record: RecordType, aux: int, payload: bytes) -> int:
        if record == RecordType.REDELIVER:
            record_bytes.append(len(payload))
        return append(log, record, aux, payload)

    monkeypatch.setattr(CommitLog, "append", watch)
    ids = np.arange(1, count + 1, 2, dtype=np.uint64)  # every second one: no run is longer than one
    assert store.change.redeliver(ids, None, None, NOW_MS) == ["redelivered"] * len(ids)
    assert max(record_bytes) == 8 + RUNS_A_RECORD * 24
    assert sum(record_bytes) - 8 * len(record_bytes) == len(ids) * 24
    assert store.holders.outstanding(reader.holder) == count // 2


def test_a_full_disk_changes_nothing_and_tells_nobody(store: Store, topic: int) -> None:
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch(1)
    before = store.look.state_hash()
    store.changes.take()
    with full_disk(store):
        for act in (
            lambda: store.change.redeliver([1], None, None, NOW_MS),
            lambda: store.change.redeliver([1], None, NOW_MS + 5, NOW_MS),
            lambda: store.change.cancel([1], NOW_MS, stop=True),
            lambda: store.change.expire(np.array([1], np.uint64), NOW_MS + 1),
            lambda: store.change.reschedule([3], NOW_MS + 5, NOW_MS),
            lambda: store.change.put_document("name", b"content", NOW_MS),
        ):
            with pytest.raises(DiskFull):
                act()
    changed = store.changes.take()
    assert (changed.revoked, changed.woken) == ([], set())
    assert store.look.state_hash() == before
    assert store.holders.outstanding(reader.holder) == 1


# -- documents ------------------------------------------------------------------------------------------------


def test_documents(store: Store) -> None:
    store.change.put_document("a", b"one", NOW_MS)
    store.change.put_document("a", b"two", NOW_MS)
    store.change.put_document("b", b"", NOW_MS)
    assert store.tables.documents == {"a": b"two", "b": b""}
    store.change.put_document("a", None, NOW_MS)
    store.change.put_document("never there", None, NOW_MS)
    assert store.tables.documents == {"b": b""}


def test_a_document_with_its_group(store: Store, topic: int) -> None:
    made = store.groups.opening(topic, "with", NOW_MS, "latest")
    with full_disk(store), pytest.raises(DiskFull):
        store.change.put_document("a", b"one", NOW_MS, controls=made)
    assert (store.tables.documents, store.tables.topics[topic].groups.get("with")) == ({}, None)
    store.change.put_document("a", b"one", NOW_MS, controls=made)
    group = store.groups.find("t", "with")
    assert store.groups.backlog_of(group) == 0
    with full_disk(store), pytest.raises(DiskFull):
        store.change.put_document("a", None, NOW_MS, controls=store.groups.deleting("t", "with"))
    assert store.groups.find("t", "with") == group
    store.change.put_document("a", None, NOW_MS, controls=store.groups.deleting("t", "with"))
    assert (store.tables.documents, store.tables.topics[topic].groups.get("with")) == ({}, None)


@pytest.mark.parametrize("shards", [0, 4])
def test_a_torn_log_has_a_document_and_its_group_or_neither(tmp_path: Path, shards: int) -> None:
    """The log is cut somewhere inside of the record that makes or deletes both."""
    for deletes in (False, True):
        directory = tmp_path / f"{deletes}"
        store = Store.open(directory, SMALL, NOW_MS)
        store.topics.create("t", {}, shards, NOW_MS)
        topic = store.tables.topic_ids["t"]
        if deletes:
            made = store.groups.opening(topic, "g", NOW_MS, "latest")
            store.change.put_document("a", b"one", NOW_MS, controls=made)
        store.sync()
        start = store.log.durable_position
        if deletes:
            store.change.put_document("a", None, NOW_MS, controls=store.groups.deleting("t", "g"))
        else:
            made = store.groups.opening(topic, "g", NOW_MS, "latest")
            store.change.put_document("a", b"one", NOW_MS, controls=made)
        end = store.log.flush()
        store.close(clean=False)
        (segment,) = (directory / "commitlog").glob("*.log")
        content = segment.read_bytes()
        found = set()
        for cut in (start, start + 8, *range(start + 16, end, 37), end):
            remove_derived_files(directory)
            segment.write_bytes(content[:cut] + bytes(len(content) - cut))
            found.add(_has_document_and_group(directory))
        assert found == {False, True}


def _has_document_and_group(directory: Path) -> bool:
    """Whether both are there; fails if only one is, or the group is not in all parts of its topic."""
    store = Store.open(directory, SMALL, NOW_MS)
    try:
        topic = store.tables.topic_ids["t"]
        parts = {topic, *store.topics.shards_of(topic)}
        has_groups = {"g" in store.tables.topics[part].groups for part in parts}
        assert has_groups == {"a" in store.tables.documents}
        return has_groups.pop()
    finally:
        store.close(clean=False)
