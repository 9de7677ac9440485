"""The broker's figures must lie between what is certain and what may be."""

from __future__ import annotations

from collections.abc import Iterable

from tickwheel.stats import TopicStats
from tickwheel_simulation.oracle import Known, Oracle, Violation


def bounds(oracle: Oracle) -> dict[str, int]:
    """What the broker's counters reach at least."""
    return {name: low for name, (low, _) in _counted(oracle).items()}


def check(oracle: Oracle, topics: Iterable[TopicStats], before: dict[str, int]) -> None:
    """The broker's counters against what is known now, and was known `before` it was asked."""
    counted = _counted(oracle)
    for topic in topics:
        figures = {f"{topic.name} messages": topic.messages, f"{topic.name} cancelled": topic.cancelled}
        figures |= {f"{topic.name} acked by {group.name}": group.acked for group in topic.groups}
        for name, figure in figures.items():
            low, high = before.get(name, 0), counted.get(name, (0, 1 << 60))[1]
            if not low <= figure <= high:
                raise Violation(f"{name}: the broker counts {figure}, right is {low} to {high}")


def _counted(oracle: Oracle) -> dict[str, tuple[int, int]]:
    """By the name of a figure: what it is at least, and at most."""
    counted: dict[str, tuple[int, int]] = {}

    def count(name: str, is_certain: bool, is_possible: bool) -> None:
        low, high = counted.get(name, (0, 0))
        counted[name] = (low + is_certain, high + is_possible)

    for message in oracle.messages.values():
        topic = message.topic
        if not oracle.groups[topic]:
            continue  # it comes and goes
        count(f"{topic} messages", message.stored is Known.YES, message.stored is not Known.NO)
        is_cancelled = message.cancelled is Known.YES and message.stored is Known.YES
        count(f"{topic} cancelled", is_cancelled, message.was_cancel_asked)
        for group in oracle.groups[topic]:
            held = message.held.get(group)
            is_acked = held is not None and held.acked is Known.YES
            count(f"{topic} acked by {group}", is_acked, held is not None and held.tried_epoch > 0)
    return counted
