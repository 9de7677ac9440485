"""The simulator with many seeds; part 1 of four."""

from __future__ import annotations

from tests.simulation.seeds import check, part


@part(1)
def test_every_promise_is_kept(seed: int) -> None:
    check(seed)
