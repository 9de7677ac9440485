"""A program that runs seeds of the simulator and prints what came of each, for `test_repeatable.py`.

`disturbed` changes all that must not matter: clocks of the system jump ahead, objects lie at other addresses, garbage
is collected at other times, and each seed is run after other ones.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

_CLOCKS = ("monotonic", "perf_counter", "time")
_MOST_JUNK = 3_000


def main(how: str, hours: str, *seeds: str) -> None:
    """A seed ends with `c` for a cluster, or with `r` for clients of RocketMQ."""
    is_disturbed = how == "disturbed"
    if is_disturbed:
        _disturb(Random(how))
    from tickwheel_simulation.run import (
        run_seed,
    )  # after clocks have changed: modules take them when they are loaded

    outcomes: dict[str, list[object]] = {}
    for seed in reversed(seeds) if is_disturbed else seeds:
        report = run_seed(
            int(seed.rstrip("cr")),
            float(hours),
            is_cluster=seed.endswith("c"),
            has_gateway=seed.endswith("r"),
        )
        assert report.counts["leases"]
        outcomes[seed] = [report.violation, report.trace_hash, report.state_hash, report.counts]
    print(json.dumps(outcomes))


def _disturb(rng: Random) -> None:
    for name in _CLOCKS:
        now_ns = _jumping(rng, getattr(time, f"{name}_ns"))
        setattr(time, f"{name}_ns", now_ns)
        setattr(time, name, _in_seconds(now_ns))
    gc.set_threshold(200, 3, 3)

    import trio

    class Litter(trio.abc.Instrument):
        """Takes memory between the turns of tasks, and gives back some of it."""

        def __init__(self) -> None:
            self._junk: list[object] = []

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            if rng.random() < 0.3:
                is_small = rng.random() < 0.5
                made = [object() for _ in range(rng.randrange(8))] if is_small else bytes(rng.randrange(500))
                self._junk.append(made)
            if len(self._junk) > _MOST_JUNK:
                rng.shuffle(self._junk)
                del self._junk[rng.randrange(_MOST_JUNK) :]

    run = trio.run

    def littered(*args: Any, instruments: Any = (), **options: Any) -> Any:
        return run(*args, instruments=[Litter(), *instruments], **options)

    trio.run = littered


def _jumping(rng: Random, true_ns: Callable[[], int]) -> Callable[[], int]:
    ahead_ns = 0

    def now_ns() -> int:
        nonlocal ahead_ns
        if rng.random() < 0.1:
            ahead_ns += rng.randrange(3_000_000_000)
        return true_ns() + ahead_ns

    return now_ns


def _in_seconds(now_ns: Callable[[], int]) -> Callable[[], float]:
    return lambda: now_ns() / 1_000_000_000


if __name__ == "__main__":
    main(*sys.argv[1:])
