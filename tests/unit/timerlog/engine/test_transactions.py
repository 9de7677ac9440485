"""A transaction is whole or not there, whatever becomes of the log's last bytes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.native.driver import MIB, NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, delivered, send
from tests.support.run.profile import some_of
from tickwheel_broker.errors import from_store
from timerlog.commitlog.records import Outbound, send_payload
from timerlog.engine.select import Filter
from timerlog.errors import BadTransactionId, TransactionRefused, TransactionTooLarge, UnknownTopic
from timerlog.settings import StoreSettings
from timerlog.store import Store

ID = b"0123456789abcdef"


def prepared_store(directory: Path) -> tuple[Store, int, int]:
    """A store with two messages in a topic, one leased, and one for later; (store, topic, group)."""
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.topics.open("out", NOW_MS)
    store.produce.ingest(
        send(topic, [b"a", b"b", b"later"], times_ms=[NOW_MS, NOW_MS, NOW_MS + 60_000]), NOW_MS
    )
    pump(store, NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    assert store.deliver.fetch(group, store.holders.acquire(group), 1, 1, MIB, NOW_MS)
    store.sync()
    return store, topic, group


def commit_all_kinds(store: Store, group: int) -> list[tuple[int, int]]:
    tx = store.transactions.begin(ID, NOW_MS)
    try:
        tx.send(send_payload(2, [Outbound(b"x", key=b"k"), Outbound(b"y" * 300)]))
        tx.ack(group, [1], [1])
        tx.cancel([2])
        tx.reschedule([3], NOW_MS + 5, 7)
        return tx.commit()
    finally:
        tx.close()


def summary(store: Store) -> tuple[int, ...]:
    stats = store.look.stats(NOW_MS)
    return stats["messages"], stats["acked"], stats["cancelled"], int(store.tables.rows["priority"][3])


@pytest.mark.promise("S5")
def test_torn_between_any_two_bytes_it_is_whole_or_absent(tmp_path: Path) -> None:
    store, _, group = prepared_store(tmp_path / "data")
    start, before, before_hash = store.log.appended_position, summary(store), store.look.state_hash()
    assert commit_all_kinds(store, group) == [(4, 2)]
    end, after, after_hash = store.log.appended_position, summary(store), store.look.state_hash()
    store.close(clean=False)
    (segment,) = (tmp_path / "data" / "commitlog").iterdir()
    assert (before, after) == ((3, 0, 0, 50), (5, 1, 1, 7))
    for cut in some_of(range(start, end + 1), 8):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "data" / "commitlog", copy / "commitlog")
        path = copy / "commitlog" / segment.name
        os.truncate(path, cut)
        os.truncate(path, segment.stat().st_size)
        reopened = Store.open(copy, SMALL, NOW_MS)
        is_whole = reopened.look.state_hash() == after_hash
        assert is_whole or reopened.look.state_hash() == before_hash
        assert summary(reopened) == (after if is_whole else before)
        # The record's padding is zeros, which stand there anyway: up to 7 bytes may be missing.
        assert not is_whole or cut > end - 8
        assert is_whole or cut < end
        assert reopened.commit.committed(ID) == ([(4, 2)] if is_whole else None)
        reopened.close(clean=False)
        shutil.rmtree(copy)


def test_it_is_known_by_its_id_after_each_kind_of_start(tmp_path: Path) -> None:
    store, _, group = prepared_store(tmp_path / "data")
    commit_all_kinds(store, group)
    for clean in (False, True, False):
        store.close(clean=clean)
        store = Store.open(tmp_path / "data", SMALL, NOW_MS)
        assert store.commit.committed(ID) == [(4, 2)]
    store.close()


def test_marks_of_acks_are_taken_back(tmp_path: Path) -> None:
    store, _, group = prepared_store(tmp_path / "data")
    tx = store.transactions.begin(ID, NOW_MS)
    tx.ack(group, [1], [1])
    with pytest.raises(TransactionRefused, match="already_delivered"):
        tx.cancel([1])
    tx.close()
    assert store.deliver.ack(ack_payload(group, [1], [1]), 1, NOW_MS).accepted == 1
    store.close()


def test_what_cannot_be_in_a_transaction(tmp_path: Path) -> None:
    store, topic, group = prepared_store(tmp_path / "data")
    hash_before = store.look.state_hash()
    tx = store.transactions.begin(ID, NOW_MS)
    with pytest.raises(ValueError, match="add up"):
        tx.send(b"garbage")
    with pytest.raises(UnknownTopic):
        tx.send(send_payload(99, [Outbound(b"x")]))
    with pytest.raises(TransactionRefused, match="stale_receipt"):
        tx.ack(group, [1], [9])
    with pytest.raises(TransactionRefused, match="body_too_large"):
        tx.send(send_payload(topic, [Outbound(bytes(SMALL.max_body_bytes + 1))]))
    for _ in range(400):
        tx.send(send_payload(topic, [Outbound(bytes(SMALL.max_body_bytes))]))
    with pytest.raises(TransactionTooLarge):
        tx.commit()
    tx.close()
    assert store.look.state_hash() == hash_before
    store.close()


def test_two_messages_of_one_key_take_everything_back(tmp_path: Path) -> None:
    store, topic, _ = prepared_store(tmp_path / "data")
    hash_before, position = store.look.state_hash(), store.log.appended_position
    tx = store.transactions.begin(ID, NOW_MS)
    tx.send(send_payload(topic, [Outbound(b"x", key=b"first")]))
    tx.send(send_payload(topic, [Outbound(b"x", key=b"same")]))
    tx.send(send_payload(topic, [Outbound(b"x", key=b"same")]))
    with pytest.raises(TransactionRefused, match="same key"):
        tx.commit()
    assert (store.look.state_hash(), store.log.appended_position) == (hash_before, position)
    assert store.select.find("t", ["first", "same"]) == [0, 0]
    store.close()


def keyed_store(directory: Path) -> tuple[Store, int]:
    """A store with messages 1 and 2 for later, whose keys are "a" and "b"; (store, topic)."""
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"1", b"2"], keys=[b"a", b"b"], times_ms=[NOW_MS + 60_000] * 2), NOW_MS)
    store.sync()
    return store, topic


def replace_first(store: Store, topic: int) -> list[tuple[int, int]]:
    tx = store.transactions.begin(ID, NOW_MS)
    try:
        tx.cancel([1])
        tx.send(send_payload(topic, [Outbound(b"3", b"a"), Outbound(b"4", b"c")], NOW_MS + 70_000))
        return tx.commit()
    finally:
        tx.close()


@pytest.mark.promise("sending-twice")
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_what_is_cancelled_leaves_its_key_to_what_is_sent(tmp_path: Path, has_checkpoint: bool) -> None:
    store, topic = keyed_store(tmp_path / "data")
    if has_checkpoint:
        store.close()
        store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    assert replace_first(store, topic) == [(3, 2)]
    assert store.select.find("t", ["a", "b", "c"]) == [3, 2, 4]
    again = send(topic, [b"5"], keys=[b"a"], times_ms=[NOW_MS])
    assert store.produce.ingest(again, NOW_MS).exceptions == 1, "it is taken again"
    state_hash = store.look.state_hash()
    for is_clean in (False, True, False):
        store.close(clean=is_clean)
        store = Store.open(tmp_path / "data", SMALL, NOW_MS)
        assert store.look.state_hash() == state_hash
        assert store.select.find("t", ["a", "b", "c"]) == [3, 2, 4]
    assert store.change.cancel([3], NOW_MS) == ["cancelled"]
    assert store.select.find("t", ["a", "b", "c"]) == [0, 2, 4]
    store.close()


def test_a_key_is_handed_on_whole_or_not(tmp_path: Path) -> None:
    store, topic = keyed_store(tmp_path / "data")
    start, before = store.log.appended_position, store.look.state_hash()
    replace_first(store, topic)
    end, after = store.log.appended_position, store.look.state_hash()
    store.close(clean=False)
    (segment,) = (tmp_path / "data" / "commitlog").iterdir()
    for cut in some_of(range(start, end + 1), 8):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "data" / "commitlog", copy / "commitlog")
        path = copy / "commitlog" / segment.name
        os.truncate(path, cut)
        os.truncate(path, segment.stat().st_size)
        reopened = Store.open(copy, SMALL, NOW_MS)
        is_whole = reopened.look.state_hash() == after
        assert is_whole or reopened.look.state_hash() == before
        assert reopened.select.find("t", ["a", "c"]) == ([3, 4] if is_whole else [1, 0])
        reopened.close(clean=False)
        shutil.rmtree(copy)


def test_a_key_that_is_handed_on_is_handed_to_one(tmp_path: Path) -> None:
    store, topic = keyed_store(tmp_path / "data")
    state_hash, position = store.look.state_hash(), store.log.appended_position
    tx = store.transactions.begin(ID, NOW_MS)
    tx.cancel([1])
    tx.send(send_payload(topic, [Outbound(b"x", b"a")]))
    with pytest.raises(TransactionRefused, match="duplicate") as caught:
        tx.send(send_payload(topic, [Outbound(b"x", b"b")]))
    assert caught.value.message_id == 2
    tx.send(send_payload(topic, [Outbound(b"y", b"a")]))
    with pytest.raises(TransactionRefused, match="same key"):
        tx.commit()
    tx.close()
    assert (store.look.state_hash(), store.log.appended_position) == (state_hash, position)
    assert store.select.find("t", ["a", "b"]) == [1, 2], "the first one has its key as before"
    repeated = send(topic, [b"1"], keys=[b"a"], times_ms=[NOW_MS])
    assert store.produce.ingest(repeated, NOW_MS).exceptions == 1
    store.close()


def test_ordering_keys_and_dead_letters_survive_a_kill(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", SMALL, NOW_MS)
    topic = store.topics.create("t", {"max_attempts": 1}, 0, NOW_MS).topic_id
    payload = send_payload(topic, [Outbound(b"%d" % n, order=b"o") for n in range(4)])
    tx = store.transactions.begin(ID, NOW_MS)
    tx.send(payload)
    tx.commit()
    pump(store, NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    for number in range(1, 5):
        frame = store.deliver.fetch(group, store.holders.acquire(group), 1, 9, MIB, NOW_MS)
        assert frame
        assert delivered(frame) == ([number], [1])
        assert store.settle.nack(group, [number], [1], None, f"no {number}", NOW_MS) == ["dead"]
        pump(store, NOW_MS)
        before = store.look.state_hash()
        store.close(clean=False)
        store = Store.open(tmp_path / "data", SMALL, NOW_MS)
        assert store.look.state_hash() == before
    (letters,) = store.select.matching(store.topics.record("t.dead").topic_id, Filter(), NOW_MS)
    dead = store.select.browse(letters, NOW_MS, 100)
    assert [letter["body"] for letter in dead] == [b"0", b"1", b"2", b"3"]
    assert np.all(store.tables.rows["state"][1:5] == 2)
    store.close()


@pytest.mark.parametrize("bad", [b"", b"short", ID + b"x", bytes(16)])
def test_an_id_by_which_it_could_not_be_known_again(tmp_path: Path, bad: bytes) -> None:
    store, _, _ = prepared_store(tmp_path / "data")
    position = store.log.appended_position
    with pytest.raises(BadTransactionId) as caught:
        store.transactions.begin(bad, NOW_MS)
    assert from_store(caught.value).code == "bad_request"
    if bad != bytes(16):  # which the broker's own have
        with pytest.raises(BadTransactionId):
            store.commit.write(bad, [], [], NOW_MS)
    assert store.log.appended_position == position
    store.close()


def test_what_it_changes_it_does_not_ack_as_well(tmp_path: Path) -> None:
    store, _, group = prepared_store(tmp_path / "data")
    tx = store.transactions.begin(ID, NOW_MS)
    tx.cancel([2])
    assert store.deliver.fetch(group, store.holders.acquire(group), 1, 1, MIB, NOW_MS)  # meanwhile
    with pytest.raises(TransactionRefused, match="changed and acked"):
        tx.ack(group, [2], [1])
    tx.close()
    assert store.look.topics()[0]["groups"][0]["backlog"] == 2
    assert store.deliver.ack(ack_payload(group, [2], [1]), 1, NOW_MS).accepted == 1
    assert store.look.topics()[0]["groups"][0]["backlog"] == 1
    store.close()


@pytest.mark.parametrize("is_last_in_segment", [False, True])
def test_as_large_as_may_be_wherever_the_log_stands(tmp_path: Path, is_last_in_segment: bool) -> None:
    settings = StoreSettings(segment_bytes=64 * MIB, max_frame_bytes=24 * MIB, max_body_bytes=16 * MIB)
    store = Store.open(tmp_path, settings, NOW_MS)
    topic, body = store.topics.open("t", NOW_MS), bytes(10 * MIB)
    for _ in range(5 if is_last_in_segment else 0):
        store.commit.write_internal(topic, [Outbound(body)], [], NOW_MS)
    first = store.tables.next_id
    tx = store.transactions.begin(ID, NOW_MS)
    for _ in range(2):
        tx.send(send_payload(topic, [Outbound(body)]))
    assert tx.commit() == [(first, 1), (first + 1, 1)]
    tx.close()
    assert store.log.segments == ([0, 64 * MIB] if is_last_in_segment else [0])
    store.close()


def test_a_document_its_message_and_its_cancels_are_whole_or_absent(tmp_path: Path) -> None:
    store, _, _ = prepared_store(tmp_path / "data")
    start, before, before_hash = store.log.appended_position, summary(store), store.look.state_hash()
    judged = store.produce.judge(send_payload(2, [Outbound(b"x", key=b"k")]), NOW_MS)
    store.change.put_document("d", b"content", NOW_MS, send=judged, cancel=[3, 1, 3, 99])
    end, after, after_hash = store.log.appended_position, summary(store), store.look.state_hash()
    store.close(clean=False)
    (segment,) = (tmp_path / "data" / "commitlog").iterdir()
    assert (before[0], before[2]) == (3, 0)
    assert (after[0], after[2]) == (4, 1), "message 1 was delivered, and 99 never was"
    kinds = set()
    for cut in range(start, end + 1, 3):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "data" / "commitlog", copy / "commitlog")
        path = copy / "commitlog" / segment.name
        os.truncate(path, cut)
        os.truncate(path, segment.stat().st_size)
        reopened = Store.open(copy, SMALL, NOW_MS)
        is_whole = reopened.tables.documents.get("d") == b"content"
        kinds.add(is_whole)
        assert summary(reopened) == (after if is_whole else before)
        assert reopened.look.state_hash() == (after_hash if is_whole else before_hash)
        reopened.close(clean=False)
        shutil.rmtree(copy)
    assert kinds == {False, True}


def test_a_refused_send_says_which_message_it_is_behind_many_others(tmp_path: Path) -> None:
    store, topic, _ = prepared_store(tmp_path / "data")
    tx = store.transactions.begin(ID, NOW_MS)
    for number in range(300):
        tx.send(send_payload(topic, [Outbound(b"", key=b"%d" % number), Outbound(b"")]))
    tx.send(send_payload(topic, [Outbound(b""), Outbound(b"", key=b"7")]))
    with pytest.raises(TransactionRefused) as refused:
        tx.commit()
    tx.close()
    assert (refused.value.index, refused.value.reason) == (601, "duplicate")
    assert store.tables.next_id == 4, "nothing of it is there"
    store.close(clean=False)
