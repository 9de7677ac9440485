"""The simulator with many seeds of a cluster; part 2 of three."""

from __future__ import annotations

from tests.simulation.seeds import check, cluster_part


@cluster_part(2)
def test_every_promise_is_kept_in_a_cluster(seed: int) -> None:
    check(seed, is_cluster=True)
