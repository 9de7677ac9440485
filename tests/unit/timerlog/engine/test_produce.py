"""Sends: stored once by key, refused one by one, whole frames or nothing."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.support.native.driver import NOW_MS, SMALL
from tests.support.native.frames import frame, send
from tickwheel_native import ingest
from timerlog.engine.produce import Stop
from timerlog.errors import BadName, TooManyTopics, UnknownTopic
from timerlog.layout import MAX_TIME_MS
from timerlog.store import Store


def answer(reply: bytes) -> tuple[int, int, list[tuple[int, int, int]]]:
    """(first id, stored, exceptions) of a SEND_OK frame."""
    first, stored, count = struct.unpack_from("<QII", reply, 16)
    return first, stored, [struct.unpack_from("<IIQ", reply, 32 + 16 * n) for n in range(count)]


@pytest.mark.promise("R70")
def test_ids_are_dense_and_a_key_is_stored_once(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    first = store.produce.ingest(send(topic, [b"a", b"b", b"c"], keys=[b"k", b"", b"k"]), NOW_MS)
    assert answer(first.replies) == (1, 2, [(2, 1, 1)])
    again = store.produce.ingest(send(topic, [b"d", b"e"], keys=[b"k", b"new"]), NOW_MS)
    assert answer(again.replies) == (3, 1, [(0, 1, 1)])
    other = store.topics.open("other", NOW_MS)
    assert answer(store.produce.ingest(send(other, [b"f"], keys=[b"k"]), NOW_MS).replies) == (4, 1, [])


def test_each_message_is_judged_by_itself(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    too_large = bytes(16 * 1024 + 1)
    data = send(
        topic,
        [b"", too_large, b"ok", b"ok", b"ok"],
        times_ms=[0, 0, -1, MAX_TIME_MS + 1, MAX_TIME_MS],
    )
    first, stored, exceptions = answer(store.produce.ingest(data, NOW_MS).replies)
    assert (first, stored) == (1, 2)
    assert [(index, code) for index, code, _ in exceptions] == [(1, 2), (2, 3), (3, 3)]
    assert store.tables.rows["deliver_at_ms"][1:3].tolist() == [NOW_MS, MAX_TIME_MS]


def test_many_frames_in_one_call_and_a_rest(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    one = send(topic, [b"x"])
    ingested = store.produce.ingest(one * 3 + one[:-1], NOW_MS)
    assert ingested.stop is Stop.NEED_MORE
    assert ingested.consumed_bytes == 3 * len(one)
    assert ingested.messages == 3
    assert len(ingested.replies) == 3 * 32
    assert ingested.position == store.log.appended_position > store.log.durable_position


def test_stops_at_what_is_not_a_send(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    one, ping = send(topic, [b"x"]), frame(3, 9, b"")
    ingested = store.produce.ingest(one + ping + one, NOW_MS)
    assert ingested.stop is Stop.OTHER_FRAME
    assert ingested.consumed_bytes == len(one) + len(ping)
    assert ingested.stop_frame is not None
    kind, correlation, payload = ingested.stop_frame
    assert (kind, correlation, bytes(payload)) == (3, 9, b"")


@pytest.mark.parametrize("place", range(8, 58))
def test_a_flipped_byte_is_noticed_and_stores_nothing(store: Store, place: int) -> None:
    data = bytearray(send(store.topics.open("t", NOW_MS), [b"some body"], keys=[b"key"]))
    data[place] ^= 0x20
    ingested = store.produce.ingest(data, NOW_MS)
    assert ingested.stop is Stop.BAD_CRC
    assert store.tables.next_id == 1


def test_columns_that_do_not_add_up_store_nothing(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    payload = send(topic, [b"abc", b"def"])[16:]
    for bad in (payload[:-1], payload + b"x", struct.pack("<II", topic, 0) + payload[8:], b""):
        ingested = store.produce.ingest(frame(12, 5, bad), NOW_MS)
        assert ingested.stop is Stop.BAD_FRAME
        assert ingested.stop_frame is not None
        assert ingested.stop_frame[1] == 5
    assert store.produce.ingest(send(topic + 1, [b"x"]), NOW_MS).stop is Stop.UNKNOWN_TOPIC
    assert store.tables.next_id == 1


def test_a_frame_beyond_the_limit_is_refused_before_it_arrives(store: Store) -> None:
    head = struct.pack("<IIBBHI", SMALL.max_frame_bytes + 1, 0, 12, 0, 0, 1)
    assert store.produce.ingest(head, NOW_MS).stop is Stop.FRAME_TOO_LARGE


def test_topics(store: Store) -> None:
    number = store.topics.open("a.b-c_d", NOW_MS)
    assert store.topics.open("a.b-c_d", NOW_MS) == number
    with pytest.raises(UnknownTopic):
        store.topics.open("unknown", NOW_MS, create=False)
    for name in ("", ".x", "a b", "a/b", "x" * 129, "naïve"):
        with pytest.raises(BadName):
            store.topics.open(name, NOW_MS)
    for index in range(store.settings.max_topics - 1):
        store.topics.open(f"t{index}", NOW_MS)
    with pytest.raises(TooManyTopics):
        store.topics.open("one-more", NOW_MS)


def test_thousands_of_keys_grow_the_index(store: Store) -> None:
    topic = store.topics.open("t", NOW_MS)
    keys = [b"order-%d" % number for number in range(100_000)]
    for start in range(0, len(keys), 1_000):
        store.produce.ingest(send(topic, [b""] * 1_000, keys=keys[start : start + 1_000]), NOW_MS)
    found = store.select.find("t", [key.decode() for key in keys])
    assert found == list(range(1, len(keys) + 1))
    assert store.select.find("t", ["order-100000"]) == [0]


def test_a_send_begins_a_few_times_however_many_parts_of_the_key_index_must_grow(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.topics.open("t", NOW_MS)
    calls = 0
    real = ingest.ingest

    def counted(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        real(*arguments)

    monkeypatch.setattr(ingest, "ingest", counted)
    keys = [b"key-%d" % number for number in range(64_000)]
    for start in range(0, len(keys), 2_000):
        some = keys[start : start + 2_000]
        sent = store.produce.ingest(send(topic, [b""] * len(some), keys=some), NOW_MS)
        assert answer(sent.replies) == (start + 1, len(some), [])
    assert calls <= 6 * 32, "room in the log, rows and keys is made once each, for all of a frame"
    assert store.select.find("t", ["key-0", "key-63999", "none"]) == [1, 64_000, 0]
    again = store.produce.ingest(send(topic, [b""], keys=[b"key-7"]), NOW_MS)
    assert answer(again.replies)[1:] == (0, [(0, 1, 8)])
