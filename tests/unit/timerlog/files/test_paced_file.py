"""Files that are written at the pace of the disk."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tickwheel_native import memory
from timerlog.files.paced_file import PacedFile

MIB = 1 << 20
_CACHESTAT = 451
"""A system call of Linux 6.5."""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writing", "evicted", "recent"))


def waiting_bytes(fd: int) -> int:
    """How much of a file is in memory and not on the disk. Skips where that cannot be asked."""
    pages = _Pages()
    asked = ctypes.CDLL(None, use_errno=True).syscall(
        _CACHESTAT, fd, ctypes.byref(_Range(0, 0)), ctypes.byref(pages), 0
    )
    if asked < 0:
        pytest.skip("cachestat is not there: Linux 6.5 has it")
    return int(pages.dirty + pages.writing) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_everything_is_written_in_its_order(fd: int, tmp_path: Path) -> None:
    pieces = [bytes([number]) * size for number, size in enumerate([1, 4_096, 3 * MIB, 0, MIB - 1, 9 * MIB])]
    paced = PacedFile(fd)
    for piece in pieces:
        paced.write(memoryview(piece) if len(piece) % 2 else piece)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_each_byte_is_begun_once(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And waited for when the file is a few MiB further."""
    begun: list[tuple[int, int, int, int]] = []
    monkeypatch.setattr(memory, "keep_pace", lambda *asked: begun.append(asked) or 0)
    paced = PacedFile(fd)
    for size in (MIB - 1, 1, 5, MIB, 2 * MIB, 7):
        paced.write(bytes(size))
    ends = [MIB, 2 * MIB + 5, 4 * MIB + 5]
    starts = [0, *ends[:-1]]
    assert begun == [(fd, start, end, 4 * MIB) for start, end in zip(starts, ends, strict=True)]


def test_what_the_disk_says_is_told(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not say it again at the next sync."""
    paced = PacedFile(fd)
    paced.write(bytes(MIB))
    monkeypatch.setattr(memory, "keep_pace", lambda *_: -errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
        paced.write(bytes(MIB))
    assert caught.value.errno == errno.EIO


def test_little_waits_for_the_disk(on_disk: Path) -> None:
    with open(on_disk / "file", "xb", buffering=0) as file:
        paced = PacedFile(file.fileno())
        for _ in range(32):
            paced.write(os.urandom(MIB))
            assert waiting_bytes(file.fileno()) <= 6 * MIB


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, MIB), (3 * MIB, 20 * MIB), (1 << 40, 1 << 41)])
def test_ranges_that_are_not_there(fd: int, start: int, end: int) -> None:
    os.write(fd, bytes(8 * MIB))
    assert memory.keep_pace(fd, start, end, 4 * MIB) == 0


def test_a_file_that_cannot_be_synced_loses_its_pace_alone() -> None:
    reader, writer = os.pipe()
    try:
        assert memory.keep_pace(writer, 0, MIB, 0) == 0
    finally:
        os.close(reader)
        os.close(writer)
