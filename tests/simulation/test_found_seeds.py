"""Seeds that found something: `found.txt` has them with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.seeds import WORLDS, World, keeps_every_promise

FOUND = Path(__file__).with_name("found.txt")


def found() -> list[tuple[int, World, str]]:
    """Seed, world and reason of each line."""
    lines = [line for line in FOUND.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    read = []
    for line in lines:
        seed, name, hours, reason = line.split(maxsplit=3)
        read.append((int(seed), replace(WORLDS[name], hours=float(hours)), reason))
    return read


@pytest.mark.parametrize(
    ("seed", "world", "reason"), found(), ids=lambda given: str(given) if isinstance(given, int) else ""
)
def test_a_seed_that_found_something(seed: int, world: World, reason: str) -> None:
    keeps_every_promise(seed, world)
