"""Of two holders of one message only the one whose ack counted is told so, also when it asks again after any start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.native.driver import NOW_MS, SMALL, pump
from tests.support.native.frames import ack_payload, send
from tests.support.stores.purging import LATER_MS, ack, fill, take
from tests.support.stores.reader import Reader
from tickwheel_native import lib
from timerlog.errors import TransactionRefused
from timerlog.layout import DeliveryState
from timerlog.store import Store
from timerlog.tables.tables import remove_derived_files

STALE, ALREADY = lib.TW_STALE_RECEIPT, lib.TW_ALREADY_ACKED
ENDED_MS = NOW_MS + 1_000
"""When the first lease has ended."""
EARLIER, LATER = (1, 1), (1, 2)
"""The receipts of both holders; that of the later one is acked."""


def acked_by_the_later(directory: Path) -> tuple[Store, int]:
    """(store, group): message 1 was given out twice and acked, message 2 once."""
    store = Store.open(directory, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"a", b"b"]), NOW_MS)
    pump(store, NOW_MS)
    earlier, later = Reader(store, topic), Reader(store, topic)
    assert earlier.fetch(1) == [EARLIER]
    pump(store, ENDED_MS)
    assert later.fetch(2, ENDED_MS) == [LATER, (2, 1)]
    assert later.ack(LATER, now_ms=ENDED_MS) == (1, [])
    store.sync()
    return store, earlier.group


def answer_to_an_ack(store: Store, group: int, receipt: tuple[int, int]) -> int:
    reply = store.deliver.ack(ack_payload(group, [receipt[0]], [receipt[1]]), 1, ENDED_MS).reply
    return int.from_bytes(reply[28:32], "little")


@pytest.mark.promise("sending-twice")
@pytest.mark.parametrize("ending", ["none", "clean", "killed", "no derived files"])
def test_the_epoch_that_was_acked_is_known_after_each_start(tmp_path: Path, ending: str) -> None:
    store, group = acked_by_the_later(tmp_path)
    if ending != "none":
        store.close(clean=ending == "clean")
        if ending == "no derived files":
            remove_derived_files(tmp_path)
        store = Store.open(tmp_path, SMALL, ENDED_MS)
    answers = [answer_to_an_ack(store, group, receipt) for receipt in (EARLIER, LATER, EARLIER, (1, 3))]
    assert answers == [STALE, ALREADY, STALE, STALE]
    store.close()


def test_whatever_is_asked_for_with_the_earlier_receipt_is_refused_as_stale(tmp_path: Path) -> None:
    store, group = acked_by_the_later(tmp_path)
    ids, epochs = zip(EARLIER, LATER, strict=True)
    settle, wanted = store.settle, ["stale_receipt", "already_acked"]
    assert settle.nack(group, ids, epochs, 0, "", ENDED_MS) == wanted
    assert settle.nack(group, ids, epochs, None, "", ENDED_MS, give_up=True) == wanted
    assert settle.nack(group, ids, epochs, None, "", ENDED_MS, is_attempt=False) == wanted
    assert settle.extend(group, ids, epochs, ENDED_MS + 9_000) == wanted
    assert settle.give_back(group, ids, epochs, ENDED_MS) == wanted
    for receipt, reason in zip((EARLIER, LATER), wanted, strict=True):
        transaction = store.transactions.begin(bytes(15) + b"x", ENDED_MS)
        with pytest.raises(TransactionRefused, match=reason):
            transaction.ack(group, [receipt[0]], [receipt[1]])
        transaction.close()
    store.close()


def test_both_receipts_in_one_frame(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [b"a"]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    reader.fetch()
    pump(store, ENDED_MS)
    assert reader.fetch(1, ENDED_MS) == [LATER]
    assert reader.ack(EARLIER, LATER, EARLIER, LATER) == (1, [STALE, STALE, ALREADY])
    store.close()


def test_in_a_topic_with_shards(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.create("t", {}, 2, NOW_MS).topic_id
    store.produce.ingest(send(topic, [b"a"], keys=[b"k"]), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    parts = store.groups.parts_of(reader.group)
    assert [one for part in parts for one in reader.fetch(part=part)] == [EARLIER]
    pump(store, ENDED_MS)
    assert [one for part in parts for one in reader.fetch(now_ms=ENDED_MS, part=part)] == [LATER]
    assert reader.ack(LATER) == (1, [])
    assert reader.ack(EARLIER, LATER) == (0, [STALE, ALREADY])
    store.close()


@pytest.mark.promise("sending-twice")
def test_a_message_that_a_purge_has_moved_keeps_the_epoch_and_one_that_is_purged_is_not_found(
    tmp_path: Path,
) -> None:
    store = Store.open(tmp_path, SMALL, NOW_MS)
    topic = store.topics.open("t", NOW_MS)
    group, other = store.groups.open(topic, "g", NOW_MS), store.groups.open(topic, "other", NOW_MS)
    fill(store, topic, [b"%d" % number for number in range(7_000)], NOW_MS)
    pump(store, NOW_MS)
    take(store, group, 2, NOW_MS)
    pump(store, ENDED_MS)
    ids, epochs = take(store, group, 7_000, ENDED_MS)
    ack(store, group, ids, epochs, ENDED_MS)
    assert (ids[:3], epochs[:3]) == ([1, 2, 3], [2, 2, 1])
    # The other group still needs message 1, and is done with the rest.
    ids, epochs = take(store, other, 7_000, ENDED_MS)
    ack(store, other, ids[1:], epochs[1:], ENDED_MS)
    store.sync()
    position = int(store.tables.rows["position"][1])
    assert store.purge(LATER_MS).moved_messages
    for ending in ("none", "killed", "no derived files"):
        if ending != "none":
            store.close(clean=False)
            if ending == "no derived files":
                remove_derived_files(tmp_path)
            store = Store.open(tmp_path, SMALL, LATER_MS)
        assert int(store.tables.rows["position"][1]) != position
        assert store.tables.deliveries_of(group)["state"][0] == DeliveryState.ACKED
        assert [answer_to_an_ack(store, group, one) for one in (EARLIER, LATER)] == [STALE, ALREADY]
        assert [answer_to_an_ack(store, group, (2, epoch)) for epoch in (1, 2)] == [lib.TW_NOT_FOUND] * 2
    store.close()


def test_an_acked_message_that_is_called_for_again_has_no_holder(tmp_path: Path) -> None:
    store, group = acked_by_the_later(tmp_path)
    assert store.change.redeliver([1], None, ENDED_MS, ENDED_MS, acked=True) == ["redelivered"]
    assert [answer_to_an_ack(store, group, one) for one in (EARLIER, LATER)] == [STALE, STALE]
    pump(store, ENDED_MS)
    ids, epochs = take(store, group, 9, ENDED_MS)
    assert (1, 3) in zip(ids, epochs, strict=True)
    ack(store, group, [1], [3], ENDED_MS)
    answers = [answer_to_an_ack(store, group, (1, epoch)) for epoch in (1, 2, 3)]
    assert answers == [STALE, STALE, ALREADY]
    assert np.count_nonzero(store.tables.deliveries_of(group)["state"][:2] == DeliveryState.ACKED) == 1
    store.close()
