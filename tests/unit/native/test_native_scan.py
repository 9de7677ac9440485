"""C and twin find the same records of a log, stop at the same damage, and copy the same pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.native.native_store import Outputs, pointer
from tests.twins import scan as twin
from tests.twins.log import BAD_CHECKSUM, BAD_LENGTH, END_OF_RANGE, END_RECORD, MESSAGE, ZEROS, make_record
from tests.twins.store import padded
from tickwheel_native import ffi, lib

ALL = [1] * 256


def scan(
    data: bytes, position: int = 0, wanted: list[int] = ALL, capacity: int = 100
) -> tuple[int, int, list[int]]:
    """What C says of a log of exactly these bytes; its twin says the same."""
    with Outputs() as out:
        positions, found = out.array(capacity, np.uint64), ffi.new("uint64_t *")
        reason = ffi.new("int32_t *")
        stop = lib.tw_log_scan(
            out.bytes(data), position, len(data), bytes(wanted), capacity,
            pointer(positions, "uint64_t *"), found, reason,
        )  # fmt: skip
        result = int(stop), int(reason[0]), positions[: found[0]].tolist()
    assert result == twin.log_scan(data, position, len(data), wanted, capacity)
    return result


def records(*types: int, payload: bytes = b"twelve bytes") -> bytes:
    return b"".join(
        (record := make_record(kind, 0, 7, payload)).ljust(padded(len(record)), b"\0") for kind in types
    )


def test_it_finds_what_is_wanted_and_nothing_else() -> None:
    data = records(1, 3, 1, 4, 20)
    assert scan(data) == (160, END_OF_RANGE, [0, 32, 64, 96, 128])
    assert scan(data, wanted=[kind in (3, 20) for kind in range(256)]) == (160, END_OF_RANGE, [32, 128])
    assert scan(data, position=64, wanted=[kind == 1 for kind in range(256)]) == (160, END_OF_RANGE, [64])


def test_it_stops_where_its_room_ends_and_goes_on_from_there() -> None:
    data = records(1, 3, 1, 4)
    stop, reason, found = scan(data, wanted=[kind in (1, 4) for kind in range(256)], capacity=2)
    assert (reason, found) == (twin.FULL, [0, 64])
    assert scan(data, position=stop) == (128, END_OF_RANGE, [96])
    assert scan(data, capacity=4) == (128, END_OF_RANGE, [0, 32, 64, 96])


def test_it_stops_at_the_end_and_at_damage() -> None:
    good = records(1, 3)
    damaged = bytearray(records(1, 3, 4))
    damaged[50] ^= 1
    assert scan(good + bytes(32)) == (64, ZEROS, [0, 32])
    assert scan(good + records(255, 1)) == (64, END_RECORD, [0, 32])
    assert scan(bytes(damaged)) == (32, BAD_CHECKSUM, [0])
    assert scan(good[:60]) == (32, BAD_LENGTH, [0])
    assert scan(good[:40]) == (32, END_OF_RANGE, [0])


@given(st.data())
def test_c_and_twin_agree_about_any_bytes(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from([1, 3, 20, 255]), max_size=6))
    log = bytearray(records(*kinds, payload=data.draw(st.binary(max_size=30))))
    for place in data.draw(st.lists(st.integers(0, max(0, len(log) - 1)), max_size=2)):
        if log:
            log[place] ^= data.draw(st.integers(1, 255))
    wanted = [kind in (1, 20) for kind in range(256)]
    scan(
        bytes(log[: data.draw(st.integers(0, len(log)))]),
        wanted=wanted,
        capacity=data.draw(st.integers(0, 3)),
    )


@given(st.binary(min_size=1, max_size=200), st.data())
def test_pieces_are_copied_one_behind_the_other(log: bytes, data: st.DataObject) -> None:
    starts = data.draw(st.lists(st.integers(0, len(log)), max_size=8))
    sizes = [data.draw(st.integers(0, len(log) - start)) for start in starts]
    with Outputs() as out:
        copied = out.array(sum(sizes), np.uint8)
        lib.tw_gather(
            out.bytes(log), out.input(starts, np.uint64, "uint64_t *"), out.input(sizes, np.uint64, "uint64_t *"),
            len(starts), pointer(copied, "uint8_t *"),
        )  # fmt: skip
        assert copied.tobytes() == twin.gather(log, starts, sizes)


def test_nothing_is_copied_of_no_pieces() -> None:
    with Outputs() as out:
        lib.tw_gather(out.bytes(b"x"), ffi.NULL, ffi.NULL, 0, ffi.NULL)
    assert twin.gather(b"x", [], []) == b""


@pytest.mark.parametrize("capacity", [0, 1])
def test_a_scan_without_room_says_so(capacity: int) -> None:
    assert scan(records(1, 1), capacity=capacity)[1] == twin.FULL


@given(st.lists(st.binary(max_size=30), max_size=6), st.data())
def test_checksums_are_looked_at(payloads: list[bytes], data: st.DataObject) -> None:
    made = [make_record(1, 0, 7, payload) for payload in payloads]
    starts = np.cumsum([0, *(padded(len(record)) for record in made)])[: len(made)].tolist()
    log = bytearray(b"".join(record.ljust(padded(len(record)), b"\0") for record in made))
    sizes = [len(record) for record in made]
    hit = data.draw(st.integers(0, len(log) - 1)) if log and data.draw(st.booleans()) else None
    if hit is not None:
        log[hit] ^= data.draw(st.integers(1, 255))
    with Outputs() as out:
        right = out.array(len(made), np.uint8)
        lib.tw_check_records(
            out.bytes(bytes(log)), out.input(starts, np.uint64, "uint64_t *"),
            out.input(sizes, np.uint64, "uint64_t *"), len(made), pointer(right, "uint8_t *"),
        )  # fmt: skip
        found = right.astype(bool).tolist()
    assert found == twin.check_records(log, starts, sizes)
    wrong = [start <= hit < start + size for start, size in zip(starts, sizes, strict=True)] if hit else None
    assert wrong is None or found == [not one for one in wrong]


@given(st.lists(st.tuples(*[st.binary(max_size=5)] * 4), max_size=12), st.data())
def test_parts_of_messages_are_measured(messages: list[tuple[bytes, ...]], data: st.DataObject) -> None:
    made = []
    for number, (key, headers, order, body) in enumerate(messages, 1):
        payload = MESSAGE.pack(number, 5, 6, len(key), len(headers), len(body)) + key + headers + order + body
        made.append(make_record(1, 0, 7, payload, len(order)))
    positions = np.cumsum([0, *(padded(len(record)) for record in made)])[: len(made)].tolist()
    log = bytearray(b"".join(record.ljust(padded(len(record)), b"\0") for record in made))
    ids, sizes = list(range(1, len(made) + 1)), [len(record) for record in made]
    hit = data.draw(st.integers(0, len(log) - 1)) if log and data.draw(st.booleans()) else None
    if hit is not None:
        log[hit] ^= data.draw(st.integers(1, 255))
    skipped = data.draw(st.integers(0, len(made))) if hit is None else 0
    sizes[:skipped] = [0] * skipped
    with Outputs() as out:
        whole, lengths = out.array(len(made), np.uint8), out.array(4 * len(made), np.int64)
        lib.tw_message_parts(
            out.bytes(bytes(log)), *(out.input(one, np.uint64, "uint64_t *") for one in (ids, positions, sizes)),
            len(made), pointer(whole, "uint8_t *"), pointer(lengths, "int64_t *"),
        )  # fmt: skip
        is_whole, found = (
            whole.astype(bool).tolist(),
            list(zip(*lengths.reshape(4, -1).tolist(), strict=True)),
        )
    assert (is_whole, found) == twin.message_parts(log, ids, positions, sizes)
    if hit is None:
        assert is_whole == [size > 0 for size in sizes]
        assert found[skipped:] == [(len(k), len(h), len(o), len(b)) for k, h, o, b in messages[skipped:]]
