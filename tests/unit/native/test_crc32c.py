"""CRC-32C: known values, and instruction, table and plain Python agree."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.twins import crc32c as twin
from tickwheel_native import crc32c, ffi, lib

# RFC 3720, appendix B.4.
KNOWN = [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
]
LANE_BYTES = 1024


def table(data: bytes, seed: int = 0) -> int:
    return int(lib.tw_crc32c_table(data, len(data), seed))


@pytest.mark.parametrize(("data", "expected"), KNOWN)
def test_known_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == table(data) == twin.crc32c(data) == expected


@given(st.binary(max_size=300), st.integers(0, 0xFFFFFFFF))
def test_twin_agrees(data: bytes, seed: int) -> None:
    assert crc32c(data, seed) == table(data, seed) == twin.crc32c(data, seed)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_continues_from_a_seed(head: bytes, tail: bytes) -> None:
    assert crc32c(tail, crc32c(head)) == crc32c(head + tail)


@pytest.mark.parametrize("lanes", [3, 6, 9])
@pytest.mark.parametrize("extra", [-1, 0, 1, 7, 8, 9])
def test_long_inputs_cross_lanes(lanes: int, extra: int) -> None:
    data = random.Random(lanes * 100 + extra).randbytes(lanes * LANE_BYTES + extra)
    assert crc32c(data) == table(data) == twin.crc32c(data)


@given(st.integers(0, 15), st.integers(0, 4 * LANE_BYTES))
def test_any_alignment(offset: int, size: int) -> None:
    data = random.Random(7).randbytes(offset + size)
    buffer = ffi.from_buffer("uint8_t[]", data)
    assert lib.tw_crc32c(buffer + offset, size, 0) == table(data[offset:])


@given(st.binary(min_size=1, max_size=200), st.data())
def test_every_flipped_bit_changes_it(data: bytes, draw: st.DataObject) -> None:
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    assert crc32c(flipped) != crc32c(data)


def test_takes_any_contiguous_buffer() -> None:
    data = b"tickwheel"
    assert crc32c(bytearray(data)) == crc32c(memoryview(data)) == crc32c(data)
    assert crc32c(memoryview(b"--tickwheel--")[2:-2]) == crc32c(data)
