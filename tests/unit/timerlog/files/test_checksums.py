"""Checksums of the derived files: what is read of them, and that it makes no difference to what they are."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from tickwheel_native import crc32c
from timerlog.files import checksums
from timerlog.files.checksums import BLOCK_BYTES, table_sum
from timerlog.files.window import PAGE_BYTES

MASK = (1 << 64) - 1


def as_recorded(data: bytes) -> int:
    """What checkpoints say of a file since there are some: each block filled up with zeros."""
    total = 0
    for number in range(-(-len(data) // BLOCK_BYTES)):
        block = data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES].ljust(BLOCK_BYTES, b"\0")
        if any(block):
            checksum = crc32c(block)
            total += crc32c(struct.pack("<QI", number, checksum)) << 32 | checksum
    return total & MASK


@pytest.mark.parametrize(
    "written",
    [
        pytest.param([], id="nothing"),
        pytest.param([(0, 1)], id="the first page"),
        pytest.param([(0, 256)], id="a whole block"),
        pytest.param([(3, 2), (100, 1)], id="pages with a hole between"),
        pytest.param([(0, 1), (300, 5), (511, 1)], id="the end of a block"),
        pytest.param([(255, 2)], id="across two blocks"),
        pytest.param([(600, 17)], id="a cut last block"),
    ],
)
def test_a_file_with_holes_has_the_sum_of_its_bytes(tmp_path: Path, written: list[tuple[int, int]]) -> None:
    size_bytes, path, draw = 617 * PAGE_BYTES, tmp_path / "table", random.Random(7)
    with path.open("wb") as file:
        os.ftruncate(file.fileno(), size_bytes)
        for page, count in written:
            os.pwrite(file.fileno(), draw.randbytes(count * PAGE_BYTES), page * PAGE_BYTES)
    data = path.read_bytes()
    assert table_sum(path, size_bytes) == as_recorded(data)
    copied = tmp_path / "copied"
    copied.write_bytes(data)  # without holes
    assert table_sum(copied, size_bytes) == as_recorded(data)


def test_of_a_table_that_is_nearly_empty_little_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes = 0
    pread = os.pread

    def counted(fd: int, count: int, offset: int) -> bytes:
        nonlocal read_bytes
        read_bytes += count
        return pread(fd, count, offset)

    path = tmp_path / "table"
    with path.open("wb") as file:
        os.ftruncate(file.fileno(), 64 << 10)
        os.pwrite(file.fileno(), b"head", 0)
    monkeypatch.setattr(checksums.os, "pread", counted)
    table_sum(path, 64 << 10)
    assert read_bytes <= 64 << 10
