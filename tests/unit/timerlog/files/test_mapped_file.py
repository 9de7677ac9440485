"""A file as an array that grows in place."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tickwheel_native import memory
from timerlog.errors import DiskFull, StoreError
from timerlog.files import mapped_file as region_module
from timerlog.files.mapped_file import Region
from timerlog.files.window import PAGE_BYTES

MIB = 1024 * 1024


@pytest.mark.parametrize("named", [True, False])
def test_arrays_stay_valid_while_it_grows(tmp_path: Path, named: bool) -> None:
    region = Region(path=tmp_path / "file" if named else None, room_bytes=64 * MIB)
    region.ensure(10)
    array = region.array(np.uint64, 4096, 1 << 20)
    array[5] = 7
    region.ensure(9 * MIB)
    array[1_000_000] = 8
    assert (array[5], array[1_000_000], array[6]) == (7, 8, 0)
    assert region.allocated_bytes >= 9 * MIB
    assert region.disk_bytes() >= 9 * MIB
    region.free(4096, 8192)
    assert array[5] == 0
    assert array[1_000_000] == 8
    region.sync()
    region.close()
    region.close()


def test_what_a_region_leaves_is_released_as_it_grows(tmp_path: Path) -> None:
    """All at once takes as long as there are pages."""
    gone = [0]
    region = Region(path=tmp_path / "file", room_bytes=96 * MIB, lowest=lambda: gone[0])
    region.ensure(70 * MIB)
    region.array(np.uint8, 0, 70 * MIB)[::4096] = 7
    before = region.address
    gone[0] = 60 * MIB
    region.ensure(73 * MIB)
    assert region.address != before
    assert region.start == 60 * MIB
    assert region.array(np.uint8, 60 * MIB, 10 * MIB)[::4096].tolist() == [7] * 2_560
    assert [(left.end - left.start) for left in region._left] == [32 * MIB]
    region.ensure(82 * MIB)
    assert region._left == []
    gone[0] = 100 * MIB
    region.ensure(140 * MIB)
    assert region._left == [], "little was in it"
    region.close()


def test_a_hold_keeps_what_is_left(tmp_path: Path) -> None:
    region = Region(path=tmp_path / "file", room_bytes=4 * MIB, lowest=lambda: MIB)
    region.ensure(2 * MIB)
    array = region.array(np.uint8, 0, 2 * MIB)
    region.hold()
    region.ensure(12 * MIB)
    array[5] = 9
    assert region.start == 0, "nothing that was there is given up"
    assert region.array(np.uint8, 5, 1)[0] == 9
    region.let_go()
    region.ensure(30 * MIB)
    assert region._left == []
    assert region.start == MIB
    region.close()


def test_contents_survive(tmp_path: Path) -> None:
    region = Region(path=tmp_path / "file", room_bytes=64 * MIB)
    region.ensure(100)
    region.array(np.uint8, 0, 100)[:] = 42
    region.close()
    again = Region(path=tmp_path / "file", room_bytes=64 * MIB)
    assert again.array(np.uint8, 0, 100).tolist() == [42] * 100
    again.close()


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region = Region(path=tmp_path / "file", room_bytes=MIB)
    region.ensure(MIB)
    with pytest.raises(StoreError, match="cannot grow"):
        region.ensure(MIB + 1)
    region.close()
    small = Region(path=tmp_path / "other", room_bytes=MIB)
    small.ensure(100)
    before = small.allocated_bytes

    class FullDisk:
        def __getattr__(self, name: str) -> object:
            return (lambda *_: -28) if name == "allocate" else getattr(memory, name)

    monkeypatch.setattr(region_module, "memory", FullDisk())
    with pytest.raises(DiskFull):
        small.ensure(MIB)
    assert small.allocated_bytes == before
    monkeypatch.undo()
    small.ensure(MIB)
    small.close()


class _NoHoles:
    """Files of a file system that cannot punch holes."""

    def __init__(self, code: int) -> None:
        self._code = code

    def punch_hole(self, _fd: int, _start: int, _bytes: int) -> int:
        return -self._code

    def __getattr__(self, name: str) -> object:
        return getattr(memory, name)


def test_a_file_system_without_holes_keeps_the_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region = Region(path=tmp_path / "file", room_bytes=1 << 20)
    region.ensure(PAGE_BYTES)
    region.array("u1", 0, PAGE_BYTES)[:] = 7
    with monkeypatch.context() as patched:
        patched.setattr("timerlog.files.mapped_file.memory", _NoHoles(errno.EOPNOTSUPP))
        region.punch(0, PAGE_BYTES)
        assert (region.array("u1", 0, PAGE_BYTES) == 7).all()
        patched.setattr("timerlog.files.mapped_file.memory", _NoHoles(errno.EIO))
        with pytest.raises(OSError, match="freeing part of"):
            region.free(0, PAGE_BYTES)
    region.free(0, PAGE_BYTES)
    assert not region.array("u1", 0, PAGE_BYTES).any()
    region.close()


def dirty_kib(address: int) -> int:
    """Of the mapping that begins there."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{address:x}-"):
            break
    counts = (next(lines).split() for _ in range(16))
    return sum(int(words[1]) for words in counts if words[0] in ("Shared_Dirty:", "Private_Dirty:"))


def test_what_is_dirty_is_written_back(on_disk: Path) -> None:
    region = Region(path=on_disk / "file", room_bytes=8 * MIB)
    region.ensure(4 * MIB)
    region.array("u1", 0, 3 * MIB)[:] = 7
    assert dirty_kib(region.address) >= 3 * 1024
    region.write_back(0, 2 * MIB + 4096)
    assert dirty_kib(region.address) <= 1024
    assert (region.array("u1", 0, 3 * MIB) == 7).all()
    (on_disk / "file").unlink()
    region.write_back(0, 3 * MIB)
    region.close()


def test_memory_without_a_file_is_not_written_back() -> None:
    region = Region(path=None, room_bytes=MIB)
    region.ensure(PAGE_BYTES)
    region.write_back(0, PAGE_BYTES)
    region.close()


def test_to_write_back_promises_nothing(tmp_path: Path) -> None:
    """A broker whose clients have all open files goes on."""
    region = Region(path=tmp_path / "table", room_bytes=1 << 20)
    region.ensure(PAGE_BYTES)
    with mock.patch(
        "timerlog.files.mapped_file.os.open", side_effect=OSError(errno.EMFILE, "too many open files")
    ):
        region.write_back(0, PAGE_BYTES)
    region.close()
