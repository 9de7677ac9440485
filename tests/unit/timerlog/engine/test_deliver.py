"""Groups, leases, redelivery, acks."""

from __future__ import annotations

import pytest

from tests.support.native.driver import MIB, NOW_MS, pump
from tests.support.native.frames import ack_payload, delivered, send
from tests.support.stores.reader import Reader
from tickwheel.protocol.messages import decode_deliver
from tickwheel_native import lib
from timerlog.engine.deliver import NoFrame
from timerlog.errors import TooManyGroups, UnknownGroup
from timerlog.store import Store


@pytest.fixture
def topic(store: Store) -> int:
    number = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(number, [b"body %d" % index for index in range(5)]), NOW_MS)
    pump(store, NOW_MS)
    return number


def test_each_message_goes_to_one_reader_of_each_group(store: Store, topic: int) -> None:
    first, second, other = Reader(store, topic), Reader(store, topic), Reader(store, topic, "other")
    assert first.fetch(2) == [(1, 1), (2, 1)]
    assert second.fetch(2) == [(3, 1), (4, 1)]
    assert other.fetch() == [(number, 1) for number in range(1, 6)]
    assert (store.holders.outstanding(first.holder), store.holders.outstanding(second.holder)) == (2, 2)
    assert first.has_ready
    assert first.fetch() == [(5, 1)]
    assert not first.has_ready
    assert first.fetch() == []


