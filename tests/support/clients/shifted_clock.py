"""A wall clock of one process that a test sets, by a library before libc: see `clock_shift.c`."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("clock_shift.c")


class ShiftedClock:
    """The daemon's clock: the real one, and what is added to it."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._shift = mmap.mmap(file.fileno(), 8)

    def set_by(self, shift_ms: int) -> None:
        """From now on it differs by so much from the real one."""
        self._shift[:] = struct.pack("<q", shift_ms * 1_000_000)

    def now_ms(self) -> int:
        """What the daemon reads now."""
        return (time.time_ns() + struct.unpack("<q", self._shift[:])[0]) // 1_000_000

    def close(self) -> None:
        self._shift.close()


def clock_library(folder: Path) -> Path:
    """For LD_PRELOAD. Skips the test where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    path = folder / "clock_shift.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", path, SOURCE, "-ldl", "-lpthread"],
        check=True,
    )
    return path
