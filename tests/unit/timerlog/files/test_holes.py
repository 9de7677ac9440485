"""Holes of files on tmpfs (an unlinked file in memory is one): reading takes nothing, and pages come back if wanted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.support.stores.small_disk import small_tmpfs
from timerlog.errors import DiskFull
from timerlog.files import holes
from timerlog.files.holes import Holes
from timerlog.files.mapped_file import Region
from timerlog.files.window import PAGE_BYTES

PAGES = 64


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region(path=None, room_bytes=1 << 20)
    made.ensure(PAGES * PAGE_BYTES)
    made.array(np.uint8, 0, PAGES * PAGE_BYTES)[:] = 7
    yield made
    made.close()


def pages_of(region: Region) -> list[int]:
    """The first byte of each page."""
    return region.array(np.uint8, 0, PAGES * PAGE_BYTES)[::PAGE_BYTES].tolist()


def test_to_read_what_was_freed_takes_nothing(region: Region) -> None:
    region.free(8 * PAGE_BYTES, 16 * PAGE_BYTES)
    region.free(20 * PAGE_BYTES, 21 * PAGE_BYTES)
    before = region.disk_bytes()
    assert pages_of(region) == [7] * 8 + [0] * 8 + [7] * 4 + [0] + [7] * (PAGES - 21)
    assert region.disk_bytes() == before == (PAGES - 9) * PAGE_BYTES


def test_what_is_filled_again_is_the_file_again(region: Region) -> None:
    region.free(8 * PAGE_BYTES, 16 * PAGE_BYTES)
    region.refill(10 * PAGE_BYTES + 5, 12 * PAGE_BYTES - 5)
    region.array(np.uint8, 0, PAGES * PAGE_BYTES)[10 * PAGE_BYTES : 12 * PAGE_BYTES] = 9
    assert pages_of(region)[8:16] == [0, 0, 9, 9, 0, 0, 0, 0]
    assert region.disk_bytes() == (PAGES - 6) * PAGE_BYTES
    assert os.pread(region._memory_fd, 1, 10 * PAGE_BYTES) == b"\x09", "what is written is in the file"


def test_more_pieces_than_there_may_be_keep_their_space(region: Region) -> None:
    with mock.patch.object(holes, "MOST_PIECES", Holes._pieces_in_all + 2):
        for page in (2, 4, 6, 8):
            region.free(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
        region.free(5 * PAGE_BYTES, 6 * PAGE_BYTES)  # at the edge of another one: no further piece
    assert region.disk_bytes() == (PAGES - 3) * PAGE_BYTES
    pieces = Holes._pieces_in_all
    region.close()
    assert Holes._pieces_in_all == pieces - 2


def test_a_full_disk_that_is_opened_again(tmp_path: Path) -> None:
    """What was punched, or never had a block, is told from what has blocks and was never written."""
    with small_tmpfs(tmp_path / "disk", 1 << 20) as disk:
        first = Region(path=disk / "table", room_bytes=8 << 20)
        first.start_at(5 * PAGE_BYTES)
        first.ensure(40 * PAGE_BYTES)
        first.array(np.uint8, 0, 40 * PAGE_BYTES)[10 * PAGE_BYTES : 20 * PAGE_BYTES] = 7
        first.free(12 * PAGE_BYTES, 14 * PAGE_BYTES)
        first.close()
        with open(disk / "filler", "wb", buffering=0) as filler:
            os.posix_fallocate(filler.fileno(), 0, os.statvfs(disk).f_bavail * PAGE_BYTES)
        again = Region(path=disk / "table", room_bytes=8 << 20)
        blocks = again.disk_bytes()
        items = again.array(np.uint8, 0, 40 * PAGE_BYTES)
        assert items[::PAGE_BYTES].tolist() == [0] * 10 + [7, 7, 0, 0] + [7] * 6 + [0] * 20
        items[5 * PAGE_BYTES : 10 * PAGE_BYTES] = 3  # it has blocks, and no free one is needed
        items[20 * PAGE_BYTES :] = 3
        with pytest.raises(DiskFull):
            again.refill(12 * PAGE_BYTES, 14 * PAGE_BYTES)
        assert again.disk_bytes() == blocks
        again.sync()
        again.close()
        assert (disk / "table").read_bytes()[39 * PAGE_BYTES] == 3
