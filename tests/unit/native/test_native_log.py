"""C and twin read, append and replay the same records, and stop at the same damage."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.native_pair import LOG_START, NOW_MS, Pair, Sizes, append_record
from tests.support.native.native_store import Outputs, pointer
from tests.twins import log as twin
from tests.twins.log import (
    BAD_CHECKSUM,
    BAD_LENGTH,
    END_OF_RANGE,
    END_RECORD,
    MESSAGE,
    NEED_ROWS,
    NONSENSE,
    OTHER_RECORD,
    REPLAYED,
    ZEROS,
    make_record,
)
from tests.twins.store import padded
from tickwheel_native import ffi, lib


def verify(data: bytes, position: int = 0, end: int | None = None) -> tuple[int, int]:
    """What C says of a log of exactly these bytes; its twin says the same."""
    end = len(data) if end is None else end
    with Outputs() as out:
        counts, reason = out.array(256, np.uint64), ffi.new("int32_t *")
        stop = lib.tw_log_verify(out.bytes(data), position, end, pointer(counts, "uint64_t *"), reason)
    expected = [0] * 256
    result = int(stop), int(reason[0])
    assert result == twin.log_verify(data, position, end, expected)
    assert counts.tolist() == expected
    return result


def stored(record: bytes) -> bytes:
    return record.ljust(padded(len(record)), b"\0")


def message(
    message_id: int,
    key: bytes = b"",
    headers: bytes = b"",
    body: bytes = b"",
    topic_id: int = 1,
    flags: int = 50,
) -> bytes:
    head = MESSAGE.pack(message_id, NOW_MS + 5, NOW_MS, len(key), len(headers), len(body))
    return make_record(1, flags, topic_id, head + key + headers + body)


records = st.builds(
    make_record,
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, (1 << 32) - 1),
    st.binary(max_size=60),
).map(stored)


@given(st.lists(records, max_size=5), st.integers(0, 40), st.integers(0, 7))
def test_whole_records_up_to_a_cut(parts: list[bytes], zeros: int, missing: int) -> None:
    data = b"".join(parts) + bytes(zeros)
    verify(data[: max(0, len(data) - missing)])


@given(st.lists(records, min_size=1, max_size=4), st.data())
def test_damage_anywhere(parts: list[bytes], data: st.DataObject) -> None:
    damaged = bytearray(b"".join(parts))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    verify(bytes(damaged))


@given(st.binary(max_size=100))
def test_noise(data: bytes) -> None:
    verify(data)


ONE = stored(make_record(2, 0, 1, b"12345"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", (0, END_OF_RANGE)),
        (ONE, (24, END_OF_RANGE)),
        (ONE + bytes(15), (24, END_OF_RANGE)),
        (ONE + bytes(16), (24, ZEROS)),
        (ONE + b"\x01" + bytes(15), (24, BAD_LENGTH)),
        (ONE + bytes(4) + b"\x0f" + bytes(11), (24, BAD_LENGTH)),
        (ONE + bytes(4) + b"\xff\xff\xff\xff" + bytes(8), (24, BAD_LENGTH)),
        (ONE[:-1], (0, BAD_LENGTH)),
        (ONE[:8] + b"\x03" + ONE[9:], (0, BAD_CHECKSUM)),
        (ONE + make_record(255, 0, 0, b"") + ONE, (24, END_RECORD)),
    ],
)
def test_why_it_stops(data: bytes, expected: tuple[int, int]) -> None:
    assert verify(data) == expected


def test_a_position_behind_the_end_is_the_end() -> None:
    assert verify(ONE, position=48, end=24) == (48, END_OF_RANGE)


@given(
    st.lists(
        st.tuples(st.integers(0, 255), st.integers(0, (1 << 32) - 1), st.binary(max_size=90)), max_size=8
    ),
    st.integers(0, 300),
    st.integers(LOG_START, 400),
)
def test_append(parts: list[tuple[int, int, bytes]], staging_bytes: int, segment_end: int) -> None:
    pair = Pair(Sizes(staging_bytes=staging_bytes))
    pair.set(segment_end=segment_end)
    for record_type, aux, payload in parts:
        position = pair.call("log_append", record_type, aux, payload)
        assert position == -1 or position % 8 == 0
    staged = pair.twin.staging[: pair.twin.staging_bytes].tobytes()
    stop, _ = verify(staged)
    assert stop == len(staged) or staged[stop + 8] == 255


def replay(pair: Pair, end: int) -> list[int]:
    """Replays to ``end`` as recovery does, passing over what is not a message; returns why it stopped each time."""
    position, results = LOG_START, []
    while position < end:
        result, position, _ = pair.call("replay", position, end)
        results.append(result)
        if result != OTHER_RECORD:
            break
        (size,) = struct.unpack_from("<I", pair.twin.log[position + 4 : position + 8].tobytes())
        position += max(16, padded(size))
    return results


small_messages = st.builds(
    message,
    st.integers(0, 12),
    key=st.sampled_from([b"", b"a", b"key"]),
    headers=st.sampled_from([b"", b"h"]),
    body=st.binary(max_size=20),
    topic_id=st.sampled_from([1, 1, 2, 0, 3, 4, (1 << 32) - 1]),
    flags=st.integers(0, 255),
)


@st.composite
def lying_messages(draw: st.DrawFn) -> bytes:
    """A message whose checksum is right and whose numbers are not."""
    record = bytearray(draw(small_messages))
    place, numbers = (
        draw(st.sampled_from([(16, "<Q"), (40, "<H"), (42, "<H"), (44, "<I")])),
        [0, 1, 49, 0xFFFF],
    )
    struct.pack_into(place[1], record, place[0], draw(st.sampled_from(numbers)))
    _, size, kind, flags, _, aux = twin.HEAD.unpack_from(record)
    return make_record(kind, flags, aux, bytes(record[16:size]))


@given(st.lists(st.one_of(small_messages, small_messages, lying_messages(), records), max_size=8), st.data())
def test_replay(parts: list[bytes], data: st.DataObject) -> None:
    pair = Pair(Sizes(rows=10, log_bytes=2_048))
    for record in parts:
        append_record(pair, record)
    end = pair.twin.log_readable
    pair.set(staging_position=1 << 40)
    replay(pair, end - data.draw(st.integers(0, min(end - LOG_START, 20))))


def replayed(*parts: bytes) -> tuple[Any, list[int]]:
    pair = Pair(Sizes(rows=10, log_bytes=LOG_START + sum(padded(len(part)) for part in parts)))
    for part in parts:
        append_record(pair, part)
    end = pair.twin.log_readable
    pair.set(staging_position=1 << 40)
    return pair, replay(pair, end)


def test_replay_fills_the_rows() -> None:
    pair, results = replayed(message(1, b"key", b"h", b"body"), message(2, topic_id=2, flags=255))
    assert results == [REPLAYED]
    assert pair.twin.next_id == 3
    assert pair.native.rows["priority"][1:3].tolist() == [50, 255]
    assert pair.native.topics["messages"].tolist() == [0, 1, 1, 0]


def test_replay_takes_numbers_in_any_order() -> None:
    """A bulk job's numbers were set aside before those of messages that stand ahead of it in the log."""
    pair, results = replayed(message(5), message(2))
    assert results == [REPLAYED]
    assert (pair.twin.first_id, pair.twin.next_id) == (1, 6)


