"""``tickwheel serve`` on a disk that is slow: ``python -m tickwheel_bench.load.slow_disk MILLISECONDS serve …``.

Each fdatasync takes so much longer. It is slept where the system call would be, so all that waits for the disk waits.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import HasFileno


def slow_down(delay_s: float) -> None:
    """From now on, in this process."""
    sync = os.fdatasync

    def slowly(fd: int | HasFileno) -> None:
        time.sleep(delay_s)
        sync(fd)

    os.fdatasync = slowly


if __name__ == "__main__":
    slow_down(float(sys.argv.pop(1)) / 1_000)
    runpy.run_path(str(Path(sys.executable).with_name("tickwheel")), run_name="__main__")
