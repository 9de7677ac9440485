"""The benchmarks: throughput, lateness, memory, restart, disk, and the timer wheel on its own.

``python -m tickwheel_bench`` (or ``make bench``, ``tickwheel bench``) runs them against a real broker in another
process, with the real SDK over loopback, and writes one JSON file a run. ``storage.wheel`` is the wheel.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmarks that ``argv`` names; returns an exit code."""
    from tickwheel_bench.command import bench

    return int(bench.main(args=list(argv or []), prog_name="tickwheel bench", standalone_mode=False) or 0)
