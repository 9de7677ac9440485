"""A tmpfs without a free block whose tables have holes: there, to read a hole takes a block, and none is left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores.small_disk import small_tmpfs

TMPFS_BYTES = 20 << 20
PATIENCE_S = 60


def run(step: str, directory: Path) -> None:
    command = [sys.executable, "-m", "tests.support.stores.holes", step, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_tmpfs(tmp_path_factory.mktemp("holes") / "disk", TMPFS_BYTES) as path:
        run("make", path)
        yield path


@pytest.mark.promise("a-full-disk")
@pytest.mark.parametrize("step", ["use", "inspect"])
def test_a_full_disk_is_read_and_changed_in_spite_of_holes(disk: Path, step: str) -> None:
    table = disk / "data" / "messages.table"
    before = table.stat().st_blocks
    assert before * 512 < table.stat().st_size * 3 // 4
    run(step, disk)
    assert table.stat().st_blocks == before, "holes were filled by looking at them"
