"""The lanes of `make test`, which run one after the other.

Tests that start no program keep a core busy for two thirds of their time, so the first lane has one process more than
there are cores. Tests that start programs come next: half of their time they wait for a lease, a clock or a program, so
the second lane has two processes for each core. Tests that judge times, or need what other tests take (descriptors, a
disk), run last, and one at a time.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from tests.support.run.profile import PROCESSES

FUNCTIONS, PROGRAMS, ALONE = "functions", "programs", "alone"
LANES: Final = (FUNCTIONS, PROGRAMS, ALONE)


def processes(lane: str, cores: int) -> int:
    """How many processes of pytest a lane has beside the first; 0: the first runs the tests itself."""
    return {FUNCTIONS: cores + 1, PROGRAMS: 2 * cores, ALONE: 0}[lane]


def may_hold(file: str, path: Path, lane: str | None) -> bool:
    """Whether a lane may hold a test of this file, by its place and its text; no lane: all."""
    if lane is None or not path.name.startswith("test_"):
        return True
    if lane == ALONE:
        return f"pytest.mark.{ALONE}" in path.read_text(encoding="utf-8")
    return (lane == FUNCTIONS) != file.startswith(PROCESSES)


def holds(node: str, marks: Collection[str], lane: str | None) -> bool:
    """Whether a lane holds the test of this id with markers of these names; no lane: all."""
    if lane is None:
        return True
    if ALONE in marks:
        return lane == ALONE
    return lane == (PROGRAMS if node.startswith(PROCESSES) else FUNCTIONS)
