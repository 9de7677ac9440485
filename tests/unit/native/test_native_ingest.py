"""C and twin take the same SEND frames, refuse the same bytes, and leave the same memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.native_frames import (
    DELAYS,
    HEADERS,
    KEYS,
    MAX_TIME_MS,
    ORDERS,
    PRIORITY,
    TIMES,
    Item,
    SendFrame,
    filler,
    frames,
    sends,
)
from tests.support.native.native_pair import EMPTY_INDEX_BYTES, REPLIES_BYTES, Pair, Sizes
from tests.twins.ingest import (
    BAD_TIME,
    BODY_TOO_LARGE,
    DUPLICATE,
    DUPLICATE_DIFFERS,
    HEADERS_TOO_LARGE,
    KEY_TOO_LONG,
    SEND,
    Ingested,
    Stop,
    frame,
)
from tests.twins.keys import key_hash

TELL_DIFFERENCES = 64
# Holds the longest stream of a test: frames of several messages whose headers have 32 KiB each.
ROOMY = Sizes(log_bytes=1 << 20, staging_bytes=1 << 20, rows=256, max_frame_bytes=1 << 19)


def exceptions(replies: bytes) -> list[tuple[int, int, int]]:
    """(index, code, id) of each exception in one SEND_OK frame."""
    (count,) = struct.unpack_from("<I", replies, 16 + 12)
    assert len(replies) == 32 + 16 * count
    return [struct.unpack_from("<IIQ", replies, 32 + 16 * i) for i in range(count)]


def drive(pair: Pair, data: bytes, replies: int = REPLIES_BYTES) -> Iterator[Ingested]:
    """Ingests as the engine does: what is asked for is provided, other frames are taken note of."""
    while True:
        result = pair.ingest(data, replies=replies)
        yield result
        data = data[result.consumed_bytes :]
        match result.stop:
            case Stop.NEED_FLUSH if pair.twin.staging_bytes:
                pair.flush()
            case Stop.NEED_KEYS:
                if pair.call("grow", result.need)[0]:
                    return
            case Stop.NEED_REPLIES if result.replies:
                pass
            case Stop.OTHER_FRAME | Stop.BAD_FRAME | Stop.UNKNOWN_TOPIC:
                pass
            case _:
                return


@given(
    st.lists(frames, max_size=6),
    st.integers(0, 60),
    st.sampled_from([2_000, 20_000, 1 << 17]),
    st.sampled_from([32, 100, 200, 4_096]),
    st.integers(2, 40),
)
def test_any_stream_of_frames(
    stream: list[bytes], missing: int, staging_bytes: int, replies: int, rows: int
) -> None:
    sizes = Sizes(log_bytes=1 << 16, staging_bytes=staging_bytes, rows=rows, max_frame_bytes=70_000)
    data = b"".join(stream)
    for _ in drive(Pair(sizes), data[: max(0, len(data) - missing)], replies):
        pass


@given(st.lists(frames, min_size=1, max_size=3), st.data())
def test_any_byte_of_a_stream_changed(stream: list[bytes], data: st.DataObject) -> None:
    bad = bytearray(b"".join(stream))
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    for _ in drive(Pair(ROOMY), bytes(bad)):
        pass


@given(st.binary(max_size=200))
def test_noise(data: bytes) -> None:
    for _ in drive(Pair(), data):
        pass


@given(st.lists(sends, min_size=1, max_size=3), st.lists(st.integers(1, 400), min_size=1, max_size=8))
def test_pieces_give_the_same_as_the_whole(stream: list[SendFrame], pieces: list[int]) -> None:
    data = b"".join(send.encode() for send in stream)
    whole, piecewise = Pair(ROOMY), Pair(ROOMY)
    whole.ingest(data)
    received, fed, turn = b"", 0, 0
    while fed < len(data):
        step = pieces[turn % len(pieces)] * (1 + turn // 8)
        received += data[fed : fed + step]
        fed, turn = fed + step, turn + 1
        received = received[piecewise.ingest(received).consumed_bytes :]
    assert received == b""
    assert piecewise.twin.staging.tobytes() == whole.twin.staging.tobytes()
    assert piecewise.twin.rows.tobytes() == whole.twin.rows.tobytes()


SAMPLE = SendFrame(
    items=[Item(filler(20), b"key-1", b"\x81", 5_000, 9), Item(b"", b"", b"", 0, 255)],
    columns=TIMES | PRIORITY | KEYS | HEADERS | DELAYS,
).encode()


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_any_corrupt_byte_is_noticed_and_changes_nothing(mask: int) -> None:
    pair = Pair()
    before = [pair.native.rows.tobytes(), pair.native.staging.tobytes(), pair.native.keys.tobytes()]
    for place in range(len(SAMPLE)):
        bad = bytearray(SAMPLE)
        bad[place] ^= mask
        result = pair.ingest(bytes(bad))
        assert result.stop in (Stop.BAD_CRC, Stop.FRAME_TOO_LARGE, Stop.NEED_MORE), place
        assert (result.consumed_bytes, result.replies, result.messages) == (0, b"", 0)
        assert pair.twin.next_id == 1
    assert before == [pair.native.rows.tobytes(), pair.native.staging.tobytes(), pair.native.keys.tobytes()]
    assert pair.ingest(SAMPLE).messages == 2


def test_every_cut_waits_for_more() -> None:
    pair = Pair()
    for size in range(len(SAMPLE)):
        result = pair.ingest(SAMPLE[:size])
        assert (result.stop, result.consumed_bytes) == (Stop.NEED_MORE, 0)


def test_each_message_is_judged_by_itself() -> None:
    pair = Pair(ROOMY)
    items = [
        Item(b"good", b"k"),
        Item(filler(401), b"k1"),
        Item(b"", b"k2", time=MAX_TIME_MS + 1),
        Item(b"", filler(256)),
        Item(b"", b"k4", filler(32_769)),
        Item(b"again", b"k"),
        Item(filler(400), filler(255), filler(32_768), MAX_TIME_MS),
    ]
    result = pair.ingest(SendFrame(items=items, columns=TIMES | KEYS | HEADERS).encode())
    assert exceptions(result.replies) == [
        (1, BODY_TOO_LARGE, 0),
        (2, BAD_TIME, 0),
        (3, KEY_TOO_LONG, 0),
        (4, HEADERS_TOO_LARGE, 0),
        (5, DUPLICATE, 1),
    ]
    assert pair.twin.next_id == 3


@pytest.mark.parametrize("is_written", [False, True])
def test_a_duplicate_that_differs_is_told_apart_if_that_is_asked(is_written: bool) -> None:
    pair = Pair(ROOMY)
    first = Item(b"body", key=b"k", headers=b"h", order=b"o", time=50_000)
    columns = TIMES | KEYS | HEADERS | ORDERS
    pair.ingest(SendFrame(items=[first], columns=columns).encode())
    if is_written:
        pair.flush()
    items = [
        first,
        replace(first, body=b"bodY"),
        replace(first, body=b"body2"),
        replace(first, headers=b""),
        replace(first, order=b"p"),
        replace(first, time=50_001),
        replace(first, time=0),
    ]
    plain = pair.ingest(SendFrame(items=items, columns=columns).encode())
    assert [code for _, code, _ in exceptions(plain.replies)] == [DUPLICATE] * 7
    told = pair.ingest(SendFrame(items=items, columns=columns | TELL_DIFFERENCES).encode())
    assert exceptions(told.replies) == [
        (index, DUPLICATE_DIFFERS if 0 < index < 6 else DUPLICATE, 1) for index in range(7)
    ]
    delays = pair.ingest(SendFrame(items=items[5:], columns=columns | DELAYS | TELL_DIFFERENCES).encode())
    assert [code for _, code, _ in exceptions(delays.replies)] == [DUPLICATE] * 2, "a delay names no time"


@pytest.mark.parametrize("is_written", [False, True])
def test_what_leaves_lets_go_of_its_key(is_written: bool) -> None:
    pair = Pair(ROOMY)
    keys = [b"a", b"b", b"c", b"d"]
    pair.ingest(SendFrame(items=[Item(b"old", key) for key in keys], columns=KEYS).encode())
    if is_written:
        pair.flush()
    again = SendFrame(items=[Item(b"new", key) for key in [*keys, b"b"]], columns=KEYS).encode()
    assert pair.call("send_check", again[16:], 0)[2] == [1, 2, 3, 4, 2]
    pair.leave({2, 4})
    assert pair.call("send_check", again[16:], 0)[2] == [1, 0, 3, 0, 0]
    assert [pair.call("find", 1, key) for key in keys] == [1, 0, 3, 0]
    told = exceptions(pair.ingest(again).replies)
    assert told == [(0, DUPLICATE, 1), (2, DUPLICATE, 3), (4, DUPLICATE, 5)], (
        "of two new ones the first has it"
    )
    pair.leave(set())
    for message_id in (2, 4):
        assert pair.call("remove", message_id) == 1
    assert [pair.call("find", 1, key) for key in keys] == [1, 5, 3, 6]


def test_a_key_belongs_to_its_topic() -> None:
    pair = Pair()
    for topic_id, stored in ((1, 1), (2, 1), (1, 0), (2, 0)):
        result = pair.ingest(SendFrame(topic_id, [Item(b"x", b"same")], KEYS).encode())
        assert struct.unpack_from("<I", result.replies, 24) == (stored,)


def test_who_may_not_send_to_a_topic_stops_there() -> None:
    pair = Pair()
    first, second = (SendFrame(topic_id, [Item(b"x")]).encode() for topic_id in (2, 1))
    pair.allow_sends({2})
    result = pair.ingest(first + second + first)
    assert (result.stop, result.messages, result.consumed_bytes) == (Stop.FORBIDDEN, 1, len(first))
    assert pair.ingest(SendFrame(999, [Item(b"x")]).encode()).stop is Stop.FORBIDDEN
    pair.allow_sends({1, 2})
    assert pair.ingest(second + first).messages == 2


def test_a_key_is_found_again_after_its_record_was_written() -> None:
    pair = Pair()
    send = SendFrame(items=[Item(b"x", b"same")], columns=KEYS).encode()
    pair.ingest(send)
    pair.flush()
    assert exceptions(pair.ingest(send).replies) == [(0, DUPLICATE, 1)]


COUNTS = [0, 2, 7, 300, 65_535, 65_536, 65_537, 1 << 30, 1 << 31, (1 << 32) - 1]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("columns", [0, 4, 15, 31])
def test_a_count_that_the_payload_cannot_hold(count: int, columns: int) -> None:
    payload = bytearray(SendFrame(columns=columns).payload())
    struct.pack_into("<I", payload, 4, count)
    result = Pair().ingest(frame(SEND, 1, bytes(payload)))
    assert (result.stop, result.consumed_bytes) == (Stop.BAD_FRAME, 16 + len(payload))


def test_one_message_more_than_a_frame_may_hold() -> None:
    data = SendFrame(items=[Item(b"", b"k")] * 65_537, columns=KEYS).encode()
    assert Pair(Sizes(max_frame_bytes=1 << 20)).ingest(data).stop is Stop.BAD_FRAME


@pytest.mark.parametrize("length", [2, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def test_a_body_length_that_lies(length: int) -> None:
    payload = bytearray(SendFrame().payload())
    struct.pack_into("<I", payload, 24, length)
    assert Pair().ingest(frame(SEND, 1, bytes(payload))).stop is Stop.BAD_FRAME


def test_body_lengths_whose_sum_wraps_in_32_bits() -> None:
    payload = bytearray(SendFrame(items=[Item(b"x"), Item(b"")]).payload())
    struct.pack_into("<II", payload, 24, 0x8000_0001, 0x8000_0000)
    assert Pair().ingest(frame(SEND, 1, bytes(payload))).stop is Stop.BAD_FRAME


@pytest.mark.parametrize(
    ("sizes", "stop"),
    [
        (Sizes(staging_bytes=4 * 64 - 1), Stop.NEED_FLUSH),
        (Sizes(message_limit=64 + 4 * 64 - 1), Stop.NEED_DISK),
        (Sizes(rows=4), Stop.NEED_ROWS),
    ],
)
def test_room_is_asked_for_before_anything_is_stored(sizes: Sizes, stop: Stop) -> None:
    items = [
        Item(filler(9), b"%d" % i) for i in range(4)
    ]  # each takes 48 + 1 + 9 bytes, and up to 7 of padding
    pair = Pair(sizes)
    result = pair.ingest(SendFrame(items=items, columns=KEYS).encode())
    assert (result.stop, result.consumed_bytes, pair.twin.next_id) == (stop, 0, 1)


def test_replies_that_do_not_fit_come_with_the_next_call() -> None:
    pair = Pair()
    two = SendFrame().encode(1) + SendFrame().encode(2)
    result = pair.ingest(two, replies=2 * 48 - 17)
    assert (result.stop, result.frames, result.consumed_bytes) == (Stop.NEED_REPLIES, 1, len(two) // 2)
    assert pair.ingest(two[result.consumed_bytes :], replies=48).frames == 1


def keys_of_partition(partition: int, count: int) -> Iterator[bytes]:
    """Different keys of topic 1 that all fall into one partition of the index."""
    number = 0
    while count:
        key = b"%x" % number
        if key_hash(1, key) >> 22 == partition:
            yield key
            count -= 1
        number += 1


def test_a_full_partition_has_to_grow_first() -> None:
    keys = list(keys_of_partition(3, 49))
    pair = Pair(Sizes(keys_bytes=EMPTY_INDEX_BYTES + 1_024))
    fits = SendFrame(items=[Item(b"", key) for key in keys[:48]], columns=KEYS).encode()
    more = SendFrame(items=[Item(b"", keys[48])], columns=KEYS).encode()
    results = list(drive(pair, fits + more))
    assert [(result.stop, result.need) for result in results] == [(Stop.NEED_KEYS, 3), (Stop.NEED_MORE, 0)]
    assert [pair.call("find", 1, key) for key in keys] == list(range(1, 50))


def test_as_many_keys_of_one_partition_as_a_frame_can_hold() -> None:
    """65,536 is one more than 16 bits count. All are the same key, but room is asked for as if they were not."""
    count, capacity = 65_536, 131_072
    sizes = Sizes(
        rows=count + 1,
        log_bytes=1 << 23,
        staging_bytes=1 << 23,
        keys_bytes=EMPTY_INDEX_BYTES + 2 * 8 * capacity,
        max_frame_bytes=1 << 20,
    )
    pair = Pair(sizes)
    data = SendFrame(items=[Item(b"", b"k")] * count, columns=KEYS).encode()
    results = list(drive(pair, data, replies=32 + 16 * count))
    assert [result.stop for result in results] == 11 * [Stop.NEED_KEYS] + [Stop.NEED_MORE]
    assert pair.twin.keys.of(key_hash(1, b"k")).capacity == capacity
    assert pair.twin.next_id == 2
