"""What processes cost: processor time of each of them, for each message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tickwheel_bench.daemon import cpu_s_of

Processes: TypeAlias = Mapping[str, Sequence[int]]
"""What they are called, and their ids."""


def used_s(processes: Processes) -> dict[str, float]:
    """Processor seconds of each so far."""
    return {name: sum(cpu_s_of(pid) for pid in pids) for name, pids in processes.items()}


def us_a_message(before: Mapping[str, float], after: Mapping[str, float], messages: int) -> dict[str, float]:
    """What each has used between, in microseconds a message. One that was not there before has begun from nothing."""
    return {
        name: round((used - before.get(name, 0.0)) / max(1, messages) * 1e6, 1)
        for name, used in after.items()
    }


def total_us(costs: Mapping[str, float], *without: str) -> float:
    """Of all processes but these."""
    return round(sum(cost for name, cost in costs.items() if name not in without), 1)