def test_a_delivery_tells_of_attempts_to_who_asks(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    told = []
    for time_ms in (NOW_MS, NOW_MS + 1_000):
        pump(store, time_ms)
        frame = store.deliver.fetch(reader.group, reader.holder, 9, 2, MIB, time_ms, tells_attempts=True)
        assert frame
        assert len(frame) == 16 + int.from_bytes(frame[:4], "little")
        delivery = decode_deliver(frame[16:])
        told.append((delivery.ids, delivery.epochs, delivery.attempts))
    store.settle.give_back(reader.group, [1, 2], [2, 2], NOW_MS + 1_000)
    frame = store.deliver.fetch(reader.group, reader.holder, 9, 2, MIB, NOW_MS + 1_000, tells_attempts=True)
    assert frame
    delivery = decode_deliver(frame[16:])
    told.append((delivery.ids, delivery.epochs, delivery.attempts))
    assert told == [((1, 2), (1, 1), (1, 1)), ((1, 2), (2, 2), (2, 2)), ((1, 2), (3, 3), (2, 2))]


@pytest.mark.promise("S22", "sending-twice")
def test_acks_are_fenced_by_epoch(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(3)
    assert reader.ack((1, 1), (1, 1), (2, 2), (4, 1), (99, 1), (0, 1)) == (1, [1, 2, 4, 3, 3])
    assert store.holders.outstanding(reader.holder) == 2
    assert reader.ack((1, 1)) == (0, [1])
    later_ms = NOW_MS + 1_000
    assert pump(store, later_ms) >= 2
    assert reader.fetch(2, later_ms) == [(2, 2), (3, 2)]
    assert reader.ack((2, 1)) == (0, [2])
    assert reader.ack((2, 2)) == (1, [])


def test_an_ack_after_the_lease_ended_counts_if_nobody_else_got_it(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(1)
    pump(store, NOW_MS + 1_000)
    assert reader.has_ready
    assert reader.ack((1, 1)) == (1, [])
    assert reader.fetch(100, NOW_MS + 1_000) == [(number, 1) for number in range(2, 6)]


def test_a_lease_ends_on_time_and_redelivery_comes_first(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    reader.fetch(2)
    pump(store, NOW_MS + 999)
    assert reader.fetch(1, NOW_MS + 999) == [(3, 1)]
    pump(store, NOW_MS + 1_000)
    assert store.holders.outstanding(reader.holder) == 1
    assert reader.fetch(2, NOW_MS + 1_000) == [(1, 2), (2, 2)]


def test_a_subscriber_that_vanished_can_still_ack(store: Store, topic: int) -> None:
    vanishing, staying = Reader(store, topic), Reader(store, topic)
    vanishing.fetch(2)
    store.holders.drop(vanishing.holder)
    assert store.holders.outstanding(vanishing.holder) == 2
    assert staying.fetch() == [(3, 1), (4, 1), (5, 1)]
    assert staying.ack((1, 1)) == (1, [])


def test_who_subscribes_is_known_before_the_first_message(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    assert store.holders.count([reader.group]) == 1
    assert store.holders.count([reader.group + 1]) == 0
    store.settle.release_holder(reader.holder, NOW_MS)
    assert store.holders.count([reader.group]) == 0


@pytest.mark.promise("V21")
def test_lower_priority_numbers_first(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    for priority in (50, 255, 0, 50, 7):
        store.produce.ingest(send(topic, [b"x"], priority=priority), NOW_MS)
    pump(store, NOW_MS)
    assert [number for number, _ in Reader(store, topic).fetch()] == [3, 5, 1, 4, 2]


def test_limits_of_a_frame(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    store.produce.ingest(send(topic, [bytes(10_000)] * 5), NOW_MS)
    pump(store, NOW_MS)
    reader = Reader(store, topic)
    assert len(reader.fetch(limit_bytes=25_000)) == 3
    assert len(reader.fetch(limit_bytes=1)) == 1, "one message always fits"


def test_no_delivery_is_larger_than_a_frame_may_be(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    for _ in range(20):
        store.produce.ingest(send(topic, [bytes(16_000)] * 3 + [bytes(10)] * 20), NOW_MS)
    pump(store, NOW_MS)
    group = store.groups.open(topic, "g", NOW_MS)
    holder, taken = store.holders.acquire(group), 0
    while (frame := store.deliver.fetch(group, holder, 1, 1_000, MIB, NOW_MS)) is not NoFrame.NOTHING:
        assert len(frame) <= store.settings.max_frame_bytes
        taken += len(delivered(frame)[0])
    assert taken == 20 * 23


def test_a_cancelled_message_in_its_topic_is_not_delivered(store: Store, topic: int) -> None:
    reader = Reader(store, topic)
    assert store.change.cancel([2, 4], NOW_MS) == ["cancelled", "cancelled"]
    assert [number for number, _ in reader.fetch()] == [1, 3, 5]


def test_groups_are_limited_and_keep_their_number(store: Store, topic: int) -> None:
    assert store.groups.open(topic, "g", NOW_MS) == store.groups.open(topic, "g", NOW_MS)
    for index in range(store.settings.max_groups - 1):
        store.groups.open(topic, f"g{index}", NOW_MS)
    with pytest.raises(TooManyGroups):
        store.groups.open(topic, "one-more", NOW_MS)


@pytest.mark.parametrize("payload", [b"", b"\0" * 8, b"\1\0\0\0\1\0\0\0"])
def test_malformed_acks(store: Store, topic: int, payload: bytes) -> None:
    store.groups.open(topic, "g", NOW_MS)
    with pytest.raises(ValueError, match=r"ACK|group"):
        store.deliver.ack(payload, 1, NOW_MS)


def test_an_ack_for_a_group_that_does_not_exist(store: Store, topic: int) -> None:
    with pytest.raises(UnknownGroup):
        store.deliver.ack(ack_payload(77, [1], [1]), 1, NOW_MS)


@pytest.mark.promise("V61", "V62", "sending-twice")
def test_backoff_grows_within_its_clamps_for_every_epoch() -> None:
    for epoch in range(201):
        waits = {lib.tw_backoff_ms(1_000, 2_000, 60_000, message, epoch) for message in range(200)}
        if epoch <= 1:
            assert waits == {1_000}
            continue
        middle = min(60_000, 2_000 * 2 ** (epoch - 1))
        assert max(1_000, middle - middle // 3) <= min(waits)
        assert max(waits) <= min(60_000, middle + middle // 3)
        assert len(waits) > 50, "jitter a message, also at the clamps"
