"""What of the broker's figures is watched: a few sums, out of those of all topics and groups."""

from __future__ import annotations

from typing import NamedTuple

from tickwheel.stats import Figures


class Numbers(NamedTuple):
    """At one moment. Those up to ``redelivered`` only grow."""

    sent: float
    delivered: float
    acked: float
    redelivered: float
    dead: float
    scheduled: float
    in_flight: float
    backlog: float
    """Due, and not done by a group; a message counts once for each."""
    due_backlog: float
    """Due, and not in its topic yet."""
    disk_bytes: float


def numbers_of(figures: Figures) -> Numbers:
    """Of the whole broker."""
    totals = figures.totals
    return Numbers(
        sent=totals.messages,
        delivered=totals.delivered,
        acked=totals.acked,
        redelivered=totals.redelivered,
        dead=totals.dead,
        scheduled=totals.scheduled,
        in_flight=totals.leased,
        backlog=totals.backlog,
        due_backlog=gauge(figures, "due_backlog"),
        disk_bytes=gauge(figures, "log_bytes"),
    )


def gauge(figures: Figures, name: str) -> float:
    """0 where the broker does not have it, or has it several times."""
    found = figures.gauges.get(name, 0)
    return 0.0 if isinstance(found, dict) else float(found)


def counter(figures: Figures, name: str) -> float:
    """As ``gauge``."""
    found = figures.counters.get(name, 0)
    return 0.0 if isinstance(found, dict) else float(found)


def disk_share(figures: Figures) -> float | None:
    """How full the disk of the data directory is; None: that is not known."""
    size_bytes = gauge(figures, "disk_size_bytes")
    return 1 - gauge(figures, "disk_free_bytes") / size_bytes if size_bytes else None
