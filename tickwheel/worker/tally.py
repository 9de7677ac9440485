"""What a worker counts, for who watches it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tickwheel.worker.outcomes import Kind


@dataclass(slots=True)
class Tally:
    """Of one handler, since it began."""

    topic: str
    group: str
    concurrency: int
    running: int = 0
    """Messages that are being handled now."""
    outcomes: Counter[Kind] = field(default_factory=Counter)
    handled_s: float = 0.0
    """How long handlers were at work, together."""
    unsettled: int = 0
    """Messages whose outcome could not be told to the broker, or counted no more: they come again."""
