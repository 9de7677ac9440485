"""A folder on a disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def is_memory(directory: Path) -> bool:
    """Whether it lies on a file system without a disk, as /tmp does on some machines: pages stay dirty there."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    kinds = {Path(words[1]): words[2] for words in mounts}
    kind = next(
        (kinds[one] for one in (directory, *directory.parents) if one in kinds), ""
    )  # none in a chroot
    return kind in ("tmpfs", "ramfs")


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder for temporary files that outlive a start of the machine: `tmp_path` may be in memory."""
    with tempfile.TemporaryDirectory(prefix="tickwheel-", dir="/var/tmp") as name:
        if is_memory(Path(name).resolve()):
            pytest.skip("/var/tmp is in memory here, where nothing is ever written back")
        yield Path(name)
