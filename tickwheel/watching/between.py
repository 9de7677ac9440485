"""What happened between two moments: figures only grow, so that it is the difference of two of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tickwheel.stats import Figures, Histogram
from tickwheel.watching.numbers import Numbers, numbers_of

REACHED, DELIVERED = "delivery_lateness_seconds", "first_delivery_lateness_seconds"
"""How late messages reached their topics, and their lateness: how late they were first given to a consumer."""
LATENESS: Final = (REACHED, DELIVERED)
SHARES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
_MS: Final = 1_000


@dataclass(frozen=True)
class Between:
    """What happened between two moments."""

    since_ms: int
    until_ms: int
    grown: Numbers
    """By how much each number has grown; of those that do not only grow that may be negative."""
    last: Numbers
    lateness: dict[str, Histogram]

    @property
    def seconds(self) -> float:
        """How long it was."""
        return (self.until_ms - self.since_ms) / _MS

    def per_s(self, name: str) -> float | None:
        """By how much one of the numbers that only grow has grown in a second; None: it was no time."""
        return max(0.0, float(getattr(self.grown, name))) / self.seconds if self.seconds else None

    def quantile(self, share: float, of: str = DELIVERED) -> float | None:
        """In seconds; None: nothing was due, or nothing was given to a consumer."""
        histogram = self.lateness.get(of)
        return None if histogram is None or not histogram.count else histogram.quantile(share)


class Sample(NamedTuple):
    """What of the figures is compared with later ones: little, also where there are many topics."""

    now_ms: int
    started_ms: int
    numbers: Numbers
    lateness: dict[str, Histogram]


def sample_of(figures: Figures) -> Sample:
    """Of the whole broker."""
    lateness = {name: figures.histograms[name] for name in LATENESS if name in figures.histograms}
    return Sample(figures.now_ms, figures.started_ms, numbers_of(figures), lateness)


def between(before: Sample | None, now: Sample) -> Between | None:
    """None: nothing is known, because the broker was started or its clock set back in between."""
    if before is None or before.started_ms != now.started_ms or before.now_ms >= now.now_ms:
        return None
    grown = Numbers(*(new - old for new, old in zip(now.numbers, before.numbers, strict=True)))
    lateness = {
        name: histogram
        for name in now.lateness
        if (histogram := grown_by(before.lateness.get(name), now.lateness[name])) is not None
    }
    return Between(before.now_ms, now.now_ms, grown, now.numbers, lateness)


def grown_by(before: Histogram | None, now: Histogram) -> Histogram | None:
    """What has come to a histogram; None: it cannot be told."""
    if before is None or before.bounds != now.bounds:
        return None
    counts = [new - old for new, old in zip(now.counts, before.counts, strict=True)]
    return Histogram(now.bounds, counts, now.sum - before.sum)