@pytest.mark.parametrize(
    ("record", "result"),
    [
        (message(10), NEED_ROWS),
        (message((1 << 40) - 1), NEED_ROWS),
        (message(1 << 40), NONSENSE),
        (message((1 << 64) - 1), NONSENSE),
        (message(0), NONSENSE),
        (message(1, topic_id=3), NONSENSE),
        (message(1, topic_id=1 << 31), NONSENSE),
        (make_record(1, 0, 1, MESSAGE.pack(1, 0, 0, 0, 0, 1)), NONSENSE),
        (make_record(1, 0, 1, MESSAGE.pack(1, 0, 0, 0, 0, (1 << 32) - 1)), NONSENSE),
        (make_record(1, 0, 1, b"short"), NONSENSE),
    ],
)
def test_replay_refuses_what_makes_no_sense(record: bytes, result: int) -> None:
    assert replayed(record)[1] == [result]


def test_replay_refuses_a_message_that_the_end_cuts() -> None:
    record = message(1, b"key", body=b"x" * 21)
    for missing in range(1, len(record)):
        pair = Pair(Sizes(rows=10, log_bytes=LOG_START + len(record) - missing))
        for side in pair.sides:
            side.log[LOG_START:] = np.frombuffer(record[:-missing], np.uint8)
        pair.set(staging_position=1 << 40, log_readable=len(pair.twin.log))
        is_empty = len(record) - missing < 16
        result = pair.call("replay", LOG_START, len(pair.twin.log))[0]
        assert result == (REPLAYED if is_empty else NONSENSE)


@pytest.mark.parametrize("missing", range(1, 8))
def test_replay_ends_inside_the_padding_of_the_last_record(missing: int) -> None:
    """The log is cut behind a record that ends eight bytes before its padding does; nothing behind it is read."""
    pair = Pair(Sizes(rows=10, log_bytes=LOG_START + 56 - missing))
    record = message(1, body=b"x" * (8 - missing))
    for side in pair.sides:
        side.log[LOG_START:] = np.frombuffer(record, np.uint8)
    pair.set(staging_position=1 << 40, log_readable=len(pair.twin.log))
    assert pair.call("replay", LOG_START, len(pair.twin.log))[0] == REPLAYED
