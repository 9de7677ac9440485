"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from tickwheel_native import lib


def describe(directory: Path) -> dict[str, Any]:
    """Processor, memory, versions, and how fast fdatasync is in ``directory``."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "crc32c_in_hardware": bool(lib.tw_crc32c_is_hardware()),
        "load_before": os.getloadavg()[0],
        "fdatasync_4k_ms_median": fdatasync_ms(directory, 4096),
        "fdatasync_64k_ms_median": fdatasync_ms(directory, 65536),
        "commit": _commit(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def fdatasync_ms(directory: Path, size: int, rounds: int = 200) -> float:
    """The median of one after so many bytes, in a file that has its space."""
    path = directory / "fdatasync.probe"
    times = []
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, size * rounds)
        for index in range(rounds):
            os.pwrite(fd, bytes(size), index * size)
            start = time.perf_counter()
            os.fdatasync(fd)
            times.append(time.perf_counter() - start)
    finally:
        os.close(fd)
        path.unlink()
    return round(sorted(times)[rounds // 2] * 1e3, 3)


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"
