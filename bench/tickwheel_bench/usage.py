"""What processes cost: processor time of each of them, in all and for each message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tickwheel_bench.processes import cpu_s_of

Processes: TypeAlias = Mapping[str, Sequence[int]]
"""What they are called, and their ids."""


def used_s(processes: Processes) -> dict[str, float]:
    """Processor seconds of each so far."""
    return {name: sum(cpu_s_of(pid) for pid in pids) for name, pids in processes.items()}


def between_s(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Processor seconds that each has used between. A process that was not there before has begun from nothing."""
    return {name: used - before.get(name, 0.0) for name, used in after.items()}


def us_a_message(before: Mapping[str, float], after: Mapping[str, float], messages: int) -> dict[str, float]:
    """The same in microseconds a message."""
    return {name: round(s / max(1, messages) * 1e6, 1) for name, s in between_s(before, after).items()}


def ms_a_request(before: Mapping[str, float], after: Mapping[str, float], requests: int) -> dict[str, float]:
    """The same in milliseconds a request."""
    return {name: round(s / requests * 1e3, 3) for name, s in between_s(before, after).items()}


def percent(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """The same in percent of one core, in so many seconds."""
    return {name: round(100 * s / seconds, 1) for name, s in between_s(before, after).items()}


def total_us(costs: Mapping[str, float], *without: str) -> float:
    """Of all processes but these."""
    return round(sum(cost for name, cost in costs.items() if name not in without), 1)
