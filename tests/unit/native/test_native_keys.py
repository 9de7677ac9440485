"""The key index finds what was put in, loses what was taken out, and keeps to its tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.native_frames import KEYS, Item, SendFrame
from tests.support.native.native_pair import EMPTY_INDEX_BYTES, Pair, Sizes
from tests.support.native.native_store import Outputs
from tests.twins.keys import key_hash
from tickwheel_native import lib


@given(st.integers(0, (1 << 32) - 1), st.binary(max_size=300))
def test_hash(topic_id: int, key: bytes) -> None:
    with Outputs() as out:
        found = lib.tw_key_hash(topic_id, out.bytes(key), len(key))
    assert found == key_hash(topic_id, key)
    assert 0 < found < 1 << 32


def key_in(partition: int, slot: int, start: int, mask: int = 63) -> tuple[bytes, int]:
    """A key of topic 1 whose home is this place of this partition, counted on from ``start``."""
    while True:
        key = b"%x" % start
        start += 1
        if key_hash(1, key) >> 22 == partition and (slot < 0 or key_hash(1, key) & mask == slot):
            return key, start


def keys_of(partition: int, count: int) -> list[bytes]:
    found, at = [], 0
    while len(found) < count:
        key, at = key_in(partition, -1, at)
        found.append(key)
    return found


CROWD = keys_of(7, 60)
SIZES = Sizes(rows=200, keys_bytes=EMPTY_INDEX_BYTES + 1_024, log_bytes=65_536)


def send_key(pair: Pair, key: bytes) -> None:
    assert pair.ingest(SendFrame(items=[Item(b"x", key)], columns=KEYS).encode()).frames == 1
    pair.flush()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 46)), max_size=60))
def test_one_crowded_partition(operations: list[tuple[bool, int]]) -> None:
    """Sends and cancels around one partition: entries that were pushed aside are still found."""
    pair = Pair(SIZES)
    ids: dict[bytes, int] = {}
    for is_send, number in operations:
        key = CROWD[number]
        if is_send and key not in ids:
            ids[key] = pair.twin.next_id
            send_key(pair, key)
        elif not is_send and key in ids:
            message_id = ids.pop(key)
            assert pair.call("remove", message_id) == 1
            assert pair.call("remove", message_id) == 0
    assert [pair.call("find", 1, key) for key in CROWD[:47]] == [ids.get(key, 0) for key in CROWD[:47]]


def test_a_cluster_over_the_end_of_the_table_closes_up() -> None:
    keys, at = [], 0
    for slot in (62, 63, 62, 63, 0, 62, 1):
        key, at = key_in(11, slot, at)
        keys.append(key)
    for gone in range(len(keys)):
        pair = Pair(SIZES)
        for key in keys:
            send_key(pair, key)
        assert pair.call("remove", gone + 1) == 1
        expected = [0 if i == gone else i + 1 for i in range(len(keys))]
        assert [pair.call("find", 1, key) for key in keys] == expected


def test_growing_keeps_every_entry() -> None:
    pair = Pair(SIZES)
    for key in CROWD[:48]:
        send_key(pair, key)
    assert pair.call("bytes_to_grow", 7) == EMPTY_INDEX_BYTES + 1_024
    assert pair.call("grow", 7) == (0, 20_480 + 7 * 512, 512)
    for key in CROWD[48:]:
        send_key(pair, key)
    assert [pair.call("find", 1, key) for key in CROWD] == list(range(1, 61))
    assert pair.call("count") == 60


def test_growing_beyond_the_file_is_refused() -> None:
    pair = Pair(Sizes(keys_bytes=EMPTY_INDEX_BYTES + 1_023))
    assert pair.call("grow", 0) == (-1, 0, 0)


@pytest.mark.parametrize("size", [256, 65_535, 65_536, 65_536 + 3, 100_000])
def test_a_key_of_any_length_may_be_looked_for(size: int) -> None:
    pair = Pair(SIZES)
    send_key(pair, b"xxx")
    assert pair.call("find", 1, b"x" * size) == 0


def test_a_key_is_not_read_beyond_its_record() -> None:
    """A damaged record claims a longer key than it has room for, at the end of the log."""
    pair = Pair(Sizes(log_bytes=64 + 56, message_limit=10_000))
    pair.ingest(SendFrame(items=[Item(b"12345", b"abc")], columns=KEYS).encode())
    pair.flush()
    wanted = b"abc" + b"x" * 60
    for side in pair.sides:
        side.log[64 + 40 : 64 + 42] = np.frombuffer(len(wanted).to_bytes(2, "little"), np.uint8)
    for side in pair.sides:
        side.rows[1]["key_hash"] = key_hash(1, wanted)
    table = pair.native.keys[20_480 : pair.twin.keys.end].view(np.uint64)
    table[(key_hash(1, wanted) >> 22) * 64 : ((key_hash(1, wanted) >> 22) + 1) * 64] = (
        1 << 24 | key_hash(1, wanted) >> 4 & 0xFFFFFF
    )
    assert pair.native.find(1, wanted) == 0


def test_a_damaged_table_is_searched_to_an_end() -> None:
    """Every place is taken by an entry of a message that does not exist."""
    pair = Pair(SIZES)
    send_key(pair, CROWD[0])
    offset = 20_480 + 7 * 512
    table = pair.native.keys[offset : offset + 512].view(np.uint64)
    table[table == 0] = (1 << 39) << 24 | key_hash(1, CROWD[1]) >> 4 & 0xFFFFFF
    assert pair.native.find(1, CROWD[1]) == 0
    assert pair.native.find(1, CROWD[0]) == 1
    assert pair.native.remove(1) == 1
    assert pair.native.find(1, CROWD[0]) == 0
