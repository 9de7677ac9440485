"""Leases that are given back, extended, or end: the truth for each receipt, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import send
from tests.support.stores.full_disk import full_disk
from tests.support.stores.reader import Reader
from timerlog.commitlog.log import CommitLog
from timerlog.commitlog.records import Outbound, send_payload
from timerlog.engine.settle import REFUSALS
from timerlog.errors import BadTime, DiskFull, LogFailed, UnknownGroup
from timerlog.layout import HOLDERS, MAX_TIME_MS
from timerlog.store import Store
from timerlog.tables.histories import MAX_ERROR_CHARS

LAST_MS = NOW_MS + 3_600_000


@pytest.fixture
def topic(store: Store) -> int:
    """Five messages that are due; each may be tried twice."""
    number = store.topics.create("t", {"max_attempts": 2}, 0, NOW_MS).topic_id
    store.produce.ingest(send(number, [b"body %d" % index for index in range(5)]), NOW_MS)
    pump(store, NOW_MS)
    return number


@pytest.fixture
def one_topic_only(tmp_path: Path) -> Iterator[Store]:
    """A store in which no topic for dead letters can be made."""
    opened = Store.open(tmp_path / "one", msgspec.structs.replace(SMALL, max_topics=1), NOW_MS)
    yield opened
    opened.close(clean=False)


def marks(store: Store, group: int) -> list[int]:
    """The messages whose receipt is marked as being used."""
    return np.flatnonzero(store.tables.groups[group].deliveries.items["flags"][:10] & 2).tolist()


# -- leaving --------------------------------------------------------------------------------------------------


@pytest.mark.promise("sending-twice")
def test_leaving_gives_leases_back_at_once_and_vanishing_does_not(store: Store, topic: int) -> None:
    leaving, vanishing, staying = (Reader(store, topic) for _ in range(3))
    leaving.fetch(2)
    vanishing.fetch(2)
    store.holders.drop(vanishing.holder)
    assert store.settle.release_holder(leaving.holder, NOW_MS) == 2
    assert store.holders.outstanding(leaving.holder) == 0
    assert staying.fetch() == [(1, 2), (2, 2), (5, 1)]


def test_leaving_with_the_last_attempt_buries(store: Store, topic: int) -> None:
    for _ in range(2):
        reader = Reader(store, topic)
        reader.fetch(1)
        assert store.settle.release_holder(reader.holder, NOW_MS) == 1
    assert Reader(store, topic).fetch(1) == [(2, 1)]
    assert store.look.describe_topic("t.dead")["messages"] == 1


def test_what_is_given_back_before_a_kill_and_after_it_counts_once(tmp_path: Path) -> None:
    """After a kill its receipt counts again until its lease has ended."""
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    number = store.topics.create("t", {"max_attempts": 2}, 0, NOW_MS).topic_id
    store.produce.ingest(send(number, [b"body"]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, number)
    assert reader.fetch() == [(1, 1)]
    assert store.settle.give_back(reader.group, [1], [1], NOW_MS) == ["returned"]
    store.sync()
    store.close(clean=False)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    reader = Reader(store, number)
    assert store.settle.give_back(reader.group, [1], [1], NOW_MS) == ["returned"]
    pump(store, NOW_MS)
    assert reader.fetch() == [(1, 2)]
    assert reader.nack((1, 2), delay_ms=0) == ["nacked"], "this was the first attempt that counts"
    assert reader.fetch() == [(1, 3)]
    assert reader.nack((1, 3)) == ["dead"]
    store.close()


def test_what_nobody_has_looked_at_was_no_attempt(store: Store, topic: int) -> None:
    for epoch in range(1, 6):
        reader = Reader(store, topic)
        held = reader.fetch(5)
        assert sorted(held) == [(message, epoch) for message in range(1, 6)]
        ids, epochs = zip(*held, strict=True)
        assert store.settle.return_unseen(reader.group, reader.holder, ids[1:], epochs[1:], NOW_MS) == 4
        assert store.holders.outstanding(reader.holder) == 1
        assert store.settle.return_unseen(reader.group, reader.holder, ids, epochs, NOW_MS) == 1, (
            "the others were returned"
        )
    assert {epoch for _, epoch in Reader(store, topic).fetch(5)} == {6}
    assert "t.dead" not in store.tables.topic_ids


def test_a_renewal_makes_no_lease_shorter_and_writes_nothing_then(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    held = reader.fetch(2)
    group, ends = reader.group, store.tables.groups[reader.group].deliveries.items["time_ms"]
    assert reader.extend(held[0], until_ms=LAST_MS) == ["extended"]
    ids, epochs = [i for i, _ in held], [e for _, e in held]
    assert store.settle.extend(group, ids, epochs, LAST_MS - 9, only_longer=True) == ["extended"] * 2
    assert ends[:2].tolist() == [LAST_MS, LAST_MS - 9]
    position = store.log.appended_position
    assert store.settle.extend(group, ids, epochs, LAST_MS - 9, only_longer=True) == ["extended"] * 2
    assert (store.log.appended_position, marks(store, group)) == (position, [])
    assert reader.ack(*held) == (2, [])


def test_times_after_the_year_9999_are_refused(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    held = reader.fetch(1)
    with pytest.raises(BadTime):
        reader.nack(*held, delay_ms=MAX_TIME_MS - NOW_MS + 1)
    with pytest.raises(BadTime):
        reader.extend(*held, until_ms=MAX_TIME_MS + 1)
    assert reader.extend(*held, until_ms=MAX_TIME_MS) == ["extended"]
    assert reader.nack(*held, delay_ms=MAX_TIME_MS - NOW_MS) == ["nacked"]


def test_what_others_hold_is_not_given_back(store: Store, topic: int) -> None:
    vanished, other, leaving = Reader(store, topic), Reader(store, topic), Reader(store, topic)
    left, theirs, mine = vanished.fetch(1), other.fetch(1), leaving.fetch(1)
    store.holders.drop(vanished.holder)
    ids, epochs = zip(*left, *theirs, *mine, strict=True)
    assert store.settle.return_unseen(leaving.group, leaving.holder, ids, epochs, NOW_MS) == 2
    assert other.ack(*theirs) == (1, [])


def test_a_full_disk_keeps_no_number_of_a_subscriber_that_left(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    held = reader.fetch(5)
    with full_disk(store), pytest.raises(DiskFull):
        store.settle.release_holder(reader.holder, NOW_MS)
    assert store.holders.count([reader.group]) == 0
    assert reader.ack(held[0]) == (1, []), "what it held stays leased"
    pump(store, NOW_MS + 1_000)
    again = Reader(store, topic)
    assert len(again.fetch(5, now_ms=NOW_MS + 1_000)) == 4
    store.settle.release_holder(again.holder, NOW_MS + 1_000)
    assert {store.holders.acquire(reader.group) for _ in range(HOLDERS - 1)} >= {reader.holder, again.holder}


# -- nack -----------------------------------------------------------------------------------------------------


def test_an_answer_for_each_receipt(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(4)
    reader.ack((2, 1))
    store.change.cancel([3], NOW_MS, stop=True)
    receipts = [(1, 1), (1, 1), (2, 1), (3, 1), (4, 9), (5, 1), (77, 1)]
    assert reader.nack(*receipts) == [
        "nacked",
        "already_acked",
        "already_acked",
        "cancelled",
        "stale_receipt",
        "never_delivered",
        "not_found",
    ]
    assert "stale_receipt" in REFUSALS.values()
    assert marks(store, reader.group) == []
    assert reader.fetch() == [(1, 2), (5, 1)]


def test_a_nack_waits_for_its_delay_or_the_backoff_of_its_attempt(store: Store, topic: int) -> None:
    store.topics.set("t", {"max_attempts": 5}, [], None, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch(2)
    assert reader.nack((1, 1), delay_ms=700) == ["nacked"]
    assert reader.nack((2, 1), delay_ms=None) == ["nacked"]
    assert store.holders.outstanding(reader.holder) == 0
    for ready_at_ms, message in ((NOW_MS + 700, 1), (NOW_MS + 1_000, 2)):
        pump(store, ready_at_ms - 1)
        assert (message, 2) not in reader.fetch(1, ready_at_ms - 1), "never early"
        pump(store, ready_at_ms)
        assert reader.fetch(1, ready_at_ms) == [(message, 2)]


def test_a_lease_that_has_ended_cannot_be_given_back(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(1)
    pump(store, NOW_MS + 1_000)
    assert reader.nack((1, 1)) == ["lease_ended"]
    assert reader.extend((1, 1), until_ms=LAST_MS) == ["lease_ended"]
    assert reader.ack((1, 1)) == (1, []), "the mark was taken back"


def test_after_the_last_attempt_a_nack_buries(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(2)
    assert reader.nack((1, 1), error="first") == ["nacked"]
    assert reader.fetch(1) == [(1, 2)]
    assert reader.nack((2, 1), (1, 2), (2, 1), error="second") == ["nacked", "dead", "already_acked"]
    assert reader.fetch() == [(2, 2), (3, 1), (4, 1), (5, 1)]
    assert store.look.describe_topic("t.dead")["messages"] == 1
    assert reader.nack((1, 2)) == ["stale_receipt"]


def test_what_is_given_up_is_a_dead_letter_whatever_the_attempts(store: Store, topic: int) -> None:
    store.topics.set("t", {}, ["max_attempts"], None, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch(2)
    answers = reader.nack((1, 1), (2, 9), (1, 1), (5, 1), delay_ms=None, error="poison", give_up=True)
    assert answers == ["dead", "stale_receipt", "already_acked", "never_delivered"]
    assert store.look.describe_topic("t.dead")["messages"] == 1
    assert marks(store, reader.group) == []
    pump(store, LAST_MS)
    assert reader.fetch(now_ms=LAST_MS) == [(2, 2), (3, 1), (4, 1), (5, 1)]


def test_what_cannot_be_given_up_comes_again(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(1)
    with full_disk(store, for_messages_only=True):
        assert reader.nack((1, 1), delay_ms=None, error="poison", give_up=True) == ["nacked"]
    assert (1, 2) not in reader.fetch(), "it waits for the backoff of its attempt"
    pump(store, NOW_MS + 1_000)
    assert reader.fetch(1, NOW_MS + 1_000) == [(1, 2)]
    assert reader.nack((1, 2), give_up=True, now_ms=NOW_MS + 1_000) == ["dead"]


def test_what_was_no_attempt_may_come_as_often_as_it_is_given_back(store: Store, topic: int) -> None:
    reader, now_ms = Reader(store, topic), NOW_MS
    assert reader.fetch(1) == [(1, 1)]
    assert reader.nack((1, 1), error="no") == ["nacked"]
    for epoch in range(2, 5):  # each time the last of two attempts
        assert reader.fetch(1, now_ms) == [(1, epoch)]
        assert reader.nack((1, epoch), delay_ms=700, is_attempt=False, now_ms=now_ms) == ["nacked"]
        assert store.holders.outstanding(reader.holder) == 0
        pump(store, now_ms + 699)
        assert not store.tables.native.groups[reader.group].retry_lanes[1], "never early"
        now_ms += 700
        pump(store, now_ms)
    assert reader.fetch(1, now_ms) == [(1, 5)]
    assert reader.nack((1, 5), delay_ms=None, is_attempt=False, now_ms=now_ms) == ["nacked"]
    assert reader.fetch(1, now_ms) == [(1, 6)], "without a delay it comes at once"
    assert "t.dead" not in store.tables.topic_ids
    assert reader.nack((1, 6), error="no", now_ms=now_ms) == ["dead"]


def test_long_errors_are_cut(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(1)
    reader.nack((1, 1), error="x" * 10_000)
    ((_, _, (failure,)),) = store.tables.failures.dump()
    assert failure.error == "x" * MAX_ERROR_CHARS


def test_more_receipts_than_a_batch_holds(store: Store) -> None:
    topic, count = store.topics.open("t", NOW_MS), 70_000
    for _ in range(7):
        store.produce.ingest(send(topic, [b""] * (count // 7)), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    held: list[tuple[int, int]] = []
    while got := reader.fetch(8_192):
        held += got
    assert len(held) == count
    held.reverse()  # no two follow each other: each needs a run of its own
    assert reader.extend(*held, until_ms=LAST_MS) == ["extended"] * count
    assert reader.nack(*held, delay_ms=5) == ["nacked"] * count
    assert store.holders.outstanding(reader.holder) == 0


def test_unknown_groups(store: Store) -> None:
    with pytest.raises(UnknownGroup):
        store.settle.nack(9, [1], [1], 0, "", NOW_MS)
    with pytest.raises(UnknownGroup):
        store.settle.extend(9, [1], [1], NOW_MS)
    with pytest.raises(UnknownGroup):
        store.settle.mark_acks(9, [1], [1])


# -- a full disk ----------------------------------------------------------------------------------------------


def test_a_full_disk_changes_nothing(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(2)
    reader.nack((1, 1))
    reader.fetch(1)
    before = store.look.state_hash()
    with full_disk(store):
        with pytest.raises(DiskFull):
            reader.nack((1, 2), (2, 1), error="x")
        with pytest.raises(DiskFull):
            reader.nack((1, 2), (2, 1), is_attempt=False)
        with pytest.raises(DiskFull):
            reader.extend((1, 2), (2, 1), until_ms=LAST_MS)
    assert store.look.state_hash() == before
    assert marks(store, reader.group) == []
    assert store.holders.outstanding(reader.holder) == 2
    assert len(store.tables.failures) == 0
    assert reader.nack((1, 2), (2, 1)) == ["dead", "nacked"]


def test_a_disk_with_no_room_for_letters_gives_messages_back(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(2)
    reader.nack((1, 1))
    reader.fetch(1)
    with full_disk(store, for_messages_only=True):
        assert reader.nack((1, 2), (2, 1), error="x") == ["nacked", "nacked"]
    (unburied,) = store.dead_letters.take_unburied()
    assert (unburied.topic, unburied.group, unburied.messages) == ("t", "g", 1)
    assert isinstance(unburied.error, DiskFull)
    assert store.dead_letters.take_unburied() == []
    assert marks(store, reader.group) == []
    assert sorted(reader.fetch(2)) == [(1, 3), (2, 2)], "neither is lost"
    assert reader.nack((1, 3), error="y") == ["dead"]


def test_shards_are_nacked_and_extended_all_or_none(store: Store) -> None:
    topic = store.topics.create("t", {}, 2, NOW_MS).topic_id
    for index in range(8):
        store.produce.ingest(send(topic, [b"x"], keys=[b"%d" % index]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    parts = store.groups.parts_of(reader.group)
    held = sorted(receipt for part in parts for receipt in reader.fetch(part=part))
    assert [message for message, _ in held] == list(range(1, 9))
    before = store.look.state_hash()
    left_bytes = 0

    def ensure_room(log: CommitLog, bytes_needed: int) -> None:
        nonlocal left_bytes
        left_bytes -= bytes_needed
        if left_bytes < 0:
            raise DiskFull("there is room for one shard's record, not for both")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitLog, "ensure_room", ensure_room)
        left_bytes = 60
        with pytest.raises(DiskFull):
            reader.nack(*held, delay_ms=5)
        left_bytes = 60
        with pytest.raises(DiskFull):
            reader.extend(*held, until_ms=LAST_MS)
    assert store.look.state_hash() == before
    assert all(marks(store, part) == [] for part in parts)
    assert reader.extend((99, 1), *held, until_ms=LAST_MS) == ["not_found"] + ["extended"] * 8
    assert reader.nack(*held, (99, 1)) == ["nacked"] * 8 + ["not_found"]
    again = sorted(receipt for part in parts for receipt in reader.fetch(part=part))
    assert again == [(message, 2) for message in range(1, 9)]
    assert reader.nack(*again[:4], is_attempt=False) == ["nacked"] * 4
    assert reader.nack(*again[4:], give_up=True) == ["dead"] * 4
    assert sorted(receipt for part in parts for receipt in reader.fetch(part=part)) == [
        (message, 3) for message in range(1, 5)
    ]


# -- dead letters that cannot be ------------------------------------------------------------------------------


def test_without_a_topic_for_dead_letters_messages_are_delivered_again(one_topic_only: Store) -> None:
    store = one_topic_only
    topic = store.topics.create("t", {"max_attempts": 1}, 0, NOW_MS).topic_id
    store.produce.ingest(send(topic, [b"a", b"b"]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch()
    assert reader.nack((1, 1), error="no") == ["nacked"]
    assert marks(store, reader.group) == []
    assert reader.fetch() == [(1, 2)]
    pump(store, NOW_MS + 8_000)
    assert reader.fetch(now_ms=NOW_MS + 8_000) == [(2, 2), (1, 3)], "also when a lease ends the last time"
    (unburied,) = store.dead_letters.take_unburied()
    assert (unburied.messages, unburied.error.code) == (3, "too_many_topics")
    assert reader.ack((1, 3), (2, 2)) == (2, [])


def test_a_letter_that_is_refused_stands_in_no_others_way(store: Store, topic: int) -> None:
    store.topics.create("t.dead", {"max_body_bytes": 6}, 0, NOW_MS)
    store.produce.ingest(send(topic, [b"large body"]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch()
    pump(store, NOW_MS + 1_000)
    held = reader.fetch(now_ms=NOW_MS + 1_000)
    assert held == [(message, 2) for message in range(1, 7)]
    pump(store, NOW_MS + 9_000)
    assert reader.fetch(now_ms=NOW_MS + 9_000) == [(6, 3)]
    assert store.look.describe_topic("t.dead")["messages"] == 5
    (unburied,) = store.dead_letters.take_unburied()
    assert unburied.messages == 1
    assert "body_too_large" in str(unburied.error)


def test_a_log_that_failed_is_not_taken_for_a_full_disk(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(1)
    reader.nack((1, 1))
    reader.fetch(1)

    def fail(log: CommitLog, bytes_needed: int) -> None:
        raise LogFailed("the disk is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommitLog, "make_message_room", fail)
        with pytest.raises(LogFailed):
            reader.nack((1, 2))


def test_called_for_after_the_last_attempt_it_is_delivered_once_more(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(1)
    reader.nack((1, 1))
    reader.fetch(1)
    assert reader.nack((1, 2)) == ["dead"]
    assert store.change.redeliver([1], None, None, NOW_MS, reset_attempts=False) == ["redelivered"]
    assert reader.fetch(1) == [(1, 3)], "the attempts are used up, but it was called for"
    assert store.dead_letters.take_unburied() == []
    assert reader.nack((1, 3)) == ["dead"]
    assert store.change.redeliver([1], None, NOW_MS + 50, NOW_MS, reset_attempts=False) == ["redelivered"]
    pump(store, NOW_MS + 50)
    assert reader.fetch(1, NOW_MS + 50) == [(1, 4)]
    pump(store, NOW_MS + 60_000)
    assert store.look.describe_topic("t.dead")["messages"] == 3, "a lease that ends buries it again"


# -- extend ---------------------------------------------------------------------------------------------------


def test_an_extended_lease_ends_when_it_was_told_to(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(2)
    assert reader.extend((1, 1), until_ms=NOW_MS + 5_000) == ["extended"]
    pump(store, NOW_MS + 1_000)
    assert reader.fetch(1, NOW_MS + 1_000) == [(2, 2)]
    pump(store, NOW_MS + 4_999)
    assert (1, 2) not in reader.fetch(100, NOW_MS + 4_999)
    pump(store, NOW_MS + 5_000)
    assert (1, 2) in reader.fetch(100, NOW_MS + 5_000)


def test_an_extension_may_shorten(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(1)
    assert reader.extend((1, 1), until_ms=NOW_MS + 10) == ["extended"]
    pump(store, NOW_MS + 10)
    assert reader.fetch(1, NOW_MS + 10) == [(1, 2)]


# -- a clock that goes back a little --------------------------------------------------------------------------


def test_what_is_given_back_below_the_wheels_time_is_not_forgotten(store: Store, topic: int) -> None:
    ahead_ms = NOW_MS + 500
    pump(store, ahead_ms)
    store.produce.ingest(send(topic, [b"x"], times_ms=[ahead_ms + 1]), ahead_ms)
    pump(store, ahead_ms + 1)
    assert store.wheel.tick_ms > NOW_MS + 300
    reader = Reader(store, topic)
    reader.fetch(3)
    assert reader.nack((1, 1), delay_ms=200) == ["nacked"]
    assert reader.extend((2, 1), until_ms=NOW_MS + 300) == ["extended"]
    assert store.change.redeliver([3], None, NOW_MS + 400, NOW_MS) == ["redelivered"]
    pump(store, ahead_ms + 2)
    assert sorted(reader.fetch(3, ahead_ms + 2)) == [(1, 2), (2, 2), (3, 2)]


# -- transactions ---------------------------------------------------------------------------------------------


def test_marked_receipts_count_once(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(2)
    (part,), refused = store.settle.mark_acks(reader.group, [1, 2, 3], [1, 1, 1])
    assert (part.group_id, part.seqs.tolist(), part.epochs.tolist()) == (reader.group, [0, 1], [1, 1])
    assert refused == [(3, "never_delivered")]
    assert reader.ack((1, 1)) == (0, [1])
    assert store.settle.mark_acks(reader.group, [1], [1])[0] == []
    store.settle.unmark_acks(part.group_id, part.seqs[:1])
    assert reader.ack((1, 1), (2, 1)) == (1, [1])


def test_runs_stay_valid(store: Store) -> None:
    seqs, epochs = np.array([3, 4, 6], np.uint64), np.ones(3, np.uint32)
    runs = store._engine.runs_of(seqs, epochs, np.full(3, NOW_MS, np.int64))
    store._engine.runs_of(seqs + np.uint64(50), epochs, np.full(3, NOW_MS, np.int64))
    assert runs.tolist() == [(3, 2, 1, NOW_MS), (6, 1, 1, NOW_MS)]


# -- after a restart ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_tables", [True, False])
def test_failures_are_the_same_after_a_replay(tmp_path: Path, with_tables: bool) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.create("t", {"max_attempts": 3}, 0, NOW_MS).topic_id
    store.topics.create("t.dead", {"max_body_bytes": 1}, 0, NOW_MS)
    store.commit.write_internal(topic, [Outbound(b"body", order=b"o"), Outbound(b"b")], [], NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    for epoch in (1, 2, 3):
        assert reader.fetch(1) == [(1, epoch)]
        reader.nack((1, epoch), error=f"attempt {epoch}")
    assert store.dead_letters.take_unburied()[0].messages == 1
    assert reader.fetch(1) == [(1, 4)]
    assert store.change.redeliver([1], None, None, NOW_MS) == ["redelivered"]
    assert reader.fetch(1) == [(1, 5)]
    reader.nack((1, 5), error="again the first")
    before, hash_before = store.tables.failures.dump(), store.look.state_hash()
    store.close(clean=False)
    if not with_tables:
        (tmp_path / "data" / "checkpoint").unlink()
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert store.recovery.from_checkpoint == with_tables
    assert (store.tables.failures.dump(), store.look.state_hash()) == (before, hash_before)
    assert [failure.epoch for _, _, history in before for failure in history] == [1, 2, 3, 5]
    store.close(clean=False)


def test_a_message_given_back_after_its_last_attempt_survives_a_restart(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SMALL, max_topics=1)
    store = Store.open(tmp_path / "data", settings, NOW_MS)
    topic = store.topics.create("t", {"max_attempts": 1}, 0, NOW_MS).topic_id
    store.commit.write(
        bytes(16), [store.produce.judge(send_payload(topic, [Outbound(b"x")]), NOW_MS)], [], NOW_MS
    )
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch()
    assert reader.nack((1, 1), delay_ms=100, error="no") == ["nacked"]
    store.close(clean=False)
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    pump(store, NOW_MS + 100)
    reader = Reader(store, topic)
    assert reader.fetch(1, NOW_MS + 100, MIB) == [(1, 2)]
    assert reader.nack((1, 2), error="no") == ["dead"], "now there may be more topics"
    store.close(clean=False)
